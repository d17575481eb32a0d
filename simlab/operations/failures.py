"""What failures cost a long training: work lost since the last checkpoint, time to write
checkpoints, time to start again.

Failures come at random, `mtbf_s` apart on average (exponentially distributed: as likely in the next
second whatever has passed). A job of N devices that fail independently has one Nth of a device's
mean time between failures.

This is the plainest run of `simlab.operations.long_run`: there is always a spare machine, and a
checkpoint is complete when training goes on.
"""

import math

from simlab.errors import InputError
from simlab.operations.checkpoints import Checkpoints
from simlab.operations.closed_forms import (
    check_times,
    daly_interval_s,
    expected_goodput,
    young_interval_s,
)
from simlab.operations.fleet import Fleet
from simlab.operations.long_run import MOST_EVENTS, LongRun, RunResult, simulate_run
from simlab.operations.rates import DAY_S, Cause, FailureRate

__all__ = [
    "daly_interval_s",
    "expected_goodput",
    "train_with_failures",
    "young_interval_s",
]


def train_with_failures(
    work_s: float,
    *,
    interval_s: float,
    checkpoint_s: float,
    restart_s: float,
    mtbf_s: float,
    seed: int = 0,
) -> RunResult:
    """A training that takes `work_s` without failures, simulated with them.

    interval_s:   of training between two checkpoints. The last piece, after which nothing is
                  written, may be shorter.
    checkpoint_s: for which training stands still at each; of one written beside the training only
    what it takes to copy the state.
    restart_s:    from a failure until training goes on: noticing, a spare machine, starting,
                  loading.
    mtbf_s:       mean time between failures of the whole job.
    seed:         of the failures' times.
    """
    check_times(work_s=work_s, interval_s=interval_s)
    goodput = expected_goodput(
        interval_s=min(interval_s, work_s),
        checkpoint_s=checkpoint_s,
        restart_s=restart_s,
        mtbf_s=mtbf_s,
    )
    events = work_s / interval_s + (work_s / goodput / mtbf_s if goodput else math.inf)
    if events > MOST_EVENTS:
        raise InputError(
            f"about {events:.1g} checkpoints and failures, more than {MOST_EVENTS:g}: give a work_s below {work_s:g}, or interval_s, "
            f"checkpoint_s and restart_s that mtbf_s = {mtbf_s:g} leaves room for"
        )
    run = LongRun(
        work_s=work_s,
        rate=FailureRate(
            name="given", per_1000_node_days=1000 * DAY_S / mtbf_s, causes=(Cause("any", 1, False),)
        ),
        fleet=Fleet(nodes=1, spares=0, detect_s=0.0, start_s=restart_s),
        checkpoints=Checkpoints(interval_s=interval_s, stall_s=checkpoint_s),
    )
    return simulate_run(run, seed=seed)

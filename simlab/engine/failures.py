"""What failures cost a long training: work lost since the last checkpoint, time to write
checkpoints, time to start again.

Failures come at random, `mtbf_s` apart on average (exponentially distributed: as likely in the next
second whatever has passed). A job of N devices that fail independently has one Nth of a device's
mean time between failures.

Left out: what a checkpoint that is written in the background takes to be complete (a failure
meanwhile costs one interval more), failures that come in bursts, repair times that vary, slow
checkpoint storage while others write, work lost in silence (wrong numbers without a failure), and a
shortage of spare machines.
"""

import math
import random
from collections.abc import Generator
from typing import Any, NamedTuple

import simpy

from simlab.errors import InputError

MOST_EVENTS = 1e6


class Interrupted(NamedTuple):
    """A training as it went: where its `wall_s` seconds were spent. They add up."""

    work_s: float
    """Training that counts."""
    lost_s: float
    """Training and writing that a failure undid: since the last complete checkpoint."""
    checkpoint_s: float
    """Writing checkpoints that were completed, while training stood still."""
    restart_s: float
    """Starting again, failures in the middle of it included."""
    failures: int

    @property
    def wall_s(self) -> float:
        """From the first second to the last."""
        return self.work_s + self.lost_s + self.checkpoint_s + self.restart_s

    @property
    def goodput(self) -> float:
        """The part of the time that counts."""
        return self.work_s / self.wall_s


def train_with_failures(
    work_s: float,
    *,
    interval_s: float,
    checkpoint_s: float,
    restart_s: float,
    mtbf_s: float,
    seed: int = 0,
) -> Interrupted:
    """`Interrupted`: a training that takes `work_s` without failures, simulated with them.

    interval_s:   of training between two checkpoints. The last piece, after which nothing is
                  written, may be shorter.
    checkpoint_s: for which training stands still at each; of one written beside the training only
    what it takes to copy the state.
    restart_s:    from a failure until training goes on: noticing, a spare machine, starting,
                  loading.
    mtbf_s:       mean time between failures of the whole job.
    seed:         of the failures' times.
    """
    costs = {
        "interval_s": interval_s,
        "checkpoint_s": checkpoint_s,
        "restart_s": restart_s,
        "mtbf_s": mtbf_s,
    }
    _check(work_s=work_s, **costs)
    goodput = expected_goodput(**costs | {"interval_s": min(interval_s, work_s)})
    events = work_s / interval_s + (work_s / goodput / mtbf_s if goodput else math.inf)
    if events > MOST_EVENTS:
        raise InputError(
            f"about {events:.1g} checkpoints and failures, more than {MOST_EVENTS:g}: give a work_s below {work_s:g}, or interval_s, "
            f"checkpoint_s and restart_s that mtbf_s = {mtbf_s:g} leaves room for"
        )
    env = simpy.Environment()
    job = _Job(env, work_s, interval_s, checkpoint_s, restart_s)
    training = env.process(job.run())
    env.process(_fail(env, training, random.Random(seed), mtbf_s))
    env.run(until=training)
    return Interrupted(work_s, job.lost_s, job.checkpoints_s, job.restarts_s, job.failures)


class _Job:
    def __init__(
        self,
        env: simpy.Environment,
        work_s: float,
        interval_s: float,
        checkpoint_s: float,
        restart_s: float,
    ) -> None:
        self.env, self.work_s, self.interval_s, self.checkpoint_s, self.restart_s = (
            env,
            work_s,
            interval_s,
            checkpoint_s,
            restart_s,
        )
        self.lost_s = self.checkpoints_s = self.restarts_s = 0.0
        self.failures = 0

    def run(self) -> Generator[simpy.Event, Any, None]:
        done_s, broken = 0.0, False
        while done_s < self.work_s:
            since_s = self.env.now
            try:
                if broken:
                    yield self.env.timeout(self.restart_s)
                    self.restarts_s += self.env.now - since_s
                    since_s, broken = self.env.now, False
                piece_s = min(self.interval_s, self.work_s - done_s)
                yield self.env.timeout(piece_s)
                if done_s + piece_s < self.work_s:
                    yield self.env.timeout(self.checkpoint_s)
                    self.checkpoints_s += self.checkpoint_s
                done_s += piece_s
            except simpy.Interrupt:
                self.failures += 1
                if broken:
                    self.restarts_s += self.env.now - since_s
                else:
                    self.lost_s += self.env.now - since_s
                broken = True


def _fail(
    env: simpy.Environment, training: simpy.Process, luck: random.Random, mtbf_s: float
) -> Generator[simpy.Event, Any, None]:
    while True:
        yield env.timeout(luck.expovariate(1 / mtbf_s))
        if not training.is_alive:
            return
        training.interrupt()


def expected_goodput(
    *, interval_s: float, checkpoint_s: float, restart_s: float, mtbf_s: float
) -> float:
    """The goodput of a long training, on average (Daly 2006, "A higher order estimate of the
    optimum checkpoint interval for restart dumps", Future Generation Computer Systems 22(3): the
    cost function for exponentially distributed failures).

    With t = interval_s + checkpoint_s and failures at the rate 1/M, a piece that must run t seconds
    without one takes (M + R) (e^(t/M) - 1) on average if each failure is followed by R seconds that
    cannot fail, and M e^(R/M) (e^(t/M) - 1) if they can, as
    here: a try fails with probability 1 - e^(-t/M), and what failed tries and restarts take adds up
    to that. Goodput is interval_s over it.
    """
    _check(interval_s=interval_s, checkpoint_s=checkpoint_s, restart_s=restart_s, mtbf_s=mtbf_s)
    t, m = interval_s + checkpoint_s, mtbf_s
    try:
        return interval_s / (m * math.exp(restart_s / m) * math.expm1(t / m))
    except OverflowError:  # hardly a piece ever ends
        return 0.0


def young_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The best seconds of training between checkpoints, to first order (Young 1974, Communications
    of the ACM 17(9)): sqrt(2 C M).

    A checkpoint costs C each interval T, a failure each M costs T/2 on average: C/T + T/(2M) is
    least there. Good for C much below M.
    """
    _check(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    return math.sqrt(2 * checkpoint_s * mtbf_s)


def daly_interval_s(checkpoint_s: float, mtbf_s: float) -> float:
    """The same to higher order (Daly 2006): sqrt(2CM) (1 + sqrt(C/2M)/3 + (C/2M)/9) - C; M from C =
    2M on."""
    _check(checkpoint_s=checkpoint_s, mtbf_s=mtbf_s)
    if checkpoint_s >= 2 * mtbf_s:
        return mtbf_s
    half = checkpoint_s / (2 * mtbf_s)
    return (
        young_interval_s(checkpoint_s, mtbf_s) * (1 + math.sqrt(half) / 3 + half / 9) - checkpoint_s
    )


def _check(**times: float) -> None:
    """`InputError` for a time that cannot be: checkpoints and restarts may take none."""
    for name, value in times.items():
        least = "of at least" if name in ("checkpoint_s", "restart_s") else "above"
        good = (
            isinstance(value, (int, float))
            and math.isfinite(value)
            and (value > 0 or (value == 0 and least == "of at least"))
        )
        if not good:
            raise InputError(f"{name} = {value!r}: give a finite time {least} 0 s")

"""It simulates what happens to a training over months: failures, checkpoints, and what they cost.

A `LongRun` is a `FailureRate`, a `Fleet` of nodes with spares, and `Checkpoints`; `simulate_run` says
where its time goes, and `interval_study` how that depends on the interval between checkpoints.
`synchronous_steps` and `slow_stage` are about slow ranks, `simulate_queue` about jobs that change their
size, `replan` about going on with fewer nodes, and `training_cost` about money.
"""

from simlab.operations.checkpoints import Checkpoints, asynchronous, checkpoint_bytes, synchronous
from simlab.operations.closed_forms import (
    daly_interval_s,
    expected_goodput,
    most_restart_s,
    young_interval_s,
)
from simlab.operations.cost import Cost, Prices, training_cost
from simlab.operations.elasticity import simulate_queue
from simlab.operations.fleet import Fleet
from simlab.operations.goodput import IntervalStudy, at_interval, interval_study, mean_goodput
from simlab.operations.long_run import LongRun, RunResult, simulate_run
from simlab.operations.queued_jobs import Job, QueueResult, random_jobs
from simlab.operations.rates import (
    Cause,
    FailureRate,
    failure_rate,
    failure_rates,
    mtbf_s,
    observed,
    rate_per_1000_node_days,
)
from simlab.operations.replan import Replanned, layers_by_speed, replan
from simlab.operations.stragglers import (
    Disturbance,
    SlowStage,
    Steps,
    pause_slowdown,
    slow_stage,
    synchronous_steps,
)

__all__ = [
    "Cause",
    "Checkpoints",
    "Cost",
    "Disturbance",
    "FailureRate",
    "Fleet",
    "IntervalStudy",
    "Job",
    "LongRun",
    "Prices",
    "QueueResult",
    "Replanned",
    "RunResult",
    "SlowStage",
    "Steps",
    "asynchronous",
    "at_interval",
    "checkpoint_bytes",
    "daly_interval_s",
    "expected_goodput",
    "failure_rate",
    "failure_rates",
    "interval_study",
    "layers_by_speed",
    "mean_goodput",
    "most_restart_s",
    "mtbf_s",
    "observed",
    "pause_slowdown",
    "random_jobs",
    "rate_per_1000_node_days",
    "replan",
    "simulate_queue",
    "simulate_run",
    "slow_stage",
    "synchronous",
    "synchronous_steps",
    "training_cost",
    "young_interval_s",
]

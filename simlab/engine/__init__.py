"""What happens within a step: `simulate` turns a program and its costs into a trace; `network` moves
transfers over shared links; `run_tasks` runs the refined form, layer by layer."""

from simlab.engine.simulation import simulate
from simlab.engine.tasks import TaskTimes, run_tasks

__all__ = ["TaskTimes", "run_tasks", "simulate"]

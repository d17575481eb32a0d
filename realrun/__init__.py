"""realrun: execute a simlab program with torch.distributed, and hold the simulation against what happened."""

from realrun.execute import Run, execute
from realrun.interop import program_from_schedule
from realrun.job import Job
from realrun.pool import Pool, RunError

__all__ = ["Job", "Pool", "Run", "RunError", "execute", "program_from_schedule"]

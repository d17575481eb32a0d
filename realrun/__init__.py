"""realrun: execute a simlab program with torch.distributed, and hold the simulation against what
happened."""

from realrun.backends.interop import program_from_schedule
from realrun.launch.pool import Pool, RunError
from realrun.lessons.execute import PlanRun, Run, disturbed, execute, execute_plan
from realrun.run.job import Job

__all__ = [
    "Job",
    "PlanRun",
    "Pool",
    "Run",
    "RunError",
    "disturbed",
    "execute",
    "execute_plan",
    "program_from_schedule",
]

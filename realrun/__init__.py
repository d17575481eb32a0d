"""realrun: execute a simlab program with torch.distributed, and hold the simulation against what happened."""

from realrun.execute import PlanRun, Run, execute, execute_plan
from realrun.interop import program_from_schedule
from realrun.job import Job
from realrun.plan_job import PlanJob
from realrun.pool import Pool, RunError

__all__ = ["Job", "PlanJob", "PlanRun", "Pool", "Run", "RunError", "execute", "execute_plan", "program_from_schedule"]

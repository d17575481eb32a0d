"""What to run, and how: a job, and the runs that it consists of."""

from realrun.run.job.derived import CLIP_NORM, Run, plan_fields
from realrun.run.job.job import Job

__all__ = ["CLIP_NORM", "Job", "Run", "plan_fields"]

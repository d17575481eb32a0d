"""What to run, and how: a job, and the runs that it consists of."""

from realrun.run.job.job import CLIP_NORM, Job, Run, plan_fields

__all__ = ["CLIP_NORM", "Job", "Run", "plan_fields"]

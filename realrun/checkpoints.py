"""When a plan's training writes checkpoints, and where it goes on after a break."""

from realrun.checkpoint_files import read_manifest
from simlab.errors import InputError


class Checkpoints:
    """Those of one rank's `executor` (`PlanExecutor`) under `job`. All ranks call the same methods together."""

    def __init__(self, job, executor, rank, say):
        self.job, self.executor, self.rank, self.say = job, executor, rank, say
        self.saving = None

    def resume(self):
        """How many steps are behind: those of the newest complete checkpoint, whose state the training now has; 0 without."""
        from realrun import checkpoint  # here: it takes two seconds

        job = self.job
        if not (job.resume or job.checkpoint_every):
            return 0
        newest = checkpoint.latest(job.checkpoint_folder)
        if newest is None:
            return 0
        if not job.resume:
            raise InputError(f"{str(job.checkpoint_folder)!r} has checkpoints up to {newest.name}: resume, or give another folder")
        self._check(newest, read_manifest(newest)["extra"])
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
            extra = checkpoint.load(newest, tensors)
            self.executor.state.take(tensors)
        if self.executor.scaler is not None and extra.get("scaler"):
            self.executor.scaler.state = extra["scaler"]
        self.say(f"{job.name}: goes on from {newest}")
        return extra["steps"]

    def _check(self, path, extra):
        """A training goes on with the same model on the same data, and has an end that is still ahead."""
        own = self._facts()
        for name, there in extra["training"].items():
            if own[name] != there:
                raise InputError(f"{path} is of a training with {name} = {there}, not {own[name]}: the losses would not go on")
        if extra["steps"] >= self.job.warmup + self.job.steps:
            done, asked = extra["steps"], self.job.warmup + self.job.steps
            raise InputError(f"{path} is of step {done}, and {asked} are asked for (warm-up steps counted): nothing is left to do")

    def _facts(self):
        return {"sizes": self.job.sizes, "sequences in a step": self.job.batch}

    def after(self, steps):
        """After so many steps: begin to write, if it is time; training goes on meanwhile."""
        if not self.job.checkpoint_every or steps % self.job.checkpoint_every:
            return
        from realrun import checkpoint

        self.finish()
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
        scaler = self.executor.scaler
        extra = {"steps": steps, "plan": self.job.plan, "training": self._facts(), "scaler": scaler and scaler.state}
        self.saving = checkpoint.begin_save(self.job.checkpoint_folder, steps, tensors, extra, keep=self.job.keep)

    def finish(self):
        """Wait until what was begun is written."""
        if self.saving is not None:
            self.saving.wait()
            self.saving = None

"""When a training writes checkpoints, and from where it goes on after a break."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from realrun.checkpoint.files import CheckpointError, read_manifest
from simlab.errors import InputError

if TYPE_CHECKING:
    from torch import Tensor

    from realrun.checkpoint.save import Save
    from realrun.parallel.precision import LossScaler


class CheckpointedJob(Protocol):
    """What a job says of its training and its checkpoints: see `realrun.Job`."""

    @property
    def name(self) -> str: ...
    @property
    def sizes(self) -> dict[str, int]: ...
    @property
    def batch(self) -> int: ...
    @property
    def plan(self) -> dict[str, Any] | None: ...
    @property
    def warmup(self) -> int: ...
    @property
    def steps(self) -> int: ...
    @property
    def resume(self) -> bool: ...
    @property
    def keep(self) -> int: ...
    @property
    def checkpoint_every(self) -> int | None: ...
    @property
    def checkpoint_folder(self) -> Path: ...


class StateHolder(Protocol):
    """A training's state by global names, see `realrun.checkpoint.state.State`."""

    def tensors(self) -> dict[str, "Tensor"]:
        """Copies of this rank's tensors."""

    def take(self, tensors: dict[str, "Tensor"]) -> None:
        """Put `tensors` into the training."""


class Checkpointable(Protocol):
    """What is asked of a `realrun.run.backend.Training`."""

    @property
    def scaler(self) -> "LossScaler | None": ...
    @property
    def state(self) -> StateHolder: ...
    def unobserved(self) -> AbstractContextManager[None]: ...


class Checkpoints:
    """The checkpoints of one rank's training under `job`. All ranks call the same methods
    together."""

    def __init__(
        self, job: CheckpointedJob, executor: Checkpointable, rank: int, say: Callable[[str], None]
    ) -> None:
        self.job, self.executor, self.rank, self.say = job, executor, rank, say
        self.saving: Save | None = None

    def resume(self) -> int:
        """The number of steps that are done: those of the newest complete checkpoint, whose state
        the training has when this returns; 0 without one. `InputError` where the checkpoint cannot
        be gone on from, or is there although no resume was asked for."""
        from realrun.checkpoint import save as checkpoint  # here: it takes two seconds

        job = self.job
        if not (job.resume or job.checkpoint_every):
            return 0
        newest, extra = self._newest()
        if newest is None:
            return 0
        if not job.resume:
            raise InputError(
                f"{str(job.checkpoint_folder)!r} has checkpoints up to {newest.name}: resume, or give another folder"
            )
        self._check(newest, extra)
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
            extra = checkpoint.load(newest, tensors)
            self.executor.state.take(tensors)
        if self.executor.scaler is not None and extra.get("scaler"):
            self.executor.scaler.state = extra["scaler"]
        self.say(f"{job.name}: goes on from {newest}")
        return extra["steps"]

    def _newest(self) -> tuple[Path | None, Any]:
        """(the path of the newest checkpoint or None, its extra), both as rank 0 sees them. Ranks
        that look for themselves may see different ones: a network file system shows a new folder
        sooner on one host than on another."""
        import torch.distributed as dist

        from realrun.checkpoint.save import latest

        seen: list[Any] = [None, None, None]
        if self.rank == 0:
            try:
                if (path := latest(self.job.checkpoint_folder)) is not None:
                    seen = [path.name, read_manifest(path)["extra"], None]
            except CheckpointError as error:
                seen = [None, None, str(error)]
        if dist.is_initialized():
            dist.broadcast_object_list(seen, src=0)
        name, extra, problem = seen
        if problem:
            raise CheckpointError(problem)
        return name and self.job.checkpoint_folder / name, extra

    def _check(self, path: Path, extra: Any) -> None:
        """A training must go on with the same model on the same data, and its end must be ahead."""
        if not (isinstance(extra, dict) and {"steps", "training"} <= extra.keys()):
            raise InputError(f"{path} is no checkpoint of a training by realrun: give its folder")
        own = self._facts()
        for name, there in extra["training"].items():
            if own.get(name) != there:
                raise InputError(
                    f"{path} is of a training with {name} = {there}, not {own.get(name)}: "
                    "the losses would not go on"
                )
        if extra["steps"] >= self.job.warmup + self.job.steps:
            done, asked = extra["steps"], self.job.warmup + self.job.steps
            raise InputError(
                f"{path} is of step {done}, and {asked} are asked for (warm-up steps counted): nothing is left to do"
            )

    def _facts(self) -> dict[str, Any]:
        return {"sizes": self.job.sizes, "sequences in a step": self.job.batch}

    def after(self, steps: int) -> None:
        """Called after so many steps. If it is time, it begins to write a checkpoint, while the
        training goes on."""
        if not self.job.checkpoint_every or steps % self.job.checkpoint_every:
            return
        from realrun.checkpoint import save as checkpoint

        self.finish()
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
        scaler = self.executor.scaler
        extra = {
            "steps": steps,
            "plan": self.job.plan,
            "training": self._facts(),
            "scaler": scaler and scaler.state,
        }
        self.saving = checkpoint.begin_save(
            self.job.checkpoint_folder, steps, tensors, extra, keep=self.job.keep
        )

    def finish(self) -> None:
        """Wait until what was begun is written."""
        if self.saving is not None:
            self.saving.wait()
            self.saving = None

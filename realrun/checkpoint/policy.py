"""When a training writes checkpoints, and from where it goes on after a break."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from realrun.checkpoint.errors import CheckpointError, NothingLeft
from realrun.checkpoint.files import read_manifest
from realrun.checkpoint.whole import latest, offer, path_of, put_damaged_aside
from simlab.errors import InputError, number
from simlab.spec.plan import Plan

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
    def skip_damaged(self) -> bool: ...
    @property
    def executed(self) -> Plan: ...
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


def look_closely(job: CheckpointedJob, say: Callable[[str], None]) -> None:
    """See `realrun.checkpoint.resuming.look`."""
    folder = job.checkpoint_folder
    if job.resume and job.skip_damaged:
        put_damaged_aside(folder, say)
    if (newest := latest(folder)) is None:
        begins_anew(job)
        return
    try:
        extra = read_manifest(newest)["extra"]
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {offer(folder)}") from None
    check(job, newest, extra)


ROUTED = {"capacity", "routed_parts", "routed_zigzag"}
"""Sizes that follow from how a plan cuts the tokens that experts take."""


def begins_anew(job: CheckpointedJob) -> None:
    """`InputError` unless `job` may begin at step 0 in a folder without a complete checkpoint. One
    that writes checkpoints may, also where it is to resume: the same command is started again after
    a failure. One that only reads them was told a wrong folder."""
    if job.resume and not job.checkpoint_every:
        raise InputError(
            f"{str(job.checkpoint_folder)!r} has no complete checkpoint to go on from: give the "
            "folder that has one, or leave --resume out"
        )


def check(job: CheckpointedJob, path: Path, extra: Any) -> None:
    """`InputError` unless `job` can go on from the checkpoint at `path`, which brings `extra`: with
    the same model on the same data in the same precision, and with its end ahead (`NothingLeft`)."""
    if not job.resume:
        raise InputError(
            f"{str(job.checkpoint_folder)!r} has checkpoints up to {path.name}: resume, or give another folder"
        )
    if not (
        isinstance(extra, dict)
        and type(extra.get("steps")) is int
        and isinstance(extra.get("training"), dict)
        and _is_a_scaler(extra.get("scaler"))
    ):
        raise InputError(f"{path} is no checkpoint of a training by realrun: give its folder")
    if path != path_of(path.parent, extra["steps"]):
        raise InputError(
            f"{path} is of step {extra['steps']}, and named for another: rename it to "
            f"{path_of(path.parent, extra['steps']).name}, or give another folder"
        )
    own = facts(job)
    for name, there in extra["training"].items():
        if own.get(name) != there:
            raise InputError(f"{path} is of a training with {_unlike(name, there, own.get(name))}")
    done, asked = extra["steps"], job.warmup + job.steps
    if done >= asked:
        raise NothingLeft(
            f"{path} is of step {done}, and {asked} are asked for (warm-up steps counted): nothing is left to do"
        )


def _unlike(name: str, there: Any, here: Any) -> str:
    """What a training was like, and what this one is like, in words; of sizes those that differ."""
    if not (isinstance(there, dict) and isinstance(here, dict)):
        return f"{name} = {there}, not {here}: the losses would not go on"
    differ = [size for size in {**there, **here} if there.get(size) != here.get(size)]
    if "routed_parts" in differ and {*differ} <= ROUTED:
        parts = [sizes.get("routed_parts", 1) for sizes in (there, here)]
        return (
            f"experts that take the tokens of {parts[0]} parts of a sequence each by itself, not of {parts[1]}: the "
            "losses would not go on; give the same cp, and with etp = 1 the same tp"
        )
    said = [", ".join(f"{size} = {its.get(size)}" for size in differ) for its in (there, here)]
    return f"{said[0]}, not {said[1]}: the losses would not go on"


def _is_a_scaler(state: Any) -> bool:
    """Whether `state` is None or what a `LossScaler` has as its state."""
    return state is None or (
        isinstance(state, list) and len(state) == 2 and all(map(number, state)) and state[0] > 0
    )


def facts(job: CheckpointedJob) -> dict[str, Any]:
    """What must be the same in a training that goes on."""
    return {
        "sizes": job.sizes,
        "sequences in a step": job.batch,
        "precision": job.executed.precision,
    }


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
            begins_anew(job)
            if job.resume:
                self.say(
                    f"{job.name}: no checkpoint in {job.checkpoint_folder} yet: begins at step 0"
                )
            return 0
        check(job, newest, extra)
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
            try:
                extra = checkpoint.load(newest, tensors)
            except CheckpointError as error:  # the same on all ranks
                raise CheckpointError(f"{error}; {self._offer()}") from None
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

    def _offer(self) -> str:
        """What can be done about a damaged checkpoint, as rank 0 sees it."""
        import torch.distributed as dist

        said = [offer(self.job.checkpoint_folder) if self.rank == 0 else ""]
        if dist.is_initialized():
            dist.broadcast_object_list(said, src=0)
        return said[0]

    def is_time(self, steps: int) -> bool:
        """Whether a checkpoint is to be written after so many steps."""
        every = self.job.checkpoint_every
        return every is not None and steps % every == 0

    def save_now(self, steps: int) -> Path:
        """Have a checkpoint of `steps`, the steps done by now, and return its path."""
        if self.saving is None or self.saving.path.name != f"step-{steps:06d}":
            self.begin(steps)
        assert self.saving is not None  # it was begun
        path, self.saving = self.saving.wait(), None
        return path

    def begin(self, steps: int) -> None:
        """Begin to write a checkpoint of `steps`, the steps done by now, while the training goes
        on."""
        from realrun.checkpoint import save as checkpoint

        self.finish()
        with self.executor.unobserved():
            tensors = self.executor.state.tensors()
        scaler = self.executor.scaler
        extra = {
            "steps": steps,
            "plan": self.job.plan,
            "training": facts(self.job),
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

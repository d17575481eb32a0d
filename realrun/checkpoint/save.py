"""Checkpoints of a training that any number of ranks can load again. They are written while the
training goes on, are either complete or not there, and are checked when they are read.

    saving = begin_save("out", step, tensors, extra, keep=3)     # every rank; it copies the tensors
    saving.wait()                                                # at the latest before the next one
    extra = load(latest("out"), tensors)                         # every rank, of any plan

`tensors` is {global name: tensor}. What several ranks hold in parts is a DTensor, which knows where
its part belongs; a plain tensor is the same on all ranks that name it. Both are written once, by
the rank that has least to write. Ranks of another stage have other names. What differs from rank to
rank, as the state of a random generator does, needs a name with the rank in it.

A save writes into `step-000120.tmp-<token>`, which nobody loads and which the next save removes.
When all files and then the manifest are on the disk, it is renamed to `step-000120`. So a folder of
that name is complete, and a save that is killed leaves the older ones as they were. (A step saved
again is replaced in two renames: a kill between them loses that step.) One training at a time uses
a folder, and all ranks see it. A checksum finds damage, not a forger; but nothing in a folder is
unpickled or executed, whoever wrote it.
"""

import secrets
import shutil
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException

from realrun.checkpoint import files
from realrun.checkpoint.errors import CheckpointError
from realrun.checkpoint.files import (
    check_file,
    check_tensors,
    names_text,
    read_manifest,
)
from realrun.checkpoint.storage import Reader, Staged, Writer
from realrun.checkpoint.whole import complete, latest, path_of, verify
from simlab.errors import InputError

__all__ = ["Save", "begin_save", "complete", "latest", "load", "save", "verify"]

Extra = Any
"""What JSON can carry."""
ProcessGroup = dist.ProcessGroup | None
"""None: all ranks, or a single process."""


def save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    extra: Extra,
    *,
    keep: int | None = None,
    group: ProcessGroup = None,
) -> Path:
    """Save as `begin_save` does, wait until it is done, and return the checkpoint's path."""
    return begin_save(folder, step, tensors, extra, keep=keep, group=group).wait()


def begin_save(
    folder: str | Path,
    step: int,
    tensors: Mapping[str, Tensor],
    extra: Extra,
    *,
    keep: int | None = None,
    group: ProcessGroup = None,
) -> "Save":
    """Copy the tensors and start to save them as `step` in `folder`. Every rank calls it. The
    tensors may change afterwards. Only one save may go on at a time in a folder.

    extra: what JSON can carry and gives back (so lists, not tuples). That of the group's first rank
           is saved.
    keep:  when this checkpoint is complete, all but the `keep` newest of the steps up to it are
           deleted; None: none is deleted.
    group: gloo ranks that use this group for nothing else until the save is done; None: a new one
           of all ranks.

    `InputError` for a step or a `keep` that is no whole number or too small.
    """
    for name, value, least in (("step", step, 0), ("keep", 1 if keep is None else keep, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} = {value!r}: give a whole number, at least {least}")
    return Save(Path(folder), step, Staged(tensors, extra), keep, group)


class Save:
    """A save that goes on in the background. `wait` must be called, on every rank."""

    def __init__(
        self, folder: Path, step: int, staged: Staged, keep: int | None, group: ProcessGroup
    ) -> None:
        self.path, self.waited = path_of(folder, step), False
        self._keep = keep
        self._error: CheckpointError | None = None
        self._group, self._own = _group_of(group)
        self._thread = threading.Thread(
            target=self._run, args=(staged,), name=f"save step {step}", daemon=True
        )
        self._thread.start()

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self) -> Path:
        """Wait for the end, and return the checkpoint's path. `CheckpointError` on every rank if
        any of them failed."""
        self._thread.join()
        if self._own and not self.waited:
            dist.destroy_process_group(self._group)
        self.waited = True
        if self._error is not None:
            raise self._error
        return self.path

    def _run(self, staged: Staged) -> None:
        written: Path | None = None
        try:
            with _checkpoint_errors(f"saving {str(self.path)!r}"):
                name: list[Any] = [f"{self.path.name}.tmp-{secrets.token_hex(4)}"]
                if self._group is not None:
                    dist.broadcast_object_list(name, group=self._group, group_src=0)
                temporary = self.path.with_name(name[0])
                written = temporary
                writer = Writer(
                    temporary,
                    lambda: _remove_leftovers(self.path.parent),
                    lambda manifest: self._publish(temporary, manifest, staged.extra),
                )
                _in_group(dcp.save, self._group, {}, storage_writer=writer, planner=staged)
        except CheckpointError as error:
            self._error = error
            if written is not None:  # no rank writes any more; what is half written takes room
                shutil.rmtree(written, ignore_errors=True)

    def _publish(self, temporary: Path, manifest: dict[str, Any], extra: Extra) -> None:
        step, folder = int(self.path.name.removeprefix("step-")), self.path.parent
        head = {
            "format": files.FORMAT,
            "torch": torch.__version__,
            "step": step,
            "extra": extra,
        }
        files.write_manifest(temporary, {**head, **manifest})
        if self.path.exists():
            _remove(self.path, lambda: temporary.rename(self.path))
        else:
            temporary.rename(self.path)
        files.sync_folder(folder)
        if self._keep:
            for old in [other for other in complete(folder) if other <= step][: -self._keep]:
                _remove(path_of(folder, old))


def load(path: str | Path, tensors: Mapping[str, Tensor], *, group: ProcessGroup = None) -> Any:
    """Verify the checkpoint at `path`, fill `tensors` in place and return what was saved as extra.
    Every rank of the group calls it.

    All ranks' names together must be the checkpoint's, with its shapes and dtypes. How they are cut
    may differ. group: see `begin_save`. `CheckpointError`, the same on all ranks, where a file is
    damaged, or a name, shape or dtype differs.
    """
    path = Path(path)
    with _checkpoint_errors(f"loading {str(path)!r}"), _group_for_now(group) as own:
        reader = _verified_together(path, tensors, own)
        _in_group(dcp.load, own, dict(tensors), storage_reader=reader)
    return reader.manifest["extra"]


def _verified_together(path: Path, tensors: Mapping[str, Tensor], group: ProcessGroup) -> Reader:
    """A `Reader` of the files. Each rank verifies a share of them, and all raise the first problem
    that any of them found."""
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    reader: Reader | None = None
    problem = None
    try:
        reader = Reader(path, read_manifest(path))
        for name in sorted(reader.manifest["files"])[rank::ranks]:
            check_file(path / name, **reader.manifest["files"][name])
        check_tensors(path, reader.manifest["tensors"], tensors)
    except CheckpointError as error:
        problem = str(error)
    except Exception as error:  # not from a save: the manifest has a checksum
        problem = f"{str(path)!r} has a forged manifest: {error!r}"
    told = [(problem, list(tensors))]
    if group is not None:
        told *= ranks
        dist.all_gather_object(told, (problem, list(tensors)), group=group)
    for text, _ in told:
        if text:
            raise CheckpointError(text)
    assert reader is not None  # or this rank has told why
    if unused := sorted(set(reader.manifest["tensors"]).difference(*(names for _, names in told))):
        raise CheckpointError(f"{str(path)!r} holds {names_text(unused)}, which no rank has")
    return reader


def _in_group(
    save_or_load: Callable[..., Any], group: ProcessGroup, *arguments: Any, **options: Any
) -> Any:
    if group is not None:
        return save_or_load(*arguments, process_group=group, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        return save_or_load(*arguments, no_dist=True, **options)


def _remove(path: Path, between: Callable[[], Any] = lambda: None) -> None:
    """Delete a checkpoint, which from the first moment on is no longer one. `between` is called at
    that moment."""
    doomed = path.rename(path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}"))
    between()
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_leftovers(folder: Path) -> None:
    for left in folder.glob("step-*.tmp-*"):
        shutil.rmtree(left)


def _group_of(group: ProcessGroup) -> tuple[ProcessGroup, bool]:
    """(the group to use, or None in a single process; whether it is new)."""
    if group is not None or not dist.is_initialized():
        return group, False
    return dist.new_group(backend="gloo"), True


@contextmanager
def _group_for_now(group: ProcessGroup) -> Iterator[ProcessGroup]:
    group, own = _group_of(group)
    try:
        yield group
    finally:
        if own:
            dist.destroy_process_group(group)


@contextmanager
def _checkpoint_errors(doing: str) -> Iterator[None]:
    """Whatever goes wrong becomes one `CheckpointError`. Where several ranks failed, it is that of
    the lowest of them."""
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, CheckpointException) as error:
        rank = ""
        cause: BaseException = error
        if isinstance(error, CheckpointException):
            number, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
            rank = f" on rank {number}"
        if isinstance(cause, CheckpointError):
            raise cause from None
        text = " ".join(str(cause).split()) or type(cause).__name__
        raise CheckpointError(f"{doing} failed{rank}: {text}") from error

"""Checkpoints of a training that any number of ranks can load again: begun while training goes on, complete or not there, checked.

    saving = begin_save("out", step, tensors, extra, keep=3)     # every rank; copies the tensors, the rest happens in the background
    saving.wait()                                                # at the latest before the next one
    extra = load(latest("out"), tensors)                         # every rank, of another tp degree or number of stages, too

`tensors` is {global name: tensor}. What several ranks hold in parts is a DTensor, which knows where its part belongs; a plain tensor is the
same on all ranks that name it. Both are written once, by the rank that has least to write. Ranks of another stage have other names. What
differs from rank to rank (the state of a random generator, say) needs a name with the rank in it.

A save writes into `step-000120.tmp-<token>`, which nobody loads and the next save removes. When all files and then the manifest are on
the disk, it is renamed to `step-000120`: a folder of that name is complete, and a save that is killed leaves the older ones as they were.
(A step saved again is replaced in two renames: a kill between them loses that step.) One training at a time uses a folder, and all ranks
see it. A checksum finds damage, not a forger; but nothing in a folder is unpickled or executed, whoever wrote it.
"""

import re
import secrets
import shutil
import threading
import warnings
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner

from realrun import checkpoint_files as files
from realrun.checkpoint_files import CheckpointError, check_file, read_manifest, tensor_text
from realrun.checkpoint_storage import Reader, Staged, Writer
from simlab.errors import InputError

_newest = None  # the last `Save` of this process: there is one at a time


def complete(folder):
    """[step of each complete checkpoint in `folder`], ascending."""
    found = [re.fullmatch(r"step-(\d{6,})", path.parent.name) for path in Path(folder).glob(f"*/{files.MANIFEST}")]
    return sorted(int(match[1]) for match in found if match)


def latest(folder):
    """The path of the complete checkpoint with the highest step in `folder`; None if there is none."""
    steps = complete(folder)
    return _path(folder, steps[-1]) if steps else None


def verify(path):
    """`CheckpointError` unless every file of the checkpoint is there with the size and SHA-256 that its manifest says."""
    path = Path(path)
    with _checkpoint_errors(f"verifying {str(path)!r}"):
        for name, file in read_manifest(path)["files"].items():
            check_file(path / name, **file)


def save(folder, step, tensors, extra, *, keep=None, group=None):
    """`begin_save`, and wait until it is done; the checkpoint's path."""
    return begin_save(folder, step, tensors, extra, keep=keep, group=group).wait()


def begin_save(folder, step, tensors, extra, *, keep=None, group=None):
    """Copy the tensors and start to save them as `step` in `folder`; a `Save`. Every rank calls it; the tensors may change afterwards.

    extra: what JSON can carry and gives back (so lists, no tuples); that of the group's first rank is saved.
    keep:  when this one is complete, delete all but the `keep` newest of the steps up to it; None: none is deleted.
    group: gloo ranks that use this group for nothing else until the save is done; None: a new one of all ranks.

    One at a time: it first waits for the one before, and raises that one's error if nobody has seen it.
    """
    global _newest
    for name, value, least in (("step", step, 0), ("keep", 1 if keep is None else keep, 1)):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise InputError(f"{name} = {value!r}: give a whole number, at least {least}")
    if _newest is not None and not _newest.waited:
        _newest.wait()
    _newest = Save(Path(folder), step, Staged(tensors, extra), keep, group)
    return _newest


class Save:
    """A save that goes on in the background. `wait` must be called, on every rank."""

    def __init__(self, folder, step, staged, keep, group):
        self.path, self.waited = _path(folder, step), False
        self._staged, self._keep, self._error = staged, keep, None
        self._group, self._own = _group_of(group)
        self._thread = threading.Thread(target=self._run, name=f"save step {step}", daemon=True)
        self._thread.start()

    def done(self):
        """Whether it has ended, well or not."""
        return not self._thread.is_alive()

    def wait(self):
        """Wait for the end; the checkpoint's path. `CheckpointError` on every rank if any of them failed."""
        self._thread.join()
        if self._own and not self.waited:
            dist.destroy_process_group(self._group)
        self.waited = True
        if self._error is not None:
            raise self._error
        return self.path

    def _run(self):
        try:
            with _checkpoint_errors(f"saving {str(self.path)!r}"):
                name = [f"{self.path.name}.tmp-{secrets.token_hex(4)}"]
                if self._group is not None:
                    dist.broadcast_object_list(name, group=self._group, group_src=0)
                temporary = self.path.with_name(name[0])
                writer = Writer(temporary, lambda: _remove_leftovers(self.path.parent), lambda manifest: self._publish(temporary, manifest))
                _in_group(dcp.save, self._group, {}, storage_writer=writer, planner=self._staged)
        except CheckpointError as error:
            self._error = error
        self._staged = None  # the copies

    def _publish(self, temporary, manifest):
        step, folder = int(self.path.name.removeprefix("step-")), self.path.parent
        head = {"format": files.FORMAT, "torch": torch.__version__, "step": step, "extra": self._staged.extra}
        files.write_manifest(temporary, {**head, **manifest})
        if self.path.exists():
            _remove(self.path, lambda: temporary.rename(self.path))
        else:
            temporary.rename(self.path)
        files.sync_folder(folder)
        if self._keep:
            for old in [other for other in complete(folder) if other <= step][: -self._keep]:
                _remove(_path(folder, old))


def load(path, tensors, *, group=None):
    """Verify the checkpoint at `path`, fill `tensors` in place and return what was saved as extra. Every rank of the group calls it.

    All ranks' names together must be the checkpoint's, with its shapes and dtypes; how they are cut may differ.
    group: see `begin_save`. `CheckpointError`, the same on all ranks: a file is damaged, a name, shape or dtype differs.
    """
    path = Path(path)
    with _checkpoint_errors(f"loading {str(path)!r}"), _group_for_now(group) as group:
        reader = _verified_together(path, tensors, group)
        _in_group(dcp.load, group, dict(tensors), storage_reader=reader, planner=DefaultLoadPlanner(flatten_state_dict=False))
    return reader.manifest["extra"]


def _verified_together(path, tensors, group):
    """A `Reader` of the files. Each rank verifies a share of them; all raise the first problem that any of them found."""
    rank, ranks = (0, 1) if group is None else (dist.get_rank(group), dist.get_world_size(group))
    reader, problem = None, None
    try:
        reader = Reader(path, read_manifest(path))
        for name in sorted(reader.manifest["files"])[rank::ranks]:
            check_file(path / name, **reader.manifest["files"][name])
        _check_wanted(path, reader.manifest["tensors"], tensors)
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
    if unused := sorted(set(reader.manifest["tensors"]).difference(*(names for _, names in told))):
        raise CheckpointError(f"{str(path)!r} holds {_names(unused)}, which no rank has")
    return reader


def _in_group(save_or_load, group, *arguments, **options):
    if group is not None:
        return save_or_load(*arguments, process_group=group, **options)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        return save_or_load(*arguments, no_dist=True, **options)


def _check_wanted(path, saved, tensors):
    if missing := sorted(set(tensors) - set(saved)):
        raise CheckpointError(f"{str(path)!r} does not hold {_names(missing)}")
    for name, tensor in tensors.items():
        there, here = (saved[name]["shape"], saved[name]["dtype"]), (list(tensor.shape), files.DTYPES.get(tensor.dtype))
        if there != here:
            raise CheckpointError(f"{name!r} is {tensor_text(*there)} in {str(path)!r}, {tensor_text(tensor.shape, tensor.dtype)} here")


def _names(names):
    return ", ".join(map(repr, names[:5])) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


def _path(folder, step):
    return Path(folder) / f"step-{step:06d}"


def _remove(path, between=lambda: None):
    """Delete a checkpoint, which from the first moment on is none any more; `between` is called at that moment."""
    doomed = path.rename(path.with_name(f"{path.name}.tmp-{secrets.token_hex(4)}"))
    between()
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_leftovers(folder):
    for left in folder.glob("step-*.tmp-*"):
        shutil.rmtree(left)


def _group_of(group):
    """(the group to use, or None in a single process; whether it is new)."""
    if group is not None or not dist.is_initialized():
        return group, False
    return dist.new_group(backend="gloo"), True


@contextmanager
def _group_for_now(group):
    group, own = _group_of(group)
    try:
        yield group
    finally:
        if own:
            dist.destroy_process_group(group)


@contextmanager
def _checkpoint_errors(doing):
    """Whatever goes wrong becomes one `CheckpointError`, on all ranks of the lowest rank that failed."""
    try:
        yield
    except CheckpointError:
        raise
    except (Exception, CheckpointException) as error:
        rank, cause = "", error
        if isinstance(error, CheckpointException):
            number, (cause, _) = min(error.failures.items(), key=lambda failure: failure[0])
            rank = f" on rank {number}"
        if isinstance(cause, CheckpointError):
            raise cause from None
        text = " ".join(str(cause).split()) or type(cause).__name__
        raise CheckpointError(f"{doing} failed{rank}: {text}") from error

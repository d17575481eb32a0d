"""One run at a time writes into a folder. A second one is refused with the name of the first.

The system holds the lock for a process and frees it however the process ends, so that what a killed
run left behind is taken over. Where the file system or the system (Windows) knows no such locks, none
is held.
"""

import errno
import os
import socket
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from realrun.launch.folder import kept_from_others
from realrun.run.job import Job
from simlab.errors import InputError

LOCK = ".realrun.lock"
"""The name of the file that is locked, in each folder. It says who holds it."""
UNKNOWN = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
"""Errors of a file system that knows no locks."""


@contextmanager
def held(jobs: Sequence[Job]) -> Iterator[None]:
    """Hold the folders that `jobs` write into until the block ends. `InputError` if another run, or
    this process in another block, holds one of them, or if one cannot be made."""
    folders = {Path(job.out): "--out" for job in jobs}
    writing = [job for job in jobs if job.checkpoint_every]
    folders = {job.checkpoint_folder: "--checkpoints" for job in writing} | folders
    with ExitStack() as stack:
        for folder, option in sorted(folders.items()):
            stack.enter_context(_held(folder.absolute(), option))
        yield


@contextmanager
def _held(folder: Path, option: str) -> Iterator[None]:
    try:
        with kept_from_others():
            folder.mkdir(parents=True, exist_ok=True)
            file = _locked(folder, option)
    except OSError as error:
        raise InputError(
            f"cannot write {str(error.filename or folder)!r}: {error.strerror}; {option} names the folder"
        ) from error
    try:
        yield
    finally:
        (folder / LOCK).unlink(missing_ok=True)  # while it is held: the next one finds its own
        file.close()


def _locked(folder: Path, option: str) -> IO[str]:
    """The open file of `folder`, with the lock on it."""
    path = folder / LOCK
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            if not _lock(file):
                file.seek(0)
                holder = file.read(200).strip() or "another process"
                raise InputError(
                    f"another run writes into {str(folder)!r}: {holder}; wait for its end, or name "
                    f"another folder ({option})"
                )
            # the holder before may have removed the file after it was opened here
            if path.exists() and os.path.samestat(os.stat(path), os.fstat(file.fileno())):
                file.truncate(0)
                file.write(f"process {os.getpid()} on {socket.gethostname()} since {_now()}\n")
                file.flush()
                return file
        except BaseException:
            file.close()
            raise
        file.close()


def _lock(file: IO[str]) -> bool:
    """Lock `file`; False if somebody else has."""
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno in UNKNOWN
    return True


def _now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S")

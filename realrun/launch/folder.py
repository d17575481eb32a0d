"""The out folder of a job: made before anything runs, and cleared of an earlier run's files.

A mark in each folder names the files that a run writes there. Only files that a mark names are
ever removed; any other file stays, and if a run would write over it, the run is refused.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from errno import EISDIR
from pathlib import Path

from realrun.record.losses import LOSSES
from realrun.run.job import Job
from simlab.errors import InputError
from simlab.units import bytes_text

MARK = ".realrun.json"
"""The name of the mark."""
WRITER = "realrun"
SINGLE = (
    "program.csv",
    LOSSES,
    "predicted.json",
    "measured.json",
    "predicted-perfetto.json",
    "measured-perfetto.json",
    "timeline.png",
    "loss.png",
    "partial-gradient-check.json",
)
PARTIAL = "partial-[sw]*.json"
"""The names of partial traces: of steps and warm-up steps, which may be too many to be listed."""
RUN_NAMES = re.compile(
    r"rank[^/]*\.records|measured-step-[^/]*\.json|calibration(-\d+-stages)?\.json|report\.html"
    r"|partial-(step|warm-up)-\d+\.json|" + "|".join(map(re.escape, SINGLE))
)
"""Every name that a run writes. It reads records and steps back by their pattern, so that it would
take a stranger's file of such a name for a measurement."""


@contextmanager
def kept_from_others() -> Iterator[None]:
    """Inside, nothing that this process writes is everybody's to write."""
    before = os.umask(0o077)
    os.umask(before | 0o002)
    try:
        yield
    finally:
        os.umask(before)


def prepare(job: Job) -> None:
    """Make the out folder and the job's folders in it, without an earlier run's files, but for the losses of
    one that goes on.

    `InputError` if a folder cannot be written, if a file that no run wrote there is in the way, or
    if the disk has no room for the records.
    """
    with kept_from_others():
        _prepare(job)


def _prepare(job: Job) -> None:
    names = {Path(job.out): job.shared_files}
    kept = {LOSSES} if job.resume else set()  # a training that goes on adds to them
    try:
        for folder in (*names, *job.folders):
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        _check_room(job)
        names |= dict.fromkeys(job.folders, _run_files(job))
        earlier = {folder: _marked(folder) for folder in names}
        for folder, files in names.items():
            _refuse_strangers(folder, files, earlier[folder])
        for folder, files in names.items():
            for name in earlier[folder] - kept:
                (folder / name).unlink(missing_ok=True)
            if files:
                _write_mark(folder, files, job if folder in job.folders else None)
    except OSError as error:
        raise InputError(
            f"cannot write {str(error.filename or job.out)!r}: {error.strerror}; --out names the folder"
        ) from error


def _check_room(job: Job) -> None:
    """`InputError` if the job's records would fill more than half of what is free."""
    free_bytes = shutil.disk_usage(job.out).free
    if job.record_bytes > free_bytes / 2:
        raise InputError(
            f"the records of {job.recorded_steps} steps need {bytes_text(job.record_bytes)} of records, "
            f"{bytes_text(free_bytes)} are free in {job.out!r}: free some, or name another --out"
        )


def _run_files(job: Job) -> list[str]:
    """[name of each file that a run of `job` can write into the folder of a program or plan];
    `PARTIAL` stands for traces of any steps."""
    return [
        *SINGLE,
        *(f"rank{rank}.records" for rank in range(job.ranks)),
        *(f"measured-step-{step}.json" for step in job.kept_steps),
        PARTIAL,
    ]


def _marked(folder: Path) -> set[str]:
    """{name of each file that the mark in `folder` says a run wrote}; empty without a mark."""
    try:
        mark = json.loads((folder / MARK).read_text(encoding="utf-8"))
        if mark["written_by"] != WRITER:
            raise ValueError(f"written by {mark['written_by']!r}")
        partial = folder.glob(PARTIAL) if PARTIAL in mark["files"] else ()
        names = {*mark["files"], *(path.name for path in partial)}
        return {name for name in names if RUN_NAMES.fullmatch(name)}
    except FileNotFoundError:
        return set()
    except (ValueError, TypeError, KeyError) as error:
        raise _in_the_way(folder / MARK) from error


def _refuse_strangers(folder: Path, files: list[str], marked: set[str]) -> None:
    """`InputError` if a file is there that a run would write over or read back, and that no run
    wrote."""
    is_of_a_run = SINGLE[0] in files
    for path in sorted(folder.iterdir()):
        taken = RUN_NAMES.fullmatch(path.name) if is_of_a_run else path.name in files
        if path.name in marked or not taken:
            continue
        if path.is_dir():
            raise IsADirectoryError(EISDIR, os.strerror(EISDIR), str(path))
        raise _in_the_way(path)


def _in_the_way(path: Path) -> InputError:
    return InputError(
        f"{str(path)!r} is in the way, and no run here wrote it: move it, or name another --out"
    )


def _write_mark(folder: Path, files: list[str], job: Job | None) -> None:
    """job: what runs there, for `realrun show`."""
    mark = {
        "written_by": WRITER,
        "meaning": "the next run into this folder removes these files and no others",
        "files": sorted(files),
        **({"job": job.to_json()} if job else {}),
    }
    (folder / MARK).write_text(json.dumps(mark, indent=1) + "\n", encoding="utf-8")

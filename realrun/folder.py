"""The out folder of a job: made before anything runs, and cleared of what an earlier run left there."""

import shutil
import tempfile
from pathlib import Path

from simlab.errors import InputError
from simlab.units import bytes_text

WRITTEN = (
    "calibration*.json", "report.html", "program.csv", "*.records", "predicted.json", "measured.json", "measured-step-*.json",
    "partial-*.json", "timeline.png", "predicted-perfetto.json", "measured-perfetto.json",
)  # fmt: skip


def prepare(job):
    """Make the out folder and the job's folders in it, without an earlier run's files; `InputError` if that cannot be."""
    out = Path(job.out)
    for folder in (out, *job.folders):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for pattern in WRITTEN:
                for old in folder.glob(pattern):
                    old.unlink()
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            raise InputError(f"cannot write {str(error.filename or folder)!r}: {error.strerror}; --out names the folder") from error
    needed_bytes = job.record_bytes
    free_bytes = shutil.disk_usage(out).free
    if needed_bytes > free_bytes / 2:
        raise InputError(
            f"{1 + job.warmup + job.steps} steps need {bytes_text(needed_bytes)} of records, {bytes_text(free_bytes)} are free in "
            f"{str(out)!r}: fewer --steps"
        )

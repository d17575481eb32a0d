"""The file that `realrun measure` writes: a cluster, with the samples that it was fitted to."""

import json
import tempfile
from pathlib import Path

from realrun.launch.pool import RunError
from simlab.errors import InputError


def check_writable(path: str) -> None:
    """Refuse a path before anything is measured: `RunError` if no file can be written there,
    `InputError` if it would not be found as a cluster or if something else is there already."""
    if Path(path).suffix != ".json":
        raise InputError(
            f"--out {str(path)!r}: give a name that ends in .json, by which --cluster tells a file from a catalogue's name"
        )
    if Path(path).is_dir():
        raise RunError(f"cannot write {str(path)!r}: it is a folder")
    try:
        with tempfile.TemporaryFile(dir=Path(path).absolute().parent):
            pass
        written = Path(path).read_text(encoding="utf-8") if Path(path).exists() else None
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error
    except UnicodeDecodeError:
        written = ""
    if written is not None and not _is_measurement(written):
        raise InputError(
            f"{str(path)!r} is in the way, and `measure` did not write it: move it, or name another --out"
        )


def _is_measurement(text: str) -> bool:
    """Whether `text` is what this command writes: a cluster with the samples it was fitted to."""
    try:
        return isinstance(json.loads(text)["measured"]["samples"], list)
    except (ValueError, TypeError, KeyError):
        return False


def write(path: str, content: str) -> None:
    """`content` into `path`, all of it or nothing."""
    folder = Path(path).absolute().parent
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".measure-") as temporary:
            part = Path(temporary) / "cluster.json"
            part.write_text(content, encoding="utf-8")
            part.replace(path)
    except OSError as error:
        raise RunError(f"cannot write {str(path)!r}: {error.strerror}") from error

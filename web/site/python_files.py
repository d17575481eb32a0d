"""The files of Python that a page of the site loads: Pyodide's own, made smaller, and the wheel's."""

import gzip
import io
import shutil
import subprocess
import sys
import tempfile
import zipfile
from fnmatch import fnmatch
from importlib.metadata import files
from pathlib import Path

HERE = Path(__file__).parent
WEB, ROOT = HERE.parent, HERE.parents[1]
PYODIDE = WEB / "node_modules" / "pyodide"
BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
SOURCES = ("simlab", "realrun", "notebooks", "assets", "setup.py", "pyproject.toml", "README.md")
SOURCES += ("LICENSE", "MANIFEST.in")
# parts of Python's library that simlab does not import, or only for what a page does not do
LEFT_OUT = (HERE / "left_out.txt").read_text().split()

UNREAD = (
    "simlab/apps/*",
    "simlab/lessons/*",
    "simlab/cli/*",
    "simlab/diagnosis/*",
    "simlab/planner/formats/*",
    "simlab/studies/published/*.csv",
    "simlab/studies/published/*.json",
    "simlab/views/bundle/*",
    "simlab/views/interactive/*",
    "simlab/views/still/*",
)
"""Files of the wheel that no page reads, but for what the drill does (`DRILLS`)."""
DRILLS = ("simlab/lessons/*", "simlab/diagnosis/*", "simlab/planner/formats/*")
NOT_DRILLS = ("simlab/lessons/*.ipynb", "simlab/lessons/recorded/*", "simlab/lessons/teaching/*")


def compress(path: Path, data: bytes) -> int:
    """Write `data` to `path`, compressed; returns the compressed bytes."""
    small = gzip.compress(data, compresslevel=9, mtime=0)
    path.write_bytes(small)
    return len(small)


def library() -> bytes:
    """Python's library as Pyodide has it, without `LEFT_OUT`."""
    with zipfile.ZipFile(PYODIDE / "python_stdlib.zip") as whole:
        names = [
            name for name in whole.namelist() if name.split("/")[0].split(".")[0] not in LEFT_OUT
        ]
        return zipped({name: whole.read(name) for name in names})


def packages() -> tuple[bytes, bytes]:
    """The wheel's simlab and the installed simpy: what all pages need, without what only lessons, commands,
    files of others and published runs need; and what the drill needs besides."""
    with zipfile.ZipFile(io.BytesIO(wheel())) as whole:
        inside = [name for name in whole.namelist() if name.startswith("simlab/")]
        ours = [name for name in inside if not any(fnmatch(name, its) for its in UNREAD)]
        drills = [
            name
            for name in inside
            if any(fnmatch(name, its) for its in DRILLS)
            and not any(fnmatch(name, its) for its in NOT_DRILLS)
        ]
        first, lessons = ({name: whole.read(name) for name in names} for names in (ours, drills))
    lessons |= installed("markdown_it", "markdown-it-py") | installed("mdurl", "mdurl")
    with zipfile.ZipFile(PYODIDE / "python_stdlib.zip") as whole:
        lessons |= {name: whole.read(name) for name in whole.namelist() if "tomllib" in name}
    return zipped(first | installed("simpy", "simpy")), zipped(lessons)


def installed(package: str, distribution: str) -> dict[str, bytes]:
    """{path: content} of the Python files of an installed package."""
    return {
        path.as_posix(): path.read_binary()
        for path in files(distribution) or []
        if path.parts[0] == package and path.suffix in (".py", ".typed")
    }


def wheel() -> bytes:
    """The wheel, built from a copy, so that no old file slips in."""
    with tempfile.TemporaryDirectory() as name:
        copy = Path(name)
        for source in SOURCES:
            if (ROOT / source).is_dir():
                shutil.copytree(
                    ROOT / source, copy / source, ignore=shutil.ignore_patterns("__pycache__")
                )
            else:
                shutil.copy(ROOT / source, copy)
        command = [sys.executable, "-c", BUILD]
        done = subprocess.run(command, cwd=copy, capture_output=True, text=True, check=True)
        return (copy / "dist" / done.stdout.split()[-1]).read_bytes()


def zipped(content: dict[str, bytes]) -> bytes:
    """A zip file of {name: bytes}; nothing in it is compressed, for the whole will be."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as file:
        for name, data in sorted(content.items()):
            if not name.endswith("/"):
                file.writestr(zipfile.ZipInfo(name, (2020, 1, 1, 0, 0, 0)), data)
    return buffer.getvalue()

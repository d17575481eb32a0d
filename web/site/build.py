"""python web/site/build.py [FOLDER]: write the static page into FOLDER, by default build/site.

The page simulates in the browser with the same simlab as everywhere: Pyodide, simpy and the wheel's
simlab files lie beside it, compressed, and nothing is fetched from elsewhere when it is used. It
needs node, `npm ci` in web/, and an environment with simlab's packages and setuptools.
"""

import gzip
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.metadata import files
from pathlib import Path

HERE = Path(__file__).parent
WEB, ROOT = HERE.parent, HERE.parents[1]
PYODIDE = WEB / "node_modules" / "pyodide"
MADE_BY = ".made-by-simlab"  # a folder without it is not ours to empty
BUILD = "from setuptools.build_meta import build_wheel; print(build_wheel('dist'))"
SOURCES = ("simlab", "realrun", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")
# parts of Python's library that simlab does not import, or only for what a page does not do
LEFT_OUT = (HERE / "left_out.txt").read_text().split()


def main(folder: Path) -> None:
    """Write the page, and say how much its first visit loads."""
    empty(folder)
    python = folder / "python"
    python.mkdir()
    loaded = {
        "pyodide.asm.wasm": (PYODIDE / "pyodide.asm.wasm").read_bytes(),
        "python_stdlib.zip": library(),
        "packages.zip": packages(),
    }
    sizes = {name: compress(python / f"{name}.gz", data) for name, data in loaded.items()}
    shutil.copy(PYODIDE / "pyodide.asm.mjs", python)
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    (python / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}))
    for name in ("index.html", "style.css"):
        shutil.copy(HERE / name, folder)
    (folder / "recorded.json").write_text(json.dumps(recorded()), encoding="utf-8")
    command = ["node", WEB / "build.mjs", "--page", folder, json.dumps(sizes)]
    subprocess.run(command, check=True)
    total = sum(len(gzip.compress(path.read_bytes())) for path in folder.rglob("*.*"))
    print(f"{folder}: the first visit loads {total / 1e6:.1f} MB, compressed")


def empty(folder: Path) -> None:
    """An empty `folder`; one with files that this program did not make is refused."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MADE_BY).exists():
        sys.exit(f"{folder} has files that were not made here: give another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MADE_BY).touch()


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


def packages() -> bytes:
    """The wheel's simlab and the installed simpy."""
    with zipfile.ZipFile(io.BytesIO(wheel())) as whole:
        ours = [name for name in whole.namelist() if name.startswith("simlab/")]
        content = {name: whole.read(name) for name in ours}
    for path in files("simpy") or []:
        if path.parts[0] == "simpy" and path.suffix in (".py", ".typed"):
            content[path.as_posix()] = path.read_binary()
    return zipped(content)


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


def recorded() -> dict[str, object]:
    """The answer that the page shows until it can simulate, and the schedules to choose from."""
    from simlab.views import page

    request = json.loads((HERE / "start.json").read_text(encoding="utf-8"))
    return {"schedules": page.schedules(), "answer": page.recorded(page.pipeline(request))}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site")

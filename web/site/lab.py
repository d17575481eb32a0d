"""The lessons as notebooks that run in the browser: JupyterLite with the Pyodide of npm, the wheels of
PyPI that `lab/packages.txt` names, and simlab and realrun. Nothing is fetched when it is used.

Neither PyPI nor npm has matplotlib and numpy for Pyodide. The lessons that compute with numpy are left
out; for matplotlib `lab/recorded_pictures.py` stands in.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any

import nbformat
from lessons import Lesson, chinese_name
from python_files import PYODIDE, wheel, zipped
from shell import HERE, Shell
from wheels import downloaded, installed

LAB = HERE / "lab"
FOLDER = "jupyterlite"
KERNEL = Path("share/jupyter/labextensions/@jupyterlite/pyodide-kernel-extension")
KERNELS_WHEELS = ("ipykernel", "piplite", "pyodide_kernel", "widgetsnbextension-4")
PYODIDE_FILES = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip")
FIRST_CELL = """\
# Python in this browser has no matplotlib and no torch. Cells that draw show their recorded picture,
# cells that execute show what was recorded of them; everything else is computed here.
import recorded_pictures"""
APP = {
    "appName": "simlab",
    "exposeAppInBrowser": True,  # for the tests
    "disabledExtensions": ["@jupyterlab/apputils-extension:announcements"],
}


def write(shell: Shell, lessons: list[Lesson]) -> None:
    """Write JupyterLite into `FOLDER`, and the page that leads to its notebooks."""
    page = "notebooks/index.html"
    shell.write(shell.page(page), shell.render(f"pages/{page}", lessons=lessons))
    with tempfile.TemporaryDirectory() as name:
        source = Path(name)
        packages = _python(source / "static" / "pyodide", lessons)
        _notebooks(source / "files", [lesson for lesson in lessons if lesson.runs])
        _configure(source, packages)
        _build(source, shell.folder / FOLDER)


def jupyterlite() -> Path:
    """The folder with JupyterLite and its kernel."""
    return installed(LAB / "jupyterlite.txt")


def _python(folder: Path, lessons: Iterable[Lesson]) -> list[str]:
    """Write Pyodide with all wheels into `folder`; returns the names of the packages."""
    folder.mkdir(parents=True)
    for name in PYODIDE_FILES:
        shutil.copy(PYODIDE / name, folder)
    for path in downloaded(LAB / "packages.txt").glob("*.whl"):
        shutil.copy(path, folder)
    for name in KERNELS_WHEELS:
        (path,) = (jupyterlite() / KERNEL / "static" / "pypi").glob(f"{name}*.whl")
        shutil.copy(path, folder)
    (folder / "simlab_realrun-0-py3-none-any.whl").write_bytes(wheel())
    (folder / "recorded_pictures-0-py3-none-any.whl").write_bytes(_recorded(lessons))
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    packages = {entry["name"]: entry for entry in map(_entry, sorted(folder.glob("*.whl")))}
    (folder / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": packages}))
    return list(packages)


def _entry(path: Path) -> dict[str, Any]:
    """What Pyodide's lock file says of a wheel."""
    with zipfile.ZipFile(path) as file:
        metadata = next(name for name in file.namelist() if name.endswith(".dist-info/METADATA"))
        lines = file.read(metadata).decode().splitlines()
    name, version = (
        next(line.removeprefix(key) for line in lines if line.startswith(key))
        for key in ("Name: ", "Version: ")
    )
    return {
        "name": name.lower().replace("_", "-"),
        "version": version,
        "file_name": path.name,
        "install_dir": "site",
        "sha256": sha256(path.read_bytes()).hexdigest(),
        "package_type": "package",
        "imports": [],
        "depends": [],
        "unvendored_tests": False,
    }


def _recorded(lessons: Iterable[Lesson]) -> bytes:
    """A wheel of `recorded_pictures` with the pictures of each cell: {sha256 of its text: [{language:
    path}]}."""
    pictures: dict[str, list[dict[str, str]]] = {}
    for lesson in lessons:
        shown = iter(lesson.pictures)
        for cell in nbformat.read(lesson.notebook, as_version=4).cells:
            outputs = [output.get("data", {}) for output in cell.get("outputs", ())]
            key = sha256(cell.source.strip().encode()).hexdigest()
            pictures[key] = [
                {"en": f"lessons/{name}", "zh": f"lessons/{chinese_name(name)}"}
                for name in islice(shown, sum("image/png" in data for data in outputs))
            ]
    about = "recorded_pictures-0.dist-info"
    content = {
        "recorded_pictures.py": (LAB / "recorded_pictures.py").read_bytes(),
        "recorded_pictures.json": json.dumps(pictures).encode(),
        f"{about}/METADATA": b"Metadata-Version: 2.1\nName: recorded-pictures\nVersion: 0\n",
        f"{about}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/RECORD": b"",
    }
    return zipped(content)


def _notebooks(folder: Path, lessons: Iterable[Lesson]) -> None:
    """Write the notebooks of `lessons`, without outputs."""
    (folder / "notebooks").mkdir(parents=True)
    for lesson in lessons:
        notebook = nbformat.read(lesson.notebook, as_version=4)
        for cell in notebook.cells:
            if cell.cell_type == "code":
                cell.outputs, cell.execution_count = [], None
        # instead of the one that installs
        notebook.cells[1] = nbformat.v4.new_code_cell(FIRST_CELL, id="in-the-browser")
        nbformat.write(notebook, folder / "notebooks" / lesson.notebook.name)


def _configure(source: Path, packages: list[str]) -> None:
    """Tell JupyterLite to take Pyodide and all packages from its own folder."""
    kernel = {
        "pyodideUrl": "./static/pyodide/pyodide.mjs",
        "disablePyPIFallback": True,
        "loadPyodideOptions": {"packages": packages},
    }
    plugins = {"@jupyterlite/pyodide-kernel-extension:kernel": kernel}
    config = {"jupyter-lite-schema-version": 0}
    config["jupyter-config-data"] = {**APP, "litePluginSettings": plugins}
    (source / "jupyter-lite.json").write_text(json.dumps(config))
    build = {"federated_extensions": [str(jupyterlite() / KERNEL)]}
    (source / "jupyter_lite_config.json").write_text(json.dumps({"LiteBuildConfig": build}))


def _build(source: Path, folder: Path) -> None:
    command = [sys.executable, "-m", "jupyterlite_core", "build", "--no-sourcemaps", "--apps=lab"]
    command += [f"--lite-dir={source}", f"--contents={source / 'files'}", f"--output-dir={folder}"]
    path = os.pathsep.join(filter(None, (str(jupyterlite()), os.environ.get("PYTHONPATH"))))
    environment = os.environ | {"PYTHONPATH": path}
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, env=environment)
    if done.returncode:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])

"""Packages of PyPI that do not belong into the environment, at the versions of requirements.lock, in
folders of build/; each is made once.

python web/site/wheels.py FILE downloads the packages that FILE names as wheels for Pyodide, and
prints their folder.
"""

import shutil
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).parents[2]
LOCK = ROOT / "requirements.lock"
PYODIDE = ["--python-version=3.14", "--implementation=cp", "--abi=cp314", "--abi=none"]
PYODIDE += ["--platform=pyemscripten_2026_0_wasm32", "--platform=any", "--only-binary=:all:"]


def downloaded(names: Path) -> Path:
    """The folder with the wheels for Pyodide of the packages in `names`."""
    return _made(names, ["download", *PYODIDE, "--dest"])


def installed(names: Path) -> Path:
    """The folder with the packages in `names`, to be put on a path of modules."""
    return _made(names, ["install", "--target"])


def _made(names: Path, command: list[str]) -> Path:
    version = sha256(names.read_bytes() + LOCK.read_bytes()).hexdigest()[:12]
    folder = ROOT / "build" / "packages" / f"{names.stem}-{version}"
    if not folder.exists():
        parts = folder.with_suffix(".part")
        shutil.rmtree(parts, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", *command, parts, "--quiet", "--no-deps"]
        subprocess.run([*pip, f"--requirement={names}", f"--constraint={LOCK}"], check=True)
        parts.rename(folder)
    return folder


if __name__ == "__main__":
    print(downloaded(Path(sys.argv[1])))

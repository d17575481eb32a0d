"""python web/site/build.py [FOLDER]: write the static page into FOLDER, by default build/site.

The page simulates in the browser with the same simlab as everywhere: Pyodide, simpy and the wheel's
simlab files lie beside it, compressed, and nothing is fetched from elsewhere when it is used. It
needs node, `npm ci` in web/, and an environment with simlab's packages and those of its extra `site`.
"""

import gzip
import json
import shutil
import subprocess
import sys
from pathlib import Path

import explorers
import lab
import lessons
import offline
import questions
from python_files import PYODIDE, ROOT, WEB, compress, library, packages
from shell import Shell

HERE = Path(__file__).parent
MADE_BY = ".made-by-simlab"  # a folder without it is not ours to empty


def main(folder: Path) -> None:
    """Write the page, and say how much its first visit loads."""
    folder = folder.resolve()  # the tools that write parts of it work in folders of their own
    empty(folder)
    python = folder / "python"
    python.mkdir()
    first, drill = packages()
    loaded = {
        "pyodide.asm.wasm": (PYODIDE / "pyodide.asm.wasm").read_bytes(),
        "python_stdlib.zip": library(),
        "packages.zip": first,
        "../questions/lessons.zip": drill,
    }
    (folder / questions.FOLDER).mkdir()
    sizes = {name: compress(python / f"{name}.gz", data) for name, data in loaded.items()}
    shutil.copy(PYODIDE / "pyodide.asm.mjs", python)
    lock = json.loads((PYODIDE / "pyodide-lock.json").read_text())
    (python / "pyodide-lock.json").write_text(json.dumps({**lock, "packages": {}}))
    shutil.copy(HERE / "style.css", folder)
    shell = Shell(folder)
    written = lessons.write(shell)
    lab.write(shell, written)
    count = questions.write(shell, written)
    shell.write(shell.pages[0], shell.render("pages/index.html", questions=count))
    explorers.write(shell)
    alone = {"path": "offline.html", "en": "No network", "zh": "没有网络"}
    shell.write(alone, shell.render("pages/offline.html"))
    (folder / "recorded.json").write_text(json.dumps(recorded()), encoding="utf-8")
    command = ["node", WEB / "build.mjs", "--page", folder, json.dumps(sizes)]
    subprocess.run(command, check=True)
    offline.write(folder)
    print(f"{folder}: the first visit loads {first_visit_bytes(folder) / 1e6:.1f} MB, compressed")


def first_visit_bytes(folder: Path) -> int:
    """The compressed bytes of the landing page and of what it loads."""
    paths = [path for part in (folder, folder / "python") for path in part.glob("*.*")]
    return sum(len(gzip.compress(path.read_bytes())) for path in paths)


def empty(folder: Path) -> None:
    """An empty `folder`; one with files that this program did not make is refused."""
    if folder.exists() and any(folder.iterdir()) and not (folder / MADE_BY).exists():
        sys.exit(f"{folder} has files that were not made here: give another folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    (folder / MADE_BY).touch()


def recorded() -> dict[str, object]:
    """The answer that the page shows until it can simulate, and the schedules to choose from."""
    from simlab.views import page

    request = json.loads((HERE / "start.json").read_text(encoding="utf-8"))
    return {"schedules": page.schedules(), "answer": page.recorded(page.pipeline(request))}


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "site")

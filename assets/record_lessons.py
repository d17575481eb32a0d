"""python assets/record_lessons.py NOTEBOOK ...: execute lessons, and keep what their processes
answer under assets/recorded.

That is what the lessons show where torch is not installed. The notebooks themselves are left as
they are. Run by `make record`.
"""

import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

ASKS, RECORDS = "RECORD = False", "RECORD = True"


def main(paths):
    """Execute each notebook of `paths` that asks for it, recording; what was recorded before is
    replaced when all of it has run."""
    for path in paths:
        notebook = nbformat.read(path, as_version=4)
        if not any(ASKS in cell.source for cell in notebook.cells):
            continue
        lesson = f"lesson-{int(path.name[:2])}"
        with tempfile.TemporaryDirectory() as temporary:
            for cell in notebook.cells:
                cell.source = cell.source.replace(ASKS, RECORDS).replace(
                    f'"{lesson}"', repr(temporary)
                )
            NotebookClient(
                notebook, timeout=600, resources={"metadata": {"path": str(path.parent)}}
            ).execute()
            if not any(Path(temporary).iterdir()):
                raise SystemExit(
                    f"{path} recorded nothing: does it give {lesson!r} to its LessonPool?"
                )
            kept = Path(__file__).parent / "recorded" / lesson
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(temporary, kept)


if __name__ == "__main__":
    main([Path(name) for name in sys.argv[1:]])

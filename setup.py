"""What pyproject.toml cannot say: the wheel brings the lessons, without what their cells have shown,
and what was recorded of their runs."""

import json
import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithLessons(build_py):
    """Builds the packages, and puts the lessons where `simlab.lessons` looks for them."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:  # they are found in the checkout
            return
        lessons = Path(self.build_lib, "simlab", "lessons")
        shutil.copytree("assets/recorded", lessons / "recorded", dirs_exist_ok=True)
        (lessons / "notebooks").mkdir(exist_ok=True)
        for path in Path("notebooks").glob("*.ipynb"):
            notebook = json.loads(path.read_text(encoding="utf-8"))
            for cell in notebook["cells"]:
                if cell["cell_type"] == "code":
                    cell |= {"outputs": [], "execution_count": None}
            text = json.dumps(notebook, ensure_ascii=False)
            (lessons / "notebooks" / path.name).write_text(text, encoding="utf-8")


setup(cmdclass={"build_py": WithLessons})

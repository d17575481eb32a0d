"""What tests read of a notebook's code."""

import json
import re

from simlab.lessons import NOTEBOOKS

MAGIC = re.compile(r"^(\s*)%\w+ .*", re.MULTILINE)
"""A line of IPython, which is none of Python."""


def python_of(cell):
    """The source of a cell of code, without what IPython alone understands."""
    return MAGIC.sub(r"\1pass", "".join(cell["source"]))


def stubs():
    """{exercise: the source of the cell that a lesson leaves to be written}"""
    return {
        tag[2:]: "".join(cell["source"])
        for path in sorted(NOTEBOOKS.glob("*.ipynb"))
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        for tag in cell["metadata"].get("tags", ())
        if tag.startswith("e:")
    }

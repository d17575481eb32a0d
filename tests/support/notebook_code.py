"""What tests read of a notebook's code."""

import re

MAGIC = re.compile(r"^(\s*)%\w+ .*", re.MULTILINE)
"""A line of IPython, which is none of Python."""


def python_of(cell):
    """The source of a cell of code, without what IPython alone understands."""
    return MAGIC.sub(r"\1pass", "".join(cell["source"]))

"""The streams that a command prints to. Whatever it says can be said there."""

import codecs
import os
import sys
from io import TextIOWrapper
from pathlib import Path

SPELT = {
    "µ": "u", "→": "->", "←": "<-", "×": "x", "·": "*", "−": "-", "–": "-", "—": "-", "…": "...",
    "‖": "||", "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "“": '"', "”": '"', "’": "'",
}  # fmt: skip
"""How a character is written where an encoding lacks it; any other is written as its escape."""
ERRORS = "simlab.spelt"


def _spelt(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    lacking = error.object[error.start : error.end]
    escaped = (
        SPELT.get(one) or one.encode("ascii", "backslashreplace").decode() for one in lacking
    )
    return "".join(escaped), error.end


def open_streams() -> None:
    """Let stdout and stderr take any text, whatever their encoding (PYTHONIOENCODING, a terminal of
    Windows); one that is closed loses what is printed."""
    codecs.register_error(ERRORS, _spelt)
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed
            # to the end of the process
            setattr(sys, name, Path(os.devnull).open("w", encoding="utf-8", errors=ERRORS))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=ERRORS)


def end_stdout() -> None:
    """Let what was not written go to nowhere, when Python flushes it at its exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())

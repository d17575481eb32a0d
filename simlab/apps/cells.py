"""What the lessons' cells say and tabulate: Markdown below a cell, in the learner's language."""

from collections.abc import Sequence
from typing import Any

from simlab.apps.screen import MARKDOWN, show
from simlab.lessons.phrases import phrase, report_in
from simlab.units import GIB


def say(text: str) -> None:
    """Show `text`, Markdown in English, below the cell, in the learner's language as far as the
    files of words have it (`simlab.lessons.phrases`)."""
    show(lambda: phrase(text), MARKDOWN)


def report(text: str) -> None:
    """Show `text`, a report of several lines in English, as it is set, each line as `say` does."""
    show(lambda: f"```text\n{report_in(text)}\n```", MARKDOWN)


def ms(*seconds: float) -> list[str]:
    """["20 ms", ...] of `seconds`."""
    return [f"{value * 1e3:.0f} ms" for value in seconds]


def gib(*sizes: float) -> list[str]:
    """["1.5 GiB", ...] of bytes."""
    return [f"{size / GIB:,.1f} GiB" for size in sizes]


def percent(*shares: float) -> list[str]:
    """["12.5%", ...] of fractions."""
    texts = (f"{round(share, 9):.1%}" for share in shares)
    return ["0.0%" if text == "-0.0%" else text for text in texts]


def table(head: Sequence[str], *rows: Sequence[Any]) -> None:
    """Show a table: a row of column names and rows of cells. Those in English are shown in the
    learner's language, as `say` does."""
    lines = [list(map(str, line)) for line in (head, *rows)]

    def text() -> str:
        names, *others = (list(map(phrase, line)) for line in lines)
        shown = (names, ["---"] * len(names), *others)
        return "\n".join("| " + " | ".join(line) + " |" for line in shown)

    show(text, MARKDOWN)

"""What the lessons' cells say and tabulate: Markdown below a cell."""

from collections.abc import Sequence
from typing import Any

from IPython.display import Markdown, display

from simlab.units import GIB


def say(text: str) -> None:
    """Show `text`, Markdown, below the cell."""
    display(Markdown(text))


def ms(*seconds: float) -> list[str]:
    """["20 ms", ...] of `seconds`."""
    return [f"{value * 1e3:.0f} ms" for value in seconds]


def gib(*sizes: float) -> list[str]:
    """["1.5 GiB", ...] of bytes."""
    return [f"{size / GIB:,.1f} GiB" for size in sizes]


def percent(*shares: float) -> list[str]:
    """["12.5%", ...] of fractions."""
    return [f"{round(share, 9):.1%}" for share in shares]


def table(head: Sequence[str], *rows: Sequence[Any]) -> None:
    """Show a table: a row of column names and rows of cells."""
    lines = (head, ["---"] * len(head), *rows)
    say("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))

"""What the lessons' cells say and tabulate: Markdown below a cell."""

from IPython.display import Markdown, display

from simlab.units import GIB


def say(text):
    """Show `text`, Markdown, below the cell."""
    display(Markdown(text))


def ms(*seconds):
    """["20 ms", ...] of `seconds`."""
    return [f"{value * 1e3:.0f} ms" for value in seconds]


def gib(*sizes):
    """["1.5 GiB", ...] of bytes."""
    return [f"{size / GIB:,.1f} GiB" for size in sizes]


def percent(*shares):
    """["12.5%", ...] of fractions."""
    return [f"{round(share, 9):.1%}" for share in shares]


def table(head, *rows):
    """Show a table: a row of column names and rows of cells."""
    lines = (head, ["---"] * len(head), *rows)
    say("\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines))

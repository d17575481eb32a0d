"""What commands print and write: JSON objects, tables, progress, files."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, TypeVar

from simlab.errors import InputError

T = TypeVar("T")
COLUMNS = 80
"""The width that text is fitted to."""
ROW = re.compile(r"\S {2,}(?=\S)")
"""Where a column of a table begins."""


def print_json(result: Mapping[str, Any]) -> None:
    """Print `result` as one JSON object on stdout; a number that is not finite becomes null."""
    print(json.dumps(_finite(result), allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(part) for part in value]
    is_infinite = isinstance(value, float) and value - value != 0
    return None if is_infinite else value


def print_text(text: str) -> None:
    """Print `text`; a line of more than 80 columns, or than a narrower terminal has, goes on below its
    second column, or where it has none two columns further in than it begins. A row of three columns or
    more may be as wide as the terminal. What no text can hold is written as its escape."""
    terminal = terminal_columns() or COLUMNS
    columns = min(COLUMNS, terminal)
    print(
        "\n".join(
            _fitted(line, terminal if len(ROW.findall(line)) > 1 else columns)
            for line in printable(text).splitlines()
        )
    )


def printable(text: str) -> str:
    """`text`, where each half of a surrogate pair, which JSON can say and UTF-8 cannot, is written as
    its escape."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _fitted(line: str, columns: int) -> str:
    if len(line) <= columns or not line.strip():
        return line
    gap = re.search(r"\S {2,}", line)
    begins = len(line) - len(line.lstrip())
    indent = gap.end() if gap and gap.end() < columns // 2 else begins + 2
    return fill(
        line,
        columns,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def print_table(
    head: Sequence[str],
    rows: Iterable[Sequence[str]],
    spare: Sequence[str] = (),
    columns: int | None = None,
) -> None:
    """Print a table: the first column to the left, the others to the right. On a terminal that is
    too narrow for it, columns are left out and named: those of `spare` first, then the last ones.
    columns: the width where there is no terminal; None: any."""
    table = [list(head), *(list(map(str, row)) for row in rows)]
    terminal = terminal_columns()
    width = terminal or columns
    order = [*spare, *(name for name in reversed(head[1:]) if name not in spare)]
    left_out: list[str] = []
    while width and len(table[0]) > 1 and _width(table) > width:
        at = table[0].index(next(name for name in order if name in table[0]))
        left_out.append(table[0][at])
        table = [line[:at] + line[at + 1 :] for line in table]
    print(table_text(table[0], table[1:]))
    if names := [name for name in left_out if name]:
        what = "this terminal is" if terminal else "text is"
        print_text(f"Left out, as {what} {width} columns wide: {', '.join(names)}")


def _width(table: Sequence[Sequence[str]]) -> int:
    return max(len(line) for line in table_text(table[0], table[1:]).splitlines())


def terminal_columns() -> int | None:
    """How wide stdout is: as the variable COLUMNS says, or the terminal that it is; None: neither."""
    said = os.environ.get("COLUMNS", "")
    is_said = said.isascii() and said.isdecimal() and int(said) > 0
    return shutil.get_terminal_size().columns if is_said or sys.stdout.isatty() else None


def table_text(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The table as plain text."""
    widths = [max(map(len, column)) for column in zip(head, *rows)]
    lines = [
        "  ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])]).rstrip()
        for line in (head, *rows)
    ]
    return "\n".join(lines)


def progress(items: Sequence[T], what: str) -> Iterable[T]:
    """`items`, one after the other, with a bar on stderr where that is a terminal."""
    if not sys.stderr.isatty():
        return items
    try:
        from rich.console import Console
        from rich.progress import track
    except ImportError:
        return items
    return track(items, description=what, console=Console(stderr=True), transient=True)


def write_picture(path: str, write: Callable[[Path], Any]) -> None:
    """`write_file` of a picture, which is a PNG where `path` has no ending."""
    has_ending = bool(Path(path).suffix) or Path(path).is_dir()
    write_file(path if has_ending else f"{path}.png", write)


def refuse_existing(paths: Iterable[str | Path | None], force: bool) -> None:
    """`InputError` that names the first of `paths` at which there is a file, unless `force`. Devices and pipes,
    such as /dev/stdout, are written to."""
    there = (path for path in paths if path and Path(path).is_file())
    if not force and (path := next(there, None)) is not None:
        raise InputError(
            f"cannot write {str(path)!r}: it is there: give another name, or --force to overwrite it"
        )


def write_file(path: str, write: Callable[[Path], Any]) -> None:
    """Call `write` with `path` as a Path; `InputError` that quotes it if it cannot be written."""
    if Path(path).is_dir():
        raise InputError(f"cannot write {path!r}: it is a folder")
    try:
        write(Path(path))
    except (OSError, ValueError, ArithmeticError) as error:
        raise InputError(
            f"cannot write {path!r}: {getattr(error, 'strerror', None) or error}"
        ) from error
    print(f"wrote {path}", file=sys.stderr)

"""It reads the files that a user names. No file is read without a bound, and nothing is waited for:
a device or a named pipe, which may never end, is refused."""

import stat
from gzip import GzipFile
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import BinaryIO

from simlab.errors import InputError

MOST_BYTES = 1_000_000
"""The longest file of settings: a plan, a model's config.json, another project's."""
MOST_MEASURED_BYTES = 32_000_000
"""The longest cluster file, which may hold the samples that it was measured from."""
MOST_TABLE_BYTES = 64_000_000
"""The longest table: a program, or published runs."""
PIPES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
"""How the paths begin of what a shell hands over: `| simlab check /dev/stdin`, `<(command)`."""


def read_bytes(path: str | Path, most: int = MOST_BYTES) -> bytes:
    """The content of the file at `path`.

    `InputError`, which quotes the path, if it cannot be read, is no regular file and no pipe of a
    shell (`PIPES`), or has more than `most` bytes.
    """
    name = repr(str(path))
    if not str(path):
        raise InputError("cannot read '': give the path of a file")
    if "\0" in str(path):
        raise InputError(f"cannot read {name}: a path has no zero byte")
    try:
        mode = Path(path).stat().st_mode
        if stat.S_ISDIR(mode):
            raise InputError(f"cannot read {name}: Is a directory")
        if not stat.S_ISREG(mode) and not (
            str(path).startswith(PIPES) and (stat.S_ISFIFO(mode) or stat.S_ISCHR(mode))
        ):
            raise InputError(f"cannot read {name}: it is a device or a pipe: give a regular file")
        with Path(path).open("rb") as file:
            content = first_bytes(file, most + 1)
    except OSError as error:
        raise InputError(f"cannot read {name}: {error.strerror or error}") from error
    except MemoryError as error:
        raise InputError(f"cannot read {name}: there is no memory for all of it") from error
    if len(content) > most:
        raise InputError(f"{path} is longer than {most:,} bytes, the most that are read")
    return content


def first_bytes(file: BinaryIO | GzipFile, count: int) -> bytes:
    """The first `count` bytes of `file`, or all if it has fewer. Memory is taken as they come, where
    `file.read(count)` would take it for all of `count` at once."""
    parts, left = [], count
    while left and (part := file.read(min(left, 2**24))):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def read_text(
    path: str | Path,
    most: int = MOST_BYTES,
    *,
    encoding: str = "utf-8",
    newline: str | None = None,
) -> str:
    """The text of the file at `path`, as `open` with `encoding` and `newline` reads it.

    `InputError` as `read_bytes`, and if it is no text.
    """
    content = BytesIO(read_bytes(path, most))
    try:
        return TextIOWrapper(content, encoding=encoding, newline=newline).read()
    except UnicodeDecodeError as error:
        raise InputError(f"cannot read {str(path)!r}: it is no text ({error.reason})") from error

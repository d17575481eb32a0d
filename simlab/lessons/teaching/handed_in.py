"""It finds what learners have handed in. Their files are other people's: none is followed, trusted or
read without a bound, and what is wrong with one is a line that names it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from simlab.errors import InputError

MOST_FILES = 20_000
"""The most files of a folder that are looked at."""
READ = (".ipynb", ".py", ".json")
"""How files end that a command of a class reads."""
PACKED = (".zip", ".7z", ".rar", ".tar", ".gz", ".tgz", ".xz", ".bz2")
NOT_ENTERED = ("__pycache__", "__MACOSX", ".ipynb_checkpoints", ".git")


class Handed(NamedTuple):
    """A file that a learner has handed in: `who` is the first part of its path in the folder, and
    `name` the path as a line of text."""

    who: str
    name: str
    path: Path


def handed_in(folder: str | Path, endings: Sequence[str]) -> list[Handed]:
    """The files in `folder` that end as one of `endings`, sorted by learner.

    A file or a folder in it belongs to the learner of that name: alice.json, alice/progress.json, and
    as nbgrader has it alice/first/01_pipeline_bubbles.ipynb. `InputError` for what is no folder, or has
    more than `MOST_FILES` files.
    """
    top = Path(folder)
    if not top.is_dir():
        unpack = "unpack it first, and " if top.suffix == ".zip" else ""
        raise InputError(
            f"cannot read {str(folder)!r}: {unpack}give the folder of what was handed in"
        )
    found = []
    for count, path in enumerate(_walk(top)):
        if count >= MOST_FILES:
            raise InputError(
                f"{str(folder)!r} has more than {MOST_FILES:,} files: give a smaller folder"
            )
        if path.suffix in endings:
            parts = path.relative_to(top).parts
            who = parts[0] if len(parts) > 1 else path.stem
            found.append(Handed(one_line(who), one_line("/".join(parts)), path))
    return sorted(found)


def learners(folder: str | Path) -> dict[str, str]:
    """{learner: the name of the file or the folder} of all of `folder`, whatever is in it."""
    hidden = (".", "__MACOSX")
    entries = [path for path in Path(folder).iterdir() if not path.name.startswith(hidden)]
    return {one_line(path.name if path.is_dir() else path.stem): path.name for path in entries}


def without(folder: str | Path, endings: Sequence[str], found: Sequence[Handed]) -> dict[str, str]:
    """{a line: its learner} of each file that no command of a class reads, and of each learner of `folder` of
    whom nothing was found that ends as one of `endings`."""
    names, top, lines = learners(folder), Path(folder), dict[str, str]()
    named = " or ".join(endings)
    for path in _walk(top):
        parts = path.relative_to(top).parts
        if path.suffix not in READ and not path.name.startswith("."):
            said = "unpack it first" if path.suffix in PACKED else f"it does not end in {named}"
            who = parts[0] if len(parts) > 1 else path.stem
            lines[f"{one_line('/'.join(parts))}: {said}"] = one_line(who)
    for who in sorted(set(names) - {each.who for each in found} - {*lines.values()}):
        lines[f"{one_line(names[who])}: nothing that ends in {named} is in it"] = who
    return lines


def _walk(top: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(top):  # follows no links
        folders[:] = sorted(set(folders) - {*NOT_ENTERED})
        yield from (Path(folder) / name for name in sorted(names))


def own_file(path: Path) -> Path:
    """`path`; `InputError` for a link, which may lead anywhere."""
    if path.is_symlink():
        raise InputError("it is a link: hand in the file itself")
    return path


def one_line(text: str) -> str:
    """`text`, where whatever a terminal does not print is written as its escape."""
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def why(error: Exception) -> str:
    """What is wrong with a file, in one line."""
    said = one_line(str(error) or type(error).__name__)
    return said if len(said) <= 200 else f"{said[:200]} …"

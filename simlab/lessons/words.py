"""All words of the lessons, in English and Chinese: a file for each lesson and language, in which
every text has a key.

`word("b09.exercise.text")` is the text of that key in the learner's language: the environment
variable SIMLAB_LANG ("en" or "zh"), which `set_language` sets, or the locale's. Copies of the lessons
that are made for reading (SIMLAB_LESSONS=rendered) have both.
"""

import os
import tomllib
from functools import cache
from importlib.resources import files
from typing import Any

from simlab.errors import InputError

LANGUAGES = ("en", "zh")
LOCALE = ("LC_ALL", "LC_MESSAGES", "LANG")
"""Variables of the environment that say which language programs speak; the first that is set does."""


def rendered() -> bool:
    """Whether a copy for reading is made: nothing is held back, and texts are in both languages."""
    return os.environ.get("SIMLAB_LESSONS") == "rendered"


def shows_solutions() -> bool:
    """Whether exercises show their solutions: a class may work without (SIMLAB_SOLUTIONS=hidden)."""
    return os.environ.get("SIMLAB_SOLUTIONS") != "hidden"


def language() -> str:
    """The learner's language, "en" or "zh": SIMLAB_LANG, or Chinese in a Chinese locale, or English.
    `InputError` for another value of SIMLAB_LANG."""
    locale = next(filter(None, map(os.environ.get, LOCALE)), "")
    return _checked(os.environ.get("SIMLAB_LANG") or ("zh" if locale.startswith("zh") else "en"))


def set_language(name: str) -> None:
    """Choose the language, "en" or "zh", of this process and of those that it starts."""
    os.environ["SIMLAB_LANG"] = _checked(name)


def _checked(name: str) -> str:
    if name not in LANGUAGES:
        raise InputError(f"a language {name!r}: choose en (English) or zh (Chinese)")
    return name


@cache
def texts(name: str) -> dict[str, Any]:
    """All texts of a language as one nested table: {"b09": {"takeaway": …, "exercise": {…}}}."""
    table: dict[str, Any] = {}
    for path in sorted((files("simlab.lessons") / "words" / name).iterdir(), key=lambda p: p.name):
        for key, value in tomllib.loads(path.read_text(encoding="utf-8")).items():
            if key in table:
                raise InputError(f"{path.name} repeats the key {key!r} of another file")
            table[key] = value
    return table


def word(key: str, *, tongue: str | None = None, **values: Any) -> str:
    """The text of `key`, with {name} replaced by the value of that name where `values` are given.

    tongue: "en" or "zh"; None: the learner's language, or both in a copy that is made for reading.
    `InputError` for a key that is not there.
    """
    if tongue is None and rendered():
        both = [word(key, tongue=name, **values) for name in LANGUAGES]
        return " · ".join(dict.fromkeys(both))
    found = entry(key, tongue=tongue)
    if not isinstance(found, str):
        raise InputError(f"{key!r} is no text of the lessons")
    return found.format(**values) if values else found


def entry(key: str, *, tongue: str | None = None) -> Any:
    """What stands at `key`: a text, a list, or a table. `InputError` if there is nothing."""
    found: Any = texts(tongue or language())
    for part in _parts(key, found):
        if isinstance(found, list) and part.isdigit() and 1 <= int(part) <= len(found):
            found = found[int(part) - 1]
        elif isinstance(found, dict) and part in found:
            found = found[part]
        else:
            raise InputError(f"the lessons have no text {key!r} in {tongue or language()!r}")
    return found


def has(key: str) -> bool:
    """Whether there is something at `key` in the learner's language."""
    try:
        entry(key)
    except InputError:
        return False
    return True


def keys(tongue: str) -> list[str]:
    """The keys of all texts in a language, with lists counted from 1: "b09.exercise.hints.1"."""

    def under(prefix: str, value: Any) -> list[str]:
        if isinstance(value, dict):
            return [key for name, part in value.items() for key in under(f"{prefix}.{name}", part)]
        if isinstance(value, list):
            return [
                key for at, part in enumerate(value, 1) for key in under(f"{prefix}.{at}", part)
            ]
        return [prefix[1:]]

    return under("", texts(tongue))


def _parts(key: str, table: dict[str, Any]) -> list[str]:
    """The key's parts. A name of a field may hold dots, so the longest name that fits is taken."""
    parts, rest = [], key.split(".")
    found: Any = table
    while rest:
        for size in range(len(rest), 0, -1):
            name = ".".join(rest[:size])
            if isinstance(found, dict) and name in found:
                break
        else:
            size, name = 1, rest[0]
        parts.append(name)
        found = found.get(name) if isinstance(found, dict) else _at(found, name)
        rest = rest[size:]
    return parts


def _at(found: Any, name: str) -> Any:
    inside = isinstance(found, list) and name.isdigit() and 1 <= int(name) <= len(found)
    return found[int(name) - 1] if inside else None

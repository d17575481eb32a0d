"""Which options of other projects are known to be none of a plan, and which change what no plan says."""

import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any

from simlab.errors import did_you_mean


@dataclass(frozen=True)
class Known:
    """What is known of a project's options that are no field of a plan."""

    none: tuple[str, ...]
    """Names, and beginnings of names before a *, of options that change neither the time of a step
    nor its memory."""
    unsaid: Mapping[str, tuple[str, tuple[Any, ...]]]
    """{name: (what it changes, the values with which it changes nothing)}"""

    def is_none(self, option: str) -> bool:
        """Whether an option is known to be none of a plan."""
        return any(fnmatchcase(option, name) for name in self.none)

    def changes(self, option: str) -> str:
        """What an option changes that no plan says; '' for all others, and for a full name in `none`."""
        if option in self.none:
            return ""
        names = (name for name in self.unsaid if fnmatchcase(option, name))
        return self.unsaid[name][0] if (name := next(names, "")) else ""

    def is_off(self, option: str, value: Any) -> bool:
        """Whether such an option has a value with which it changes nothing."""
        (name, *_) = (name for name in self.unsaid if fnmatchcase(option, name))
        return value in (None, False, 0, "", "none", "auto", []) or value in self.unsaid[name][1]

    def nearest(self, option: str, asked: Iterable[str]) -> str:
        """', did you mean X?' of all options that are known."""
        names = [*asked, *self.unsaid, *(name for name in self.none if "*" not in name)]
        return did_you_mean(option, names)


@cache
def known_of(project: str) -> Known:
    """What is known of the options of a project, a name in `FORMATS`."""
    text = (files("simlab.planner.formats") / "known.toml").read_text(encoding="utf-8")
    its = tomllib.loads(text)[project]
    words = {
        name: (said, ()) if isinstance(said, str) else (said[0], tuple(said[1:]))
        for name, said in its["unsaid"].items()
    }
    return Known(tuple(name for names in its["none"] for name in names.split()), words)

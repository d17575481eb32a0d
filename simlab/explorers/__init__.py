"""Explorers consist of controls and of what these show, without widgets. `explorer(name)` finds one."""

from importlib import import_module

from simlab.errors import InputError, did_you_mean
from simlab.explorers.explorer import Explorer

NAMES = (
    "memory",
    "zero_grid",
    "collectives",
    "pipeline",
    "puzzle",
    "causal_mask",
    "ring",
    "plan",
    "challenge",
    "buckets",
    "context",
    "matrix_split",
)
"""Those that exist: each is the constant EXPLORER of the module of its name in this folder."""


def explorer(name: str) -> Explorer:
    """The explorer called `name`, one of NAMES; `InputError` for another."""
    if name not in NAMES:
        raise InputError(
            f"no explorer {name!r}{did_you_mean(name, NAMES)}: give {', '.join(NAMES)}"
        )
    found: Explorer = import_module(f"simlab.explorers.{name}").EXPLORER
    return found

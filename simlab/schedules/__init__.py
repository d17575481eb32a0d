"""Schedules: pure functions `(stages, microbatches) -> Program`, by the name used on the command line."""

from simlab.errors import InputError
from simlab.schedules.gpipe import gpipe
from simlab.schedules.one_f_one_b import one_f_one_b

SCHEDULES = {"gpipe": gpipe, "1f1b": one_f_one_b}
ALIASES = {"afab": "gpipe"}
LARGEST = 1_000_000  # stages x microbatches: beyond it a mistyped number would eat the machine's memory

__all__ = ["ALIASES", "SCHEDULES", "generate", "gpipe", "one_f_one_b"]


def generate(name, stages, microbatches):
    """The program of the schedule `name` for `stages` pipeline stages and `microbatches` microbatches.

    Raises `InputError` for an unknown name or a count below 1.
    """
    if (schedule := SCHEDULES.get(ALIASES.get(name, name))) is None:
        raise InputError(f"unknown schedule {name!r}; there is {', '.join(sorted([*SCHEDULES, *ALIASES]))}")
    for value, what in ((stages, "pipeline stages (pp)"), (microbatches, "microbatches")):
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{value!r} {what}: give a whole number of at least 1")
    if stages * microbatches > LARGEST:
        raise InputError(f"{stages} stages x {microbatches} microbatches is more than {LARGEST:,}: give fewer of either")
    return schedule(stages, microbatches)

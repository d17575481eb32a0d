"""It reads the fields of files that others wrote: one reader for each kind of field. Each raises
`InputError`, which names the field, quotes its value and says what would be valid."""

from typing import Any

from simlab.errors import MOST_WHOLE, InputError, number, shortened, whole

MOST_TIME = 1e18
"""The largest time, in the unit of its file. In microseconds it is 30,000 years. Sums and differences
of times up to it are exact enough, and never too large for a float."""


def whole_field(what: str, value: Any, least: int = 0) -> int:
    """The whole number in a field: not text, not a truth value."""
    if isinstance(value, float) and value.is_integer() and abs(value) <= MOST_WHOLE:
        value = int(value)
    if not whole(value, least):
        raise InputError(f"{what} = {shortened(value)}: give a whole number, at least {least}")
    return int(value)


def time_field(what: str, value: Any, least: float = -MOST_TIME) -> float:
    """The finite number of a time in a field."""
    if not number(value) or not least <= value <= MOST_TIME:
        at_least = f"at least {least:g} and " if least > -MOST_TIME else ""
        raise InputError(
            f"{what} = {shortened(value)}: give a finite number, {at_least}at most {MOST_TIME:g}"
        )
    return float(value)

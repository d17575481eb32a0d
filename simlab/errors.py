"""The errors a user can meet, and checks of values that raise them. Each message is one line that
quotes the value and says what would be valid."""

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from math import log10
from numbers import Real
from reprlib import Repr
from typing import Any

MOST_WHOLE = 10**15
"""The largest whole number that is accepted anywhere: more bytes or FLOPs than any GPU has."""


class SimlabError(Exception):
    """Base of every error that simlab and realrun raise on purpose."""

    status = 1
    """The exit status of a command that it ends."""


class InputError(SimlabError, ValueError):
    """A value from outside (argument, field, file) is not usable."""


class ProgramError(SimlabError):
    """A program breaks a rule. `rank` and `op` say where (None where no single op is to blame)."""

    def __init__(self, reason: str, *, rank: int | None = None, op: Any = None) -> None:
        super().__init__(reason)
        self.rank = rank
        self.op = op


class DeadlockError(ProgramError):
    """Ranks wait for each other in a circle. `waits` lists the circle (see `validation.Wait`), if
    ops are what waits."""

    def __init__(self, reason: str, *, waits: Sequence[Any] = ()) -> None:
        super().__init__(
            reason, rank=waits[0].rank if waits else None, op=waits[0].op if waits else None
        )
        self.waits = waits


def did_you_mean(name: Any, names: Iterable[str]) -> str:
    """', did you mean X?' if one of `names` is like the text `name`, else ''. All that begin with it or
    have it in them are named, those that begin with it first."""
    if not isinstance(name, str):
        return ""
    word, known = name.lower(), list(names)
    having = sorted(
        (its for its in known if word in its.lower()), key=lambda its: its.lower().find(word) > 0
    )
    same = [its for its in having if its.lower() == word]
    found = same or having * (len(word) > 1) or get_close_matches(word, known, n=1, cutoff=0.5)
    *others, last = map(repr, found or [""])
    return f", did you mean {' or '.join([', '.join(others)] * bool(others) + [last])}?" * bool(
        found
    )


def either(names: Iterable[str]) -> str:
    """'a' or 'b'."""
    return " or ".join(map(repr, names))


def near(value: int, total: int) -> str:
    """What to try instead of `value`, which should divide `total`."""
    divisors = [n for n in range(1, total + 1) if total % n == 0] if total <= 10**6 else []
    closest = sorted(sorted(divisors, key=lambda n: abs(n - value))[:3])
    return f"nearest that do: {', '.join(map(str, closest))}" if closest else "give a divisor"


MOST_LINE = 1900
"""Characters of an error's line."""


class _Short(Repr):
    """A `repr` that looks at the first few parts of a value only, so that it is quick and short
    even for a list that holds itself many times over."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlevel = 2

    def repr_int(self, value: int, level: int) -> str:
        digits = int((value.bit_length() - 1) * log10(2)) + 1 if value else 1
        digits += abs(value) >= 10**digits
        return repr(value) if digits <= 60 else f"a number of {digits} digits"


def shortened(value: Any) -> str:
    """`repr(value)` for a message, cut to about 60 characters."""
    text = _Short().repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def bounded(text: str) -> str:
    """`text`, without its middle if it is longer than `MOST_LINE` characters."""
    return text if len(text) <= MOST_LINE else f"{text[: MOST_LINE - 203]}...{text[-200:]}"


def number(value: Any) -> bool:
    """Whether `value` is a number that a float can hold, and not NaN. A truth value, which Python
    takes for a number, is none."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return float(value) == float(value)
    except OverflowError:
        return False


def whole(value: Any, least: int = 1) -> bool:
    """Whether `value` is a whole number, at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_whole(what: str, value: Any, least: int = 1) -> None:
    """`InputError` unless `value` is a whole number, at least `least`."""
    if not whole(value, least):
        raise InputError(f"{what} = {shortened(value)}: give a whole number, at least {least}")
    if value > MOST_WHOLE:
        raise InputError(f"{what} = {shortened(value)}: give at most {MOST_WHOLE:.0e}")


def require_positive(what: str, value: Any) -> None:
    """`InputError` unless `value` is a number above 0."""
    if not number(value) or not value > 0:
        raise InputError(f"{what} = {shortened(value)}: give a number above 0")


def require_between(what: str, value: Any, least: float, most: float) -> None:
    """`InputError` unless `value` is a number from `least` to `most`."""
    if not number(value) or not least <= value <= most:
        raise InputError(f"{what} = {shortened(value)}: give a number from {least:g} to {most:g}")


def require_amount(what: str, value: Any, unit: str = "") -> None:
    """`InputError` unless `value` is a finite number, 0 or more. unit: ' bytes', for the text."""
    if not number(value) or not 0 <= value < float("inf"):
        raise InputError(f"{what} = {shortened(value)}{unit}: give a finite number, 0 or more")


def require_index(what: str, value: Any, count: int) -> None:
    """`InputError` unless `value` is one of the numbers 0 to `count` - 1 of things that are called
    `what`."""
    if not whole(value, 0) or value >= count:
        raise InputError(f"{what} {shortened(value)}: there are {what}s 0 to {count - 1}")


def require_seconds(what: str, value: Any) -> None:
    """`InputError` unless `value` is a time."""
    if not number(value) or not 0 <= value < float("inf"):
        raise InputError(f"{what} = {shortened(value)}: give a finite number of seconds, 0 or more")


def require_source(what: str, value: Any) -> None:
    """`InputError` unless `value` says where figures are from."""
    if not value or not isinstance(value, str):
        raise InputError(
            f"{what}: no source (it is {shortened(value)}): say where the figures are from"
        )

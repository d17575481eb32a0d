"""The errors a user can meet, and checks of values that raise them. Each message is one line that quotes the value and says what would be
valid."""

from difflib import get_close_matches
from numbers import Real


class SimlabError(Exception):
    """Base of every error that simlab and realrun raise on purpose."""


class InputError(SimlabError, ValueError):
    """A value from outside (argument, field, file) is not usable."""


class ProgramError(SimlabError):
    """A program breaks a rule. `rank` and `op` say where (None where no single op is to blame)."""

    def __init__(self, reason, *, rank=None, op=None):
        super().__init__(reason)
        self.rank = rank
        self.op = op


class DeadlockError(ProgramError):
    """Ranks wait for each other in a circle. `waits` lists the circle (see `validation.Wait`), if ops are what waits."""

    def __init__(self, reason, *, waits=()):
        super().__init__(reason, rank=waits[0].rank if waits else None, op=waits[0].op if waits else None)
        self.waits = waits


def did_you_mean(name, names):
    """', did you mean X?' if one of `names` is like `name`, else ''."""
    found = get_close_matches(str(name).lower(), list(names), n=1, cutoff=0.5)
    return f", did you mean {found[0]!r}?" if found else ""


def number(value):
    """Whether `value` is a number, and not NaN (nor a truth value, which Python takes for one)."""
    return isinstance(value, Real) and not isinstance(value, bool) and value == value


def whole(value, least=1):
    """Whether `value` is a whole number, at least `least`."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def require_whole(what, value, least=1):
    """`InputError` unless `value` is a whole number, at least `least`."""
    if not whole(value, least):
        raise InputError(f"{what} = {value!r}: give a whole number, at least {least}")


def require_positive(what, value):
    """`InputError` unless `value` is a number above 0."""
    if not number(value) or not value > 0:
        raise InputError(f"{what} = {value!r}: give a number above 0")


def require_seconds(what, value):
    """`InputError` unless `value` is a time."""
    if not number(value) or not 0 <= value < float("inf"):
        raise InputError(f"{what} = {value!r}: give a finite number of seconds, 0 or more")


def require_source(what, value):
    """`InputError` unless `value` says where figures are from."""
    if not value or not isinstance(value, str):
        raise InputError(f"{what}: no source (it is {value!r}): say where the figures are from")

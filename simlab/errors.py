"""The errors a user can meet. Each message is one line that quotes the value and says what would be valid."""

from difflib import get_close_matches


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

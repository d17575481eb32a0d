"""The errors a user can meet. Each message is one line that quotes the value and says what would be valid."""


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
    """Ranks wait for each other in a circle. `waits` lists the circle (see `validation.Wait`)."""

    def __init__(self, reason, *, waits):
        super().__init__(reason, rank=waits[0].rank, op=waits[0].op)
        self.waits = waits

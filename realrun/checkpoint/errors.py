"""What goes wrong with checkpoints, in words that need no torch."""

from simlab.errors import InputError, SimlabError


class CheckpointError(SimlabError):
    """A checkpoint cannot be saved or must not be loaded."""


class NothingLeft(InputError):
    """The checkpoint to go on from has all the steps that are asked for."""

"""One measurement of a machine."""

from typing import NamedTuple


class Sample(NamedTuple):
    """One measurement."""

    kind: str
    """'matmul forward', 'attention backward', 'memory norm', 'all_reduce', 'p2p', 'host', 'layer
    forward', ..."""
    sizes: dict[str, int]
    """The numbers that, with the kind, say what was done."""
    seconds: float
    """The lower quartile of many rounds."""
    fitted: bool
    """Whether the fit may use it; the others are kept apart to hold the fit against."""

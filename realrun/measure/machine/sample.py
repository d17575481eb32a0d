"""One measurement of a machine."""

from typing import Literal, NamedTuple

Kind = Literal[
    "launch",
    "peak",
    "matmul",
    "attention",
    "memory",
    "layer",
    "host",
    "p2p",
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "all_to_all",
]


class Sample(NamedTuple):
    """One measurement."""

    kind: Kind
    """What was done."""
    variant: str
    """Which one: the 'forward' or 'weight' product of a layer, a 'copy' or a 'norm' of the memory,
    the precision of a peak; empty where there is only one."""
    sizes: dict[str, int]
    """The numbers that, with the kind and the variant, say what was done."""
    seconds: float
    """The lower quartile of many rounds."""
    fitted: bool
    """Whether the fit may use it; the others are kept apart to hold the fit against."""

    @property
    def label(self) -> str:
        """Kind and variant in words: 'matmul forward', 'p2p'."""
        return f"{self.kind} {self.variant}".rstrip()

"""What the forward of a unit keeps for its backward."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.layer.operation import Cut, Operation, Tensor


class Share(NamedTuple):
    """How many tokens a rank computes of a microbatch, and which part of their tensors it has."""

    tokens: float
    """Of its context-parallel part."""
    tp: int = 1
    sequence_parallel: bool = False
    routed: float = 0.0
    """Copies of tokens that its experts compute."""
    etp: int = 1

    def width(self, tensor: Tensor) -> float:
        """How many numbers of a tensor the rank has for each of its rows."""
        if tensor.cut in (Cut.HEADS, Cut.COLUMNS):
            return max(tensor.numbers / self.tp, tensor.least)
        return tensor.numbers / self.etp if tensor.cut is Cut.EXPERTS else tensor.numbers

    def numbers(self, tensor: Tensor) -> float:
        """How many numbers of a tensor the rank has."""
        rows = self.tokens
        if tensor.cut is Cut.TOKENS and self.sequence_parallel:
            rows /= self.tp
        elif tensor.cut in (Cut.COPIES, Cut.EXPERTS):
            rows = self.routed
        return rows * self.width(tensor)

    def size_bytes(self, tensor: Tensor, number_bytes: float) -> float:
        """The bytes of what the rank has of a tensor. number_bytes: of a number that has no size of
        its own."""
        return (tensor.number_bytes or number_bytes) * self.numbers(tensor)


def kept_tensors(operations: Sequence[Operation]) -> list[list[Tensor]]:
    """[what each operation saves] that none makes again before the backward and none before it saves,
    too."""
    again = {made.name for its in operations for made in its.again}
    known: set[Tensor] = set()
    found = []
    for its in operations:
        found.append([n for n in its.saves if n.name not in again and n not in known])
        known.update(its.saves)
    return found


def saved_bytes(
    operations: Sequence[Operation], share: Share, number_bytes: float
) -> dict[str, float]:
    """{tensors: bytes on a rank} of what a backward reads and no operation makes again before it,
    each tensor once. number_bytes: of a number that has no size of its own."""
    found: dict[str, float] = {}
    for tensors in kept_tensors(operations):
        for its in tensors:
            label = its.group or its.name
            found[label] = found.get(label, 0.0) + share.size_bytes(its, number_bytes)
    return found

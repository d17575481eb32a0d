"""Seconds of an op, by a walk over what it does: one compute stream, and one stream of
communication for each dimension.

A communication begins when it is told to and those before it in its dimension have ended. A wait
stands still until it has ended. A kernel beside a communication progresses at a part of its speed,
so slow-down and exposed communication never count the same second twice. `simlab.engine.play` has
the same rules for many ranks.
"""

from collections.abc import Iterable
from typing import NamedTuple

from simlab.lowering.pieces import BEGIN, COMPUTE, Piece

OVERLAP_SLOWDOWN = 0.15
"""The part of its speed that a kernel loses while a collective runs beside it: about the part of
the multiprocessors that NCCL's channels occupy (16 to 24 of 108 on an A100)."""

SLOWING = ("dp", "edp", "replicas", "tp", "cp", "ep")
"""The dimensions whose communication slows kernels. Messages to another stage and copies to the
host are left out: they move on copy engines, or on few channels."""


class Parts(NamedTuple):
    """Seconds of a piece of work by what they are spent on; those of communication only as far as
    nothing is computed meanwhile."""

    compute: float = 0.0
    """Kernels, with what communication beside them slows them by."""
    host: float = 0.0
    """The GPU waiting for the host to launch."""
    tp: float = 0.0
    cp: float = 0.0
    dp: float = 0.0
    """Gathering of ZeRO-3's parameters, scattering of ZeRO-2's and 3's gradients."""
    offload: float = 0.0
    """Copies to and from the host."""
    ep: float = 0.0
    """The all-to-alls of expert parallelism."""

    @property
    def total(self) -> float:
        """All of it, s."""
        return self[0] + self[1] + self[2] + self[3] + self[4] + self[5] + self[6]

    def plus(self, other: "Parts") -> "Parts":
        """The two, one after the other."""
        return Parts(*(mine + its for mine, its in zip(self, other)))

    def times(self, count: int) -> "Parts":
        """`count` of it, one after the other."""
        return Parts(*(part * count for part in self))


def beside_s(work_s: float, in_flight_s: float) -> float:
    """Seconds that kernels of `work_s` take while communication is in flight for the first
    `in_flight_s`."""
    if in_flight_s <= 0:
        return work_s
    slowed_s = work_s / (1 - OVERLAP_SLOWDOWN)
    return slowed_s if slowed_s <= in_flight_s else work_s + OVERLAP_SLOWDOWN * in_flight_s


def walk_unit(pieces: Iterable[Piece], seconds: Iterable[float], in_flight_s: float = 0.0) -> Parts:
    """`Parts` of a unit's `Piece`s that take so many `seconds` each, alone. in_flight_s: how long
    communication of data parallelism still goes on when it begins."""
    now_s, busy_until_s = 0.0, in_flight_s
    free_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    spent = {"compute": 0.0, "tp": 0.0, "cp": 0.0, "ep": 0.0}
    for piece, its_s in zip(pieces, seconds):
        dimension = piece.dimension
        if piece.action == COMPUTE:
            took_s = beside_s(its_s, busy_until_s - now_s)
            spent["compute"] += took_s
            now_s += took_s
        elif piece.action == BEGIN:
            end_s = max(free_s.get(dimension, 0.0), now_s) + its_s
            free_s[dimension] = ends_s[piece.name] = end_s
            busy_until_s = max(busy_until_s, end_s)
        else:
            end_s = ends_s.pop(piece.name)
            spent[dimension] += max(0.0, end_s - now_s)
            now_s = max(now_s, end_s)
    return Parts(**spent)

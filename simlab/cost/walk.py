"""Seconds of an op, by a walk over what it does: one compute stream, and one stream of
communication for each dimension.

A communication begins when it is told to and those before it in its dimension have ended. A wait
stands still until it has ended. What is computed beside a communication progresses at a part of its
speed, so slow-down and exposed communication never count the same second twice.
`simlab.engine.play` has the same rules for many ranks.
"""

from collections.abc import Iterable
from operator import add
from typing import NamedTuple

from simlab.lowering.pieces import BEGIN, COMPUTE, Piece
from simlab.spec.plan import Plan

SLOWING = ("dp", "edp", "replicas", "tp", "cp", "ep")
"""The dimensions whose communication slows kernels. Messages to another stage and copies to the
host are left out: they move on copy engines, or on few channels."""


def slows(dimension: str, kind: str, plan: Plan) -> bool:
    """Whether a communication of a `kind` slows what its ranks compute meanwhile.

    Tensor parallelism in pieces beside its own products is not NCCL's. Transformer Engine's
    userbuffers send by copy engines (`use_ce`) with one multiprocessor (`ring_exchange`), and
    gather with 2 to 8 (`bulk`); only reduce-scatters in 16 bits take 8 to 32 (`pipeline`;
    `userbuffers_bf16_...` and `userbuffers_fp8_...` in Megatron-Bridge@067f987d,
    src/megatron/bridge/training/comm_overlap.py). torch's asynchronous tensor parallelism copies by
    copy engines both ways (`_pipelined_produce_and_all2all` in
    torch/distributed/_symmetric_memory). Leaves out the first of the two reduce-scatters beside a
    weight gradient in 8 bits, which takes 24.
    """
    if dimension == "tp" and plan.tp_overlap == "pipelined":
        in_pieces = (
            kind == "all_gather" or plan.has_narrow_products or not plan.habits.has_flat_gradients
        )
        return not in_pieces
    return dimension in SLOWING


class Seconds(NamedTuple):
    """What one thing that a rank computes or communicates takes."""

    alone_s: float
    beside_s: float
    """While a collective runs beside it all the time: no more than twice as long. Of a communication
    the same as alone, or 0 if it slows nothing."""

    def times(self, factor: float) -> "Seconds":
        """`factor` of it."""
        return Seconds(factor * self.alone_s, factor * self.beside_s)

    def meeting_s(self, in_flight_s: float) -> float:
        """What it takes while communication is in flight for the first `in_flight_s`."""
        if in_flight_s <= 0:
            return self.alone_s
        if self.beside_s <= in_flight_s:
            return self.beside_s
        return self.alone_s + in_flight_s * (1 - self.alone_s / self.beside_s)


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
        return Parts._make(map(add, self, other))

    def times(self, count: int) -> "Parts":
        """`count` of it, one after the other."""
        return Parts._make([part * count for part in self])


def walk_unit(
    pieces: Iterable[Piece], seconds: Iterable[Seconds], in_flight_s: float = 0.0
) -> Parts:
    """`Parts` of a unit's `Piece`s that take so many `seconds` each. in_flight_s: how long
    communication of data parallelism still goes on when it begins."""
    now_s, busy_until_s = 0.0, in_flight_s
    later: list[tuple[float, float]] = []  # when what slows kernels begins and ends, in its order
    free_s: dict[str, float] = {}
    ends_s: dict[str, float] = {}
    spent = {"compute": 0.0, "tp": 0.0, "cp": 0.0, "ep": 0.0}
    for piece, its in zip(pieces, seconds):
        dimension = piece.dimension
        if piece.action == COMPUTE:
            left = 1.0
            while left > 0:
                while later and later[0][0] <= max(now_s, busy_until_s):
                    busy_until_s = max(busy_until_s, later.pop(0)[1])
                took_s = left * its.meeting_s((busy_until_s - now_s) / left)
                if later and now_s + took_s > later[0][0]:  # it is slowed again before it ends
                    left, took_s = _rest(its, left, busy_until_s - now_s, later[0][0] - now_s)
                else:
                    left = 0.0
                spent["compute"] += took_s
                now_s += took_s
        elif piece.action == BEGIN:
            start_s = max(free_s.get(dimension, 0.0), now_s)
            end_s = start_s + its.alone_s
            free_s[dimension] = ends_s[piece.name] = end_s
            if its.beside_s:
                later.append((start_s, end_s))
        else:
            end_s = ends_s.pop(piece.name)
            spent[dimension] += max(0.0, end_s - now_s)
            now_s = max(now_s, end_s)
    return Parts(**spent)


def _rest(its: Seconds, left: float, slowed_s: float, until_s: float) -> tuple[float, float]:
    """What is still left of a kernel of which so much was `left`, when it was slowed for `slowed_s`
    and ran alone until `until_s`; and `until_s`."""
    slowed_s = max(0.0, slowed_s)
    done = slowed_s / its.beside_s + (until_s - slowed_s) / its.alone_s
    return left - done, until_s

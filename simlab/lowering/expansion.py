"""What an op does in a unit, or two ops side by side in a unit each, as instructions."""

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise, zip_longest
from typing import TypeVar

from simlab.lowering.instruction import Halves, Instruction, Work
from simlab.lowering.pieces import COMPUTE, WAIT, Piece, unit_pieces
from simlab.spec.plan import Plan

T = TypeVar("T")
"""A unit of a model, or what is known of one."""


def alternating(first: Sequence[Piece], second: Sequence[Piece]) -> list[tuple[int, Piece]]:
    """[(0 or 1, a piece of the `first` or of the `second` op)] of two ops that one rank computes side
    by side: where one of them would wait for an all-to-all of expert parallelism, the other goes on.

    Of two layers, where a backward comes first, this is the order of Megatron-LM's
    `TransformerLayerSchedulePlan.run` (megatron/core/models/common/model_chunk_schedule_plan.py), and
    that of DualPipe (DeepSeek-AI 2024, arXiv 2412.19437, figure 4): each of the four all-to-alls runs
    beside attention or the experts of the other microbatch. An op without all-to-alls, of a dense layer, is one
    part here, which hides at most one of the other's; Megatron-LM cuts it between attention and MLP.
    """
    rounds = zip_longest(_up_to_waits(first), _up_to_waits(second), fillvalue=())
    return [(at, piece) for both in rounds for at, part in enumerate(both) for piece in part]


def in_turns(
    forward: Sequence[T], backward: Sequence[T], is_layer: Callable[[T], bool]
) -> Iterator[tuple[T | None, T | None]]:
    """(a unit of the `forward`, one of the `backward`) of two ops that go side by side, each in its own
    order: layer beside layer, as many as both have, and every other unit by itself, beside None.

    The head of the backward and the embedding of the forward come before, the forward's head and the
    backward's embedding after them.
    """
    starts = [
        next((at for at, unit in enumerate(units) if is_layer(unit)), 0)
        for units in (forward, backward)
    ]
    yield from ((None, unit) for unit in backward[: starts[1]])
    yield from ((unit, None) for unit in forward[: starts[0]])
    forward, backward = forward[starts[0] :], backward[starts[1] :]
    both = min(sum(map(is_layer, units)) for units in (forward, backward))
    yield from zip(forward[:both], backward[:both])
    yield from ((unit, None) for unit in forward[both:])
    yield from ((None, unit) for unit in backward[both:])


def _up_to_waits(pieces: Sequence[Piece]) -> Iterator[Sequence[Piece]]:
    """The parts of an op, each of which but the first begins with a wait for an all-to-all."""
    waits = [at for at, its in enumerate(pieces) if its.action == WAIT and its.dimension == "ep"]
    for start, end in pairwise([0, *waits, len(pieces)]):
        yield pieces[start:end]


def work_pieces(work: Work, plan: Plan, context_rank: int) -> list[tuple[int, Piece]]:
    """[(which half of a `work`, one of its pieces)]"""
    own = unit_pieces(work.unit.kernels, work.op.kind, plan, context_rank)
    if work.beside is None:
        return [(0, piece) for piece in own]
    other = unit_pieces(work.beside.unit.kernels, work.beside.op.kind, plan, context_rank)
    return alternating(own, other)


def expanded(
    pieces: Sequence[tuple[int, Piece]], work: Work, halves: Halves
) -> Iterator[Instruction]:
    """The instructions of a `work`, whose `work_pieces` these are. halves: those of the work."""
    row = tuple.__new__
    ops = [
        (str(its.op), its.unit.name, (*its.op, its.unit.name, its.unit.type, True, halves))
        for its in (work, work.beside)
        if its is not None
    ]
    for half, (action, name, kernels, dimension, kind, size_bytes, part) in pieces:
        text, unit, where = ops[half]
        label = unit if action == COMPUTE else f"{unit} {name}"
        fields = label, kernels, dimension, kind, size_bytes, None, part
        yield row(Instruction, (action, text, *fields, *where))

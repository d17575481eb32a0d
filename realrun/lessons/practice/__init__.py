"""Exercises that processes judge: a learner's function runs on every rank, and what comes out is
held against one process.

Each function here is given this rank's `Mesh`, the learner's text and plain values, and answers
with facts (`written.Facts`): a name or a number for each thing that is judged.
"""

import builtins
from collections.abc import Callable
from functools import cache, partial
from types import FunctionType
from typing import Any

import torch

from realrun.comm.mesh import Mesh
from realrun.lessons.practice import data, sequence, state, tensor, written
from realrun.lessons.practice.data import accumulation, weighted_mean
from realrun.lessons.practice.sequence import ring_backward
from realrun.lessons.practice.state import agreement, global_norm
from realrun.lessons.practice.tensor import column_row, row_layer, vocabulary_loss
from realrun.lessons.practice.written import WrittenError
from simlab.lessons.teaching.confined import confine

PRACTICE: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        weighted_mean,
        accumulation,
        column_row,
        row_layer,
        vocabulary_loss,
        global_norm,
        agreement,
        ring_backward,
    )
}


MOST_BYTES = 2**30
"""What a function that was handed in may take of memory on each rank, beside what the rank holds."""
_confine = cache(confine)  # once: it cannot be taken back


def _confined(function: Callable[..., Any], mesh: Mesh, text: str, **given: Any) -> Any:
    _confine(MOST_BYTES)
    before = _judge()
    facts = function(mesh, text, **given)
    after = _judge()
    if any(after.get(name) != its for name, its in before.items()):
        raise WrittenError("it changed what judges it")
    return facts


def _judge() -> dict[tuple[str, str], tuple[int, int]]:
    """What a verdict depends on: {(module, name): (what it is, its code)}."""
    return {
        (module.__name__, name): (id(its), id(its.__code__) if isinstance(its, FunctionType) else 0)
        for module in (data, sequence, state, tensor, written, torch, builtins)
        for name, its in vars(module).items()
    }


CONFINED: dict[str, Callable[..., Any]] = {
    name: partial(_confined, function) for name, function in PRACTICE.items()
}
"""The same for functions that were handed in: after them, the processes are of no other use."""

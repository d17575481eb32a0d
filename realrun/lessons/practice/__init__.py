"""Exercises that processes judge: a learner's function runs on every rank, and what comes out is
held against one process.

Each function here is given this rank's `Mesh`, the learner's text and plain values, and answers
with facts (`written.Facts`): a name or a number for each thing that is judged.
"""

from collections.abc import Callable
from typing import Any

from realrun.lessons.practice.data import accumulation, weighted_mean
from realrun.lessons.practice.sequence import ring_backward
from realrun.lessons.practice.state import agreement, global_norm
from realrun.lessons.practice.tensor import column_row, row_layer, vocabulary_loss

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

"""Small experiments that need several ranks and are no plan. A `Pool`'s processes can be asked for
them by name, see `realrun.lessons.execute.demonstrate`.

Each function is given this rank's `Mesh` of a plan and plain values, and answers with plain values.
All ranks call it together. Lessons show the text of these functions
(`realrun.lessons.lesson.source`), so they are short, and naive where the point is what the naive
form does.
"""

from collections.abc import Callable
from typing import Any

from realrun.lessons.demonstrations.collectives import all_reduces, messages, reached
from realrun.lessons.demonstrations.data_parallel import (
    accumulated,
    averaged,
    buckets,
    held_gradients,
    offloaded,
    worked,
)
from realrun.lessons.demonstrations.fsdp import fully_sharded
from realrun.lessons.demonstrations.gathers import gathered_and_freed
from realrun.lessons.demonstrations.loading import loaded
from realrun.lessons.demonstrations.mixed_precision import overflowed
from realrun.lessons.demonstrations.tensor_parallel import (
    clipped,
    split_heads,
    split_mlp,
    vocabulary,
)

DEMONSTRATIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        messages,
        all_reduces,
        averaged,
        accumulated,
        buckets,
        held_gradients,
        offloaded,
        worked,
        fully_sharded,
        gathered_and_freed,
        split_mlp,
        split_heads,
        vocabulary,
        reached,
        clipped,
        overflowed,
        loaded,
    )
}

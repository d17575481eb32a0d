"""The explorers of one kind of parallelism each, as widgets: they start, move and leave a still."""

import pytest

from simlab import InputError
from simlab.apps import BucketExplorer, CausalMask, ContextExplorer, MatrixSplit, ZeroGrid

MOVES = {
    ZeroGrid: {"zero": 3, "ranks": 4},
    MatrixSplit: {"tp": 8, "kv_heads": 2},
    CausalMask: {"cp": 8, "step": 7},
    BucketExplorer: {"bucket_mib": 500},
    ContextExplorer: {"tokens": 2**20},
}


@pytest.mark.parametrize("widget", MOVES)
def test_a_widget_shows_what_it_is_moved_to_and_leaves_a_picture_of_it(widget):
    moved = widget()
    before = moved.answer
    moved.state = moved.state | MOVES[widget]
    assert not moved.refused and moved.answer["pictures"] != before["pictures"]
    started = widget(**MOVES[widget])
    assert started.shown == moved.shown and repr(started) == repr(moved)
    data, _ = started._repr_mimebundle_()
    assert "image/png" in data


def test_a_control_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no control 'zro', did you mean 'zero'"):
        ZeroGrid(zro=1)

"""Explorers as widgets: they start, move and leave a still."""

from dataclasses import replace

import pytest

from simlab import InputError
from simlab.apps import (
    BucketExplorer,
    CausalMask,
    CollectiveExplorer,
    ContextExplorer,
    MatrixSplit,
    MemoryExplorer,
    PipelineExplorer,
    PlanExplorer,
    ZeroGrid,
)

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


@pytest.mark.parametrize(
    "widget", [*MOVES, CollectiveExplorer, MemoryExplorer, PipelineExplorer, PlanExplorer]
)
def test_output_has_a_still_picture_beside_the_widget(widget):
    data, _ = widget()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in data
    assert data["image/png"].startswith("iVBORw0KGgo")


def test_a_control_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="no control 'zro', did you mean 'zero'"):
        ZeroGrid(zro=1)


def test_a_mistake_in_an_answer_is_said_and_the_next_state_is_answered(monkeypatch, caplog):
    """The browser waits for an answer to each state; without one it would wait for ever."""
    widget = ZeroGrid()
    before, answer = widget.shown, widget._explorer.answer
    monkeypatch.setattr(widget, "_explorer", replace(widget._explorer, answer=lambda state: 1 / 0))
    count = widget.answer["count"]
    widget.state = widget.state | {"zero": 3}
    assert widget.answer["count"] == count + 1 and widget.shown is before
    mistake = "ZeroDivisionError: division by zero"
    assert widget.refused == (
        f"This state has no picture because of a mistake in simlab: {mistake}.",
        f"这个状态没有图，因为 simlab 有错误：{mistake}。",
    )
    assert widget.answer["refused"] == widget.refused._asdict()
    assert "zero_grid" in caplog.text and "Traceback" in caplog.text
    monkeypatch.setattr(widget, "_explorer", replace(widget._explorer, answer=answer))
    widget.state = widget.state | {"zero": 2}
    assert not widget.refused and widget.shown is not before

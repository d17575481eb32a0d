"""The memory explorer without a browser: what its answer draws is what the packages compute."""

from itertools import pairwise

import pytest

import simlab as sl
from simlab.apps import MemoryExplorer
from simlab.units import GIB

MOVES = [
    {"dp": 64},
    {"sharding": "zero1"},
    {"recipe": "fp32"},
    {"microbatch_size": 16},
    {"model": "gpt2-xl"},
    {"sharding": "ddp"},
    {"dp": 1},
]
STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}
LINES = ("plain DP", "ZeRO-1", "ZeRO-2", "ZeRO-3")


def marks(explorer, picture):
    """{English name: the mark} of one picture."""
    return {mark.name.en: mark for mark in explorer.shown.pictures[picture].marks}


def states(explorer, dp, zero):
    model = sl.load_model(explorer.state["model"])
    held = sl.model_states(model.parameters, dp, zero=zero, recipe=explorer.state["recipe"])
    return held.total / GIB


def check(explorer):
    state, curves = explorer.state, marks(explorer, 0)
    for stage, name in enumerate(LINES):
        assert list(curves[name].x) == [2**n for n in range(11)]
        expected = [states(explorer, dp, stage) for dp in curves[name].x]
        assert list(curves[name].y) == pytest.approx(expected)
    here = states(explorer, state["dp"], STAGES[state["sharding"]])
    assert curves["chosen"].x == [state["dp"]] and curves["chosen"].y == pytest.approx([here])
    options = {name: state[name] for name in ("microbatch_size", "sharding", "recipe")}
    memory = sl.data_parallel_memory(sl.load_model(state["model"]), state["dp"], **options)
    totals = [moment.total / GIB for moment in memory.moments]
    step = marks(explorer, 1)
    areas = [mark for mark in step.values() if hasattr(mark, "low")]
    assert list(areas[-1].high[:-1]) == pytest.approx(totals)
    assert all(above.low == below.high for below, above in pairwise(areas))
    peak = totals.index(max(totals))
    assert step["peak"].x == [peak + 0.5] and step["peak"].y == pytest.approx([max(totals)])
    assert step["peak"].labels[0].startswith(memory.moments[peak].op)
    capacity = sl.clusters()[state["cluster"]].gpu.memory_bytes / GIB
    over = [at for at, total in enumerate(totals) if total > capacity]
    assert step["the GPU's memory"].y == pytest.approx(capacity)
    assert ("first over it" in step) == bool(over)
    if over:
        assert step["first over it"].x == [over[0] + 0.5]
    assert ("does not fit" in explorer.shown.note.en) == bool(over)


def test_moving_controls_changes_the_answer_to_what_the_packages_say():
    explorer = MemoryExplorer()
    check(explorer)
    for move in MOVES:
        explorer.state = explorer.state | move
        check(explorer)
    assert repr(explorer) == (
        "MemoryExplorer(model='gpt2-xl', recipe='fp32', sharding='ddp', dp=1, microbatch_size=16)"
    )


def test_a_smaller_gpu_marks_where_the_step_first_passes_it():
    explorer = MemoryExplorer("megatron-1.7b", sharding="ddp", dp=1)
    assert explorer.shown.note.en == "The step fits."
    explorer.state = explorer.state | {"cluster": "dgx-v100"}
    check(explorer)
    assert "first over it" in marks(explorer, 1)


def test_every_model_of_the_menu_can_be_walked():
    explorer = MemoryExplorer()
    for name in explorer.about["controls"][0]["values"]:
        explorer.state = explorer.state | {"model": name}
        assert not explorer.refused
        check(explorer)

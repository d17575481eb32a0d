"""The memory explorer without a browser: a control's new value must show in the figure what the
packages compute."""

import plotly.graph_objects as go
import pytest

import simlab as sl
from simlab.apps import MemoryExplorer
from simlab.units import GIB

MOVES = [
    ("dp", 64),
    ("sharding", "zero1"),
    ("recipe", "fp32"),
    ("microbatch_size", 16),
    ("model", "gpt2-xl"),
    ("sharding", "ddp"),
    ("dp", 1),
]
STAGES = {"ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}


def items(explorer, what):
    """{second part of meta: the figure's item} of one kind."""
    return {item.meta[1]: item for item in explorer.picture.data if item.meta[0] == what}


def walked(explorer):
    model = sl.load_model(explorer.model.value)
    return sl.data_parallel_memory(
        model,
        explorer.dp.value,
        microbatch_size=explorer.microbatch_size.value,
        sharding=explorer.sharding.value,
        recipe=explorer.recipe.value,
    )


def check(explorer):
    model, recipe = sl.load_model(explorer.model.value), explorer.recipe.value
    for stage, line in items(explorer, "curve").items():
        assert list(line.x) == [2**n for n in range(11)]
        states = [
            sl.model_states(model.parameters, dp, zero=stage, recipe=recipe).total / GIB
            for dp in line.x
        ]
        assert list(line.y) == pytest.approx(states)
    here = items(explorer, "here")[0]
    zero = STAGES[explorer.sharding.value]
    assert list(here.x) == [explorer.dp.value]
    assert list(here.y) == pytest.approx(
        [sl.model_states(model.parameters, explorer.dp.value, zero=zero, recipe=recipe).total / GIB]
    )
    memory, areas = walked(explorer), items(explorer, "area")
    totals = [moment.total / GIB for moment in memory.moments]
    assert [sum(amounts) for amounts in zip(*(area.customdata for area in areas.values()))][
        ::2
    ] == pytest.approx(totals)
    assert list(areas["temporaries"].y)[::2] == pytest.approx(totals)  # the topmost line
    assert list(items(explorer, "peak")[0].text) == [memory.peak.op]
    assert list(items(explorer, "peak")[0].y) == pytest.approx([memory.peak.total / GIB])
    capacity_bytes = sl.clusters()[explorer.cluster.value].gpu.memory_bytes
    over = [moment.op for moment in memory.moments if moment.total > capacity_bytes]
    assert list(items(explorer, "breach")[0].text) == over[:1]
    assert ("does not fit" in explorer.text.value) == bool(over)
    assert (
        memory.peak.op in explorer.text.value
        and memory.peak.op in explorer.picture.layout.annotations[1].text
    )
    assert set(items(explorer, "limit")[0].y) == {capacity_bytes / GIB}


def test_moving_controls_changes_the_data_in_place_to_what_the_packages_say(monkeypatch):
    explorer = MemoryExplorer()
    picture, before = explorer.picture, list(explorer.picture.data)
    made = []
    monkeypatch.setattr(go.FigureWidget, "__init__", lambda *args, **kwargs: made.append(args))
    check(explorer)
    for name, value in MOVES:
        getattr(explorer, name).value = value
        check(explorer)
    assert (
        explorer.picture is picture
        and all(new is old for new, old in zip(picture.data, before, strict=True))
        and not made
    )


def test_a_smaller_gpu_marks_where_the_step_first_passes_it():
    explorer = MemoryExplorer("megatron-1.7b", sharding="ddp", dp=1)
    assert "<b>megatron-1.7b, ddp, dp = 1, recipe zero: fits</b>" in explorer.text.value
    explorer.cluster.value = "dgx-v100"
    check(explorer)
    assert "does not fit" in explorer.text.value and len(items(explorer, "breach")[0].x) == 1


def test_every_model_of_the_menu_can_be_walked():
    explorer = MemoryExplorer()
    for name in explorer.model.options:
        explorer.model.value = name
        assert name in explorer.text.value


def test_output_has_a_still_picture_beside_the_widget():
    bundle = MemoryExplorer()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/png"].startswith("iVBORw0KGgo")

"""The ring explorer: what its controls say is simulated, drawn, and told."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.apps import RingExplorer
from simlab.explorers.ring import traces
from simlab.units import MS


def moved(explorer, **values):
    explorer.state = explorer.state | values


def test_both_layouts_are_those_of_the_public_functions_and_drawn_span_by_span():
    explorer = RingExplorer()
    plan = sl.Plan(cp=4, seq=32_768)
    model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100", nodes=1)
    runs = [
        sl.ring_trace(model, replace(plan, cp_layout=layout), cluster)
        for layout in ("contiguous", "zigzag")
    ]
    ratio = f"{runs[0].step_s / runs[1].step_s:.2f}"
    assert f"takes {ratio} times as long" in explorer.shown.note.en
    for run, picture in zip(runs, explorer.shown.pictures):
        names = [f"rank {rank} {stream}" for rank in range(4) for stream in ("compute", "cp")]
        assert picture.y.names == names
        drawn = {mark.name.en: mark for mark in picture.marks}
        computed = [span for span in run.spans if span.stream == "compute"]
        forward = drawn["F forward"]
        assert sorted(forward.x0) == pytest.approx(sorted(span.start_s / MS for span in computed))
        assert sorted(forward.x1) == pytest.approx(sorted(span.end_s / MS for span in computed))
        assert len(drawn["ring message"].x0) == len(run.spans) - len(computed)
        idle = drawn.get("idle")
        waited = sum(b - a for a, b in zip(idle.x0, idle.x1)) if idle else 0
        busy = sum(span.end_s - span.start_s for span in computed) / MS
        assert waited + busy == pytest.approx(4 * run.end_s / MS)
        assert picture.x.most == pytest.approx(max(each.end_s for each in runs) / MS)


def test_over_the_network_a_short_sequence_waits_and_a_long_one_does_not():
    explorer = RingExplorer(tokens=4096)
    for tokens, waits in ((4096, True), (131_072, False)):
        steps = []
        for link in ("node", "network"):
            moved(explorer, tokens=tokens, link=link)
            steps.append(traces(explorer.state)[1].step_s)
        assert (steps[1] > 1.5 * steps[0]) == waits
        assert waits or steps[1] == steps[0]


def test_where_no_widget_lives_there_is_the_picture_of_both():
    explorer = RingExplorer(ranks=2)
    data, _ = explorer._repr_mimebundle_()
    assert data["image/png"].startswith("iVBORw0KGgo") and len(explorer.still().axes) == 2

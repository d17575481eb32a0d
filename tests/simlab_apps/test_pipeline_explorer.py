"""The explorer without a browser: a slider's new value must change the figure that is there, to what a simulation says."""

import html
import re

import plotly.graph_objects as go
import pytest

import simlab as sl
from simlab.apps import PipelineExplorer
from simlab.units import seconds_text
from simlab.views.canvas import CanvasTimeline
from simlab.views.interactive import figure

FORWARD_S = 0.02
MOVES = [("stages", 6), ("microbatches", 20), ("ratio", 1.0), ("link_ms", 5.0), ("stages", 1), ("microbatches", 1), ("stages", 8)]


def drawn(picture):
    """What `picture` shows, as plain values: bars (kind, rank, start, length) and lines of ranks that exist."""
    bars = [
        (number, item.name, list(item.y), list(item.base), list(item.x), list(item.text))
        for number, item in enumerate(picture.data)
        if item.type == "bar"
    ]
    lines = [(item.meta, list(item.x), list(item.y)) for item in picture.data if item.type == "scatter" and item.visible is not False]
    return bars, lines


def simulated(explorer):
    """A new, static figure of a simulation made here from the sliders' values."""
    times = sl.OpTimes(forward_s=FORWARD_S, backward_s=FORWARD_S * explorer.ratio.value)
    link = sl.Link(latency_s=explorer.link_ms.value / 1e3)
    programs = [sl.generate(name, explorer.stages.value, explorer.microbatches.value) for name in ("gpipe", "1f1b")]
    return figure([sl.simulate(program, times, link=link) for program in programs], ranks=8)


def table(explorer):
    """{schedule: [the figures in its row]}"""
    rows = re.findall(r"<tr><td><b>(.+?)</b></td>(.+?)</tr>", explorer.table.value)
    return {name: [html.unescape(cell) for cell in re.findall(r"<td>(.+?)</td>", cells)] for name, cells in rows}


def test_moving_sliders_changes_the_data_in_place(monkeypatch):
    explorer = PipelineExplorer()
    picture, items = explorer.picture, list(explorer.picture.data)
    made = []
    monkeypatch.setattr(go.FigureWidget, "__init__", lambda *args, **kwargs: made.append(args))
    assert drawn(picture) == drawn(simulated(explorer))
    for name, value in MOVES:
        before = drawn(picture)
        getattr(explorer, name).value = value
        assert explorer.picture is picture and explorer.children[1] is picture
        assert all(new is old for new, old in zip(picture.data, items, strict=True))
        assert drawn(picture) != before
        assert drawn(picture) == drawn(simulated(explorer))
    assert made == []


def test_titles_and_rows_follow_the_sliders():
    explorer = PipelineExplorer()
    explorer.stages.value = 3
    assert [note.text for note in explorer.picture.layout.annotations] == [note.text for note in simulated(explorer).layout.annotations]
    assert explorer.picture.layout.yaxis.range == (2.5, -0.5)
    assert explorer.picture.layout.yaxis.ticktext == ("rank 0", "rank 1", "rank 2")


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 32])
@pytest.mark.parametrize("ratio", [0.5, 2.0])
def test_table_shows_the_closed_forms(p, m, ratio):
    explorer = PipelineExplorer()
    explorer.stages.value, explorer.microbatches.value, explorer.ratio.value = p, m, ratio
    step = seconds_text((m + p - 1) * FORWARD_S * (1 + ratio))
    bubbles = [f"{(p - 1) / m + 1e-12:.3f}", f"{(p - 1) / (m + p - 1) + 1e-12:.3f}"]
    assert table(explorer) == {
        "gpipe": [step, *bubbles, f"{m} microbatches"],
        "1f1b": [step, *bubbles, f"{min(m, p)} microbatches"],
    }


def test_table_shows_that_transfers_cost_1f1b_more():
    explorer = PipelineExplorer(link_ms=5)
    assert [row[0] for row in table(explorer).values()] == ["690.0 ms", "740.0 ms"]


def test_output_has_a_still_picture_beside_the_widget():
    bundle = PipelineExplorer()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/png"].startswith("iVBORw0KGgo")


def test_above_two_thousand_ops_a_canvas_takes_over_and_below_the_figure_comes_back(monkeypatch):
    monkeypatch.setattr("simlab.views.MOST_PLOTLY_BOXES", 200)
    explorer = PipelineExplorer()
    figure_widget, counts = explorer.picture, {}
    for microbatches in (12, 13, 20, 8, 32):  # of two schedules on four stages: 16 ops per microbatch
        explorer.microbatches.value = microbatches
        many = 16 * microbatches > 200
        assert explorer.children[1] is explorer.picture and isinstance(explorer.picture, CanvasTimeline if many else go.FigureWidget)
        counts.setdefault(many, set()).add(id(explorer.picture))
        if many:
            assert [len(panel["kinds"]) for panel in explorer.picture.panels] == [8 * microbatches] * 2 and explorer.picture.room == 8
        else:
            assert explorer.picture is figure_widget and drawn(figure_widget) == drawn(simulated(explorer))
    assert [len(seen) for seen in counts.values()] == [1, 1]

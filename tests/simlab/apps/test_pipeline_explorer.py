"""The explorer without a browser: a slider's new value must change the picture that is there, to
what a simulation says."""

import html
import re

import pytest

import simlab as sl
from simlab.apps import PipelineExplorer
from simlab.units import seconds_text
from simlab.views.packing import panels

FORWARD_S = 0.02
MOVES = [
    ("stages", 6),
    ("microbatches", 20),
    ("ratio", 1.0),
    ("link_ms", 5.0),
    ("stages", 1),
    ("microbatches", 1),
    ("stages", 8),
]


def simulated(explorer):
    """The panels of a simulation made here from the sliders' values."""
    times = sl.OpTimes(forward_s=FORWARD_S, backward_s=FORWARD_S * explorer.ratio.value)
    link = sl.Link(latency_s=explorer.link_ms.value / 1e3)
    programs = [
        sl.generate(name, explorer.stages.value, explorer.microbatches.value)
        for name in ("gpipe", "1f1b")
    ]
    made = panels([sl.simulate(program, times, link=link) for program in programs])
    return [panel._asdict() for panel in made]


def table(explorer):
    """{schedule: [the figures in its row]}"""
    rows = re.findall(r"<tr><td><b>(.+?)</b></td>(.+?)</tr>", explorer.table.value)
    return {
        name: [html.unescape(cell) for cell in re.findall(r"<td>(.+?)</td>", cells)]
        for name, cells in rows
    }


def test_moving_sliders_changes_the_picture_in_place():
    explorer = PipelineExplorer()
    picture = explorer.picture
    assert picture.panels == simulated(explorer)
    for name, value in MOVES:
        before, serial = picture.panels, picture.serial
        getattr(explorer, name).value = value
        assert explorer.picture is picture and explorer.children[1] is picture
        assert picture.serial == serial + 1 and picture.panels != before
        assert picture.panels == simulated(explorer)


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

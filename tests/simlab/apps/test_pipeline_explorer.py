"""The explorer without a browser: what it answers for a state is what a simulation says."""

import pytest

import simlab as sl
from simlab.apps import PipelineExplorer
from simlab.units import seconds_text
from simlab.views.packing import panels

FORWARD_S = 0.02
MOVES = [
    {"stages": 6},
    {"microbatches": 20},
    {"backward_over_forward": 1},
    {"link_ms": 5},
    {"stages": 1},
    {"microbatches": 1},
    {"stages": 8},
]


def moved(explorer, **values):
    explorer.state = explorer.state | values


def drawn(explorer):
    (picture,) = explorer.shown.pictures
    return list(picture.panels)


def simulated(state, names=("gpipe", "1f1b")):
    """The panels of a simulation made here from the controls' values."""
    times = sl.OpTimes(forward_s=FORWARD_S, backward_s=FORWARD_S * state["backward_over_forward"])
    link = sl.Link(latency_s=state["link_ms"] / 1e3)
    programs = [sl.generate(name, state["stages"], state["microbatches"]) for name in names]
    return panels([sl.simulate(program, times, link=link) for program in programs])


def table(explorer):
    """{schedule: [its figures]}"""
    columns = zip(*(figure.values for figure in explorer.shown.figures))
    return dict(zip(explorer.shown.heads, map(list, columns), strict=True))


def test_moving_sliders_changes_what_is_drawn():
    explorer = PipelineExplorer()
    assert drawn(explorer) == simulated(explorer.state)
    for move in MOVES:
        before = drawn(explorer)
        moved(explorer, **move)
        assert drawn(explorer) == simulated(explorer.state) != before


@pytest.mark.parametrize("p", [1, 2, 4, 8])
@pytest.mark.parametrize("m", [1, 3, 8, 32])
@pytest.mark.parametrize("ratio", [0.5, 2])
def test_table_shows_the_closed_forms(p, m, ratio):
    explorer = PipelineExplorer(stages=p, microbatches=m, backward_over_forward=ratio)
    step = seconds_text((m + p - 1) * FORWARD_S * (1 + ratio))
    # the same as in the titles of the timelines: a percentage
    bubbles = [f"{(p - 1) / m + 1e-12:.1%}", f"{(p - 1) / (m + p - 1) + 1e-12:.1%}"]
    assert table(explorer) == {
        "gpipe": [step, *bubbles, f"{m}"],
        "1f1b": [step, *bubbles, f"{min(m, p)}"],
    }


def test_table_shows_that_transfers_cost_1f1b_more():
    explorer = PipelineExplorer(link_ms=5)
    assert [row[0] for row in table(explorer).values()] == ["690.0 ms", "740.0 ms"]


def test_a_menu_shows_another_schedule_with_op_kinds_that_were_not_there_before():
    explorer = PipelineExplorer(("gpipe", "1f1b"), choose=True)
    moved(explorer, second="zb-v")
    of_gpipe, of_zb_v = (panel.kinds.decode() for panel in drawn(explorer))
    assert (of_gpipe.count("B"), of_zb_v.count("B")) == (32, 0)
    assert of_zb_v.count("I") == of_zb_v.count("W") == 64
    assert drawn(explorer)[1].used == "FIW" and "zb-v" in table(explorer)
    assert repr(explorer) == "PipelineExplorer(choose=True, second='zb-v')"
    moved(explorer, second="none")
    assert [*table(explorer)] == ["gpipe"]


def test_without_a_choice_the_menus_are_hidden():
    hidden = PipelineExplorer(("zb-v",)).about["hidden"]
    assert "first" in hidden and "second" in hidden
    assert PipelineExplorer(choose=True).about["hidden"] == []


def test_numbers_that_a_schedule_cannot_do_are_said_and_the_picture_stays():
    explorer = PipelineExplorer(("gpipe", "dualpipe"), choose=True)
    before = explorer.shown
    moved(explorer, stages=3)
    assert "dualpipe on 3 ranks" in explorer.refused.en and explorer.shown is before
    moved(explorer, stages=2)
    assert not explorer.refused and "dualpipe" in table(explorer)
    with pytest.raises(sl.InputError, match="3 schedules: give one or two"):
        PipelineExplorer(("gpipe", "1f1b", "zb-v"))

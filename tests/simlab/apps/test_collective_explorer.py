"""The explorer without a browser: what it draws for a state is what the replayed rounds and the cost
model say."""

import re

import pytest

import simlab as sl
from simlab.apps import CollectiveExplorer
from simlab.explorers import explorer as explorer_called
from simlab.views.chart import Boxes


def moved(explorer, **values):
    explorer.state = explorer.state | values


def picture(explorer, key):
    (found,) = [each for each in explorer.shown.pictures if each.key == key]
    return found


def marks(explorer, key):
    """{English name: [marks of that name]} of one picture."""
    return {name.en: found for name, found in picture(explorer, key).legend()}


def cells(explorer):
    """{(rank, part): text} of the cells, those of frames left out."""
    boxes = [mark for mark in picture(explorer, "cells").marks if mark.labels]
    return {
        (round((mark.y0[at] + mark.y1[at]) / 2), round((mark.x0[at] + mark.x1[at]) / 2)): text
        for mark in boxes
        for at, text in enumerate(mark.labels)
    }


def framed(explorer, name):
    """The (rank, part) with a frame of that name."""
    (boxes,) = marks(explorer, "cells").get(name, [Boxes([], [], [], [], "ink")])
    return sorted((round(y + 0.5), round(x + 0.5)) for x, y in zip(boxes.x0, boxes.y0))


def held(algorithm, n, at):
    """{(rank, part): the number of contributions}, from the replay."""
    step = sl.replay(sl.all_reduce_rounds(algorithm, range(n), 1.0), range(n))[at]
    return {
        (row, column): len(content)
        for row, parts in enumerate(step.held.values())
        for column, content in enumerate(parts.values())
    }


def count(text, n):
    return n if text == "Σ" else len(text.split("+")) if n <= 4 else int(text)


def test_the_rounds_walk_from_each_ones_own_to_everything_in_place():
    explorer = CollectiveExplorer("ring", 4, step=0)
    assert explorer.about["play"] == "step"
    for at in range(7):
        moved(explorer, step=at)
        drawn = {cell: count(text, 4) for cell, text in cells(explorer).items()}
        assert drawn == held("ring", 4, at)
    assert list(explorer.shown.values["step"]) == [*range(7)]
    assert set(marks(explorer, "cells")) == {"frame: put in place in this round", "complete sum Σ"}


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "hierarchical", "star"])
@pytest.mark.parametrize("n", [2, 8, 16])
def test_every_choice_of_algorithm_and_ranks_shows_its_last_round_complete(algorithm, n):
    explorer = CollectiveExplorer(algorithm, n, step=30)
    assert set(cells(explorer).values()) == {"Σ"}
    assert dict.fromkeys(cells(explorer), n) == held(algorithm, n, -1)


def test_a_round_beyond_the_last_shows_the_last():
    explorer = CollectiveExplorer("tree", 8, step=14)
    assert explorer.shown.values["step"][-1] == 6
    assert explorer.shown.figures[0].values == ["6 / 6"]


def test_arrows_and_frames_are_the_rounds_transfers_and_hide_no_text():
    explorer = CollectiveExplorer("ring", 4, step=1)
    (arrows,) = marks(explorer, "circle")["added in this round"]
    assert len(arrows.x0) == 4
    assert arrows.tips[0].en == "0 → 1: part 0 (1.0 MiB), added"
    assert framed(explorer, "frame: added in this round") == [(0, 3), (1, 0), (2, 1), (3, 2)]
    assert framed(explorer, "frame: put in place in this round") == []
    drawn = picture(explorer, "cells").marks
    assert [bool(mark.labels) for mark in drawn] == [False, True, True]  # frames lie lowest
    moved(explorer, step=4)
    assert len(framed(explorer, "frame: put in place in this round")) == 4
    assert framed(explorer, "frame: added in this round") == []


def test_what_an_algorithm_cannot_do_is_said_and_the_pictures_stay():
    explorer = CollectiveExplorer("halving-doubling", 8)
    before = explorer.shown
    moved(explorer, ranks=6)
    assert "halving-doubling on 6 ranks" in explorer.refused.en and explorer.shown is before
    assert "6 个 rank 的 halving-doubling" in explorer.refused.zh
    assert explorer.answer["refused"] == explorer.refused._asdict()
    moved(explorer, algorithm="ring")
    assert not explorer.refused and len({rank for rank, _ in cells(explorer)}) == 6
    with pytest.raises(sl.InputError, match="6 ranks"):
        CollectiveExplorer("halving-doubling", 6)


@pytest.mark.parametrize(("cluster", "nodes"), [("dgx-a100", 16), ("dgx-h100", 1), ("dgx-v100", 4)])
def test_curves_are_the_cost_models_and_nccls_choice_is_marked(cluster, nodes):
    explorer = CollectiveExplorer(cluster=cluster, nodes=nodes)
    machine = sl.load_cluster(cluster, nodes=nodes)
    points = sl.all_reduce_curve(sl.GroupShape(8 * nodes, 8), machine)
    times, bandwidths = (marks(explorer, key) for key in ("time", "bandwidth"))
    assert set(times) == set(bandwidths) == {*points[0].times, "NCCL takes this"}
    for name in points[0].times:
        assert times[name][0].y == [1e3 * point.times[name].seconds for point in points]
        expected = [point.times[name].busbw_bytes_per_s / 1e9 for point in points]
        assert bandwidths[name][0].y == expected
    (taken,) = times["NCCL takes this"]
    assert taken.symbol == "ring" and taken.colour == "ink"
    assert sorted(taken.y) == sorted(1e3 * point.chosen.seconds for point in points)
    assert f"{nodes} × {cluster}" in picture(explorer, "time").title.en


@pytest.mark.parametrize("algorithm", ["ring", "tree", "hierarchical", "halving-doubling"])
def test_both_languages_name_the_same_parts(algorithm):
    explorer = explorer_called("collectives")
    note = explorer.answer(explorer.start(algorithm=algorithm)).note
    numbers = [re.findall(r"[\d.]+", text) for text in note]
    assert numbers[0] == numbers[1] != []

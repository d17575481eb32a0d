"""The explorer without a browser: what a slider's new value shows is what the replayed rounds and
the cost model say."""

import plotly.graph_objects as go
import pytest

import simlab as sl
from simlab.apps import CollectiveExplorer


def item(explorer, meta):
    """The one item of the picture with `meta`."""
    (found,) = [one for one in explorer.picture.data if one.meta == meta]
    return found


def shown(explorer):
    """[[contributions summed, as a fraction]], rank by rank."""
    return [list(row) for row in item(explorer, "cells").z]


def expected(algorithm, n, at):
    step = sl.replay(sl.all_reduce_rounds(algorithm, range(n), 1.0), range(n))[at]
    return [[len(content) / n for content in parts.values()] for parts in step.held.values()]


def test_the_rounds_slider_walks_from_each_ones_own_to_everything_in_place(monkeypatch):
    explorer = CollectiveExplorer("ring", 4, step=0)
    picture, made = explorer.picture, []
    monkeypatch.setattr(go.FigureWidget, "__init__", lambda *args, **kwargs: made.append(args))
    for at in range(7):
        explorer.round.value = at
        assert shown(explorer) == expected("ring", 4, at)
    assert explorer.round.max == 6 and shown(explorer) == [[1.0] * 4] * 4
    assert explorer.picture is picture and made == []
    assert (
        "round 6 of 6" in explorer.note.value
        and "16 of 16 sums are complete" in explorer.note.value
    )


@pytest.mark.parametrize("algorithm", ["ring", "tree", "halving-doubling", "hierarchical", "star"])
@pytest.mark.parametrize("n", [2, 8, 16])
def test_every_choice_of_algorithm_and_ranks_shows_its_last_round_complete(algorithm, n):
    explorer = CollectiveExplorer()
    explorer.algorithm.value, explorer.ranks.value = algorithm, n
    explorer.round.value = explorer.round.max
    assert shown(explorer) == expected(algorithm, n, -1)
    assert all(share == 1 for row in shown(explorer) for share in row)


def test_fewer_rounds_than_the_one_that_is_shown_go_to_the_last():
    explorer = CollectiveExplorer("ring", 8, step=14)
    explorer.algorithm.value = "tree"
    assert (explorer.round.max, explorer.round.value) == (6, 6)
    assert shown(explorer) == expected("tree", 8, 6)


def test_arrows_and_notes_are_the_rounds_transfers():
    explorer = CollectiveExplorer("ring", 4, step=1)
    arrows = item(explorer, "arrows")
    assert [(y[0], y[2]) for y in (arrows.y[at : at + 4] for at in range(0, 16, 4))] == [
        (0, 1),
        (1, 2),
        (2, 3),
        (3, 0),
    ]
    assert "0 → 1: part 0 (1.0 MiB), added" in explorer.note.value
    added, placed = (item(explorer, f"just arrived, {how}") for how in ("added", "put in place"))
    assert len(added.x) == 4 and len(placed.x) == 0
    explorer.round.value = 4
    assert (
        len(item(explorer, "just arrived, added").x) == 0
        and len(item(explorer, "just arrived, put in place").x) == 4
    )


def test_what_an_algorithm_cannot_do_is_said_and_the_picture_stays():
    explorer = CollectiveExplorer("halving-doubling", 8)
    before = shown(explorer)
    explorer.ranks.value = 6
    assert "halving-doubling on 6 ranks" in explorer.note.value and shown(explorer) == before
    explorer.algorithm.value = "ring"
    assert len(shown(explorer)) == 6


@pytest.mark.parametrize(("cluster", "nodes"), [("dgx-a100", 16), ("dgx-h100", 1), ("dgx-v100", 4)])
def test_curves_are_the_cost_models_and_nccls_choice_is_marked(cluster, nodes):
    explorer = CollectiveExplorer()
    explorer.cluster.value, explorer.nodes.value = cluster, nodes
    machine = sl.load_cluster(cluster, nodes=nodes)
    points = sl.all_reduce_curve(sl.GroupShape(8 * nodes, 8), machine)
    for name in ("ring", "tree", "nvls", "hierarchical"):
        line = item(explorer, (1, name))
        assert bool(line.visible) == (name in points[0].times)
        if line.visible:
            assert list(line.y) == [1e3 * point.times[name].seconds for point in points]
            assert list(item(explorer, (2, name)).y) == [
                point.times[name].busbw_bytes_per_s / 1e9 for point in points
            ]
    assert list(item(explorer, (1, "NCCL takes this")).y) == [
        1e3 * point.chosen.seconds for point in points
    ]
    assert f"{nodes} x {cluster}" in explorer.picture.layout.title.text


def test_output_has_a_still_picture_beside_the_widget():
    bundle = CollectiveExplorer()._repr_mimebundle_()
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert bundle["image/png"].startswith("iVBORw0KGgo")

"""All-reduce time against size: what NCCL takes is the fastest that it has."""

import pytest

import simlab as sl
from simlab.collectives.curves import choices


@pytest.mark.parametrize(("cluster", "nodes", "algorithms"), [
    ("dgx-a100", 1, {"ring"}), ("dgx-h100", 1, {"ring", "nvls"}), ("dgx-h100", 4, {"ring", "tree", "hierarchical"}),
])  # fmt: skip
def test_algorithms_that_can_be_are_there_and_the_choice_is_the_fastest_of_nccls(
    cluster, nodes, algorithms
):
    points = sl.all_reduce_curve(sl.GroupShape(8 * nodes, 8), sl.load_cluster(cluster, nodes=nodes))
    for point in points:
        assert set(point.times) == algorithms
        assert point.chosen.seconds == min(
            time.seconds for name, time in point.times.items() if name != "hierarchical"
        )
    assert [point.size_bytes for point in points] == sorted({point.size_bytes for point in points})


def test_choices_change_from_trees_to_rings_as_the_buffer_grows():
    names = [
        name.split()[0]
        for name, _ in choices(
            sl.all_reduce_curve(sl.GroupShape(128, 8), sl.load_cluster("dgx-h100", nodes=16))
        )
    ]
    assert list(dict.fromkeys(names)) == ["tree", "ring"]


def test_one_rank_is_refused():
    with pytest.raises(sl.InputError, match="1 rank moves nothing"):
        sl.all_reduce_curve(sl.GroupShape(1, 1), sl.load_cluster("dgx-a100"))


def test_a_group_that_does_not_fit_is_refused_as_everywhere():
    with pytest.raises(sl.InputError, match="dgx-a100 has 8 GPUs per node"):
        sl.all_reduce_curve(sl.GroupShape(16, 16), sl.load_cluster("dgx-a100"))

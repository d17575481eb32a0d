"""Ranks, coordinates and groups of a plan."""

from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab import InputError, Plan
from simlab.spec.layout import DIMENSIONS, GROUPS, Coordinates, Layout

degrees = st.integers(1, 4)
layouts = st.builds(
    Layout,
    dp=degrees, tp=degrees, pp=degrees, cp=degrees, order=st.sampled_from(list(permutations(DIMENSIONS))),
)  # fmt: skip


def counted(layout):
    """[{dimension: index} of each rank], by counting up as an odometer does, the first dimension of
    the order the fastest."""
    at, found = dict.fromkeys(layout.order, 0), []
    for _ in range(layout.dp * layout.tp * layout.pp * layout.cp):
        found.append(dict(at))
        for dimension in layout.order:
            at[dimension] += 1
            if at[dimension] < getattr(layout, dimension):
                break
            at[dimension] = 0
    return found


def alike(places, dimensions):
    """{(ranks that differ in `dimensions` only)}"""
    groups = {}
    for rank, place in enumerate(places):
        key = tuple(place[d] for d in DIMENSIONS if d not in dimensions)
        groups.setdefault(key, []).append(rank)
    return {tuple(ranks) for ranks in groups.values()}


@given(layouts)
def test_ranks_count_up_as_an_odometer_does(layout):
    assert [place._asdict() for place in layout.all_coordinates()] == counted(layout)
    for rank, place in enumerate(layout.all_coordinates()):
        assert layout.rank(**place._asdict()) == rank


@given(layouts)
def test_a_group_is_the_ranks_that_differ_in_its_dimensions_only(layout):
    for name, dimensions in {
        "tp": {"tp"}, "cp": {"cp"}, "pp": {"pp"}, "dp": {"dp", "cp"}, "shard": {"dp", "cp"},
    }.items():  # fmt: skip
        expected = alike(counted(layout), dimensions)
        assert layout.groups(name) == sorted(expected)
        for ranks in expected:
            assert all(layout.group(name, rank) == ranks for rank in ranks)
        assert layout.offsets(name) == layout.groups(name)[0]
    assert layout.groups("replicas") == [(rank,) for rank in range(layout.world_size)]


@given(layouts, st.data())
def test_shard_groups_part_the_data_parallel_group_and_replicas_hold_the_same_shard(layout, data):
    whole = layout.dp * layout.cp
    shards = data.draw(st.sampled_from([n for n in range(1, whole + 1) if whole % n == 0]))
    layout = Layout(
        **{d: getattr(layout, d) for d in DIMENSIONS}, order=layout.order, shards=shards
    )
    for rank in range(layout.world_size):
        shard, replicas = layout.group("shard", rank), layout.group("replicas", rank)
        assert (len(shard), len(replicas)) == (shards, whole // shards)
        assert set(shard) & set(replicas) == {rank}
        # the shard groups of the replicas are all of the data-parallel group, none of it twice
        assert sorted(sum((layout.group("shard", other) for other in replicas), ())) == list(
            layout.group("dp", rank)
        )
        assert shard in layout.groups("shard") and replicas in layout.groups("replicas")
        assert [layout.group("shard", r).index(r) for r in replicas] == [shard.index(rank)] * len(
            replicas
        )


@given(layouts, st.integers(1, 40))
def test_groups_are_in_nodes_if_each_is(layout, gpus_per_node):
    for name in GROUPS:
        each = [len({rank // gpus_per_node for rank in ranks}) for ranks in layout.groups(name)]
        assert layout.in_nodes(name, gpus_per_node) == (max(each) == 1)


@given(layouts)
def test_a_peer_differs_in_its_stage_only(layout):
    for rank, place in enumerate(layout.all_coordinates()):
        for pp in range(layout.pp):
            other = layout.peer(rank, pp)
            assert layout.coordinates(other) == place._replace(pp=pp)
            assert other in layout.group("pp", rank)


def test_a_plan_has_a_layout():
    plan = Plan(dp=2, tp=2, pp=2, cp=2, zero=3, hybrid=2, order="pp-tp-cp-dp")
    layout = plan.layout
    assert layout is plan.layout and layout.world_size == plan.gpus == 16
    assert layout.coordinates(1) == Coordinates(dp=0, cp=0, pp=1, tp=0)
    assert layout.group("dp", 1) == (1, 5, 9, 13) and layout.group("shard", 1) == (1, 5)
    assert layout.group("replicas", 1) == (1, 9)


def test_the_llama_3_layout_of_16384_gpus_is_quick_to_ask():
    plan = Plan(dp=128, tp=8, pp=16, schedule="1f1b")
    assert plan.layout.in_nodes("tp", 8) and not plan.layout.in_nodes("pp", 8)
    assert plan.layout.group("tp", 16383) == tuple(range(16376, 16384))


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda layout: layout.coordinates(8), "rank 8: there are ranks 0 to 7"),
        (lambda layout: layout.coordinates(-1), "rank -1: there are ranks 0 to 7"),
        (lambda layout: layout.rank(tp=2), "tp 2: there are tp 0 to 1"),
        (lambda layout: layout.peer(0, 4), "pp 4: there are pp 0 to 3"),
        (lambda layout: layout.group("replica", 0), "did you mean 'replicas'"),
        (lambda layout: layout.groups("etp"), "group 'etp'"),
        (lambda layout: Layout(order=("tp", "dp")), "order = 'tp-dp': give tp, cp, dp and pp once"),
    ],
)  # fmt: skip
def test_what_a_layout_does_not_have(ask, message):
    with pytest.raises(InputError, match=message):
        ask(Layout(tp=2, pp=4))


CUBE = """\
12 ranks: tp 2, cp 1, dp 3, pp 2 (tp varies fastest)

pp 0
      tp 0  tp 1
dp 0     0     1
dp 1     2     3
dp 2     4     5

pp 1
      tp 0  tp 1
dp 0     6     7
dp 1     8     9
dp 2    10    11"""


def test_a_layout_is_printed_as_a_cube():
    assert Layout(dp=3, tp=2, pp=2).cube() == CUBE
    assert (
        Layout(pp=2, order=("pp", "tp", "dp", "cp")).cube()
        == "2 ranks: pp 2, tp 1, dp 1, cp 1 (pp varies fastest)\n\n  pp 0  pp 1\n     0     1"
    )

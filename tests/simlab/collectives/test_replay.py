"""Collectives replayed: what every rank holds after each round, from the rounds alone."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.collectives import (
    ALL_REDUCE,
    Transfer,
    all_reduce_rounds,
    most_sent_bytes,
    replay,
)
from simlab.engine.network import Network, run_rounds
from simlab.errors import InputError
from simlab.spec.hardware import Link


@st.composite
def all_reduces(draw):
    """(algorithm, ranks, nodes) that can be; ranks in any order, of any numbers."""
    name = draw(st.sampled_from([*ALL_REDUCE, "hierarchical"]))
    nodes = draw(st.integers(1, 4))
    n = {
        "halving-doubling": st.integers(0, 4).map(lambda k: 2**k),
        "hierarchical": st.integers(1, 5).map(lambda each: each * nodes),
    }.get(name, st.integers(1, 17))
    count = draw(n)
    return (
        name,
        draw(st.lists(st.integers(0, 99), min_size=count, max_size=count, unique=True)),
        nodes,
    )


@given(all_reduces())
def test_every_all_reduce_ends_with_every_rank_holding_the_full_sum_of_everything(case):
    name, ranks, nodes = case
    steps = replay(all_reduce_rounds(name, ranks, 1.0, nodes=nodes), ranks)
    assert steps[-1].done
    assert all(
        content == set(ranks) for parts in steps[-1].held.values() for content in parts.values()
    )
    assert not any(step.done for step in steps[:-1]), "a last round that changes nothing"
    assert steps[0].done == (len(ranks) == 1)


@given(all_reduces())
def test_between_two_steps_only_what_was_sent_changes_and_what_stands_in_a_sum_was_held_by_somebody(
    case,
):
    name, ranks, nodes = case
    steps = replay(all_reduce_rounds(name, ranks, 1.0, nodes=nodes), ranks)
    for before, after in pairwise(steps):
        touched = {(t.destination, part) for t in after.transfers for part in t.parts}
        for rank, parts in after.held.items():
            for part, content in parts.items():
                if (rank, part) not in touched:
                    assert content == before.held[rank][part]
                assert rank in content


@given(all_reduces())
def test_nobody_sends_less_at_most_than_the_lower_bound(case):
    name, ranks, nodes = case
    n = len(ranks)
    most = most_sent_bytes(all_reduce_rounds(name, ranks, 1.0, nodes=nodes))
    assert most >= 2 * (n - 1) / n - 1e-12
    if name in ("ring", "halving-doubling", "hierarchical"):
        assert most == pytest.approx(2 * (n - 1) / n)
    if name == "star":
        assert most == n - 1


def test_a_ring_of_three_round_by_round():
    steps = replay(all_reduce_rounds("ring", range(3), 3.0), range(3))
    assert [step.complete for step in steps] == [
        {0: 0, 1: 0, 2: 0}, {0: 0, 1: 0, 2: 0}, {0: 1, 1: 1, 2: 1}, {0: 2, 1: 2, 2: 2}, {0: 3, 1: 3, 2: 3},
    ]  # fmt: skip
    assert steps[1].held[1] == {0: {0, 1}, 1: {1}, 2: {1}}
    assert (steps[1].sent_bytes(0), steps[0].sent_bytes(0)) == (1.0, 0)
    assert (steps[0].ranks, steps[0].parts) == ([0, 1, 2], [0, 1, 2])


def test_a_star_goes_through_the_roots_port():
    n, size, port = 8, 1e9, Link(bandwidth_bytes_per_s=1e10)
    links = {(rank, way): port for rank in range(n) for way in ("up", "down")}
    network = Network(links, lambda a, b: [(a, "up"), (b, "down")])
    took = run_rounds([all_reduce_rounds(name, range(n), size) for name in ("star",)], network)[0]
    assert took == pytest.approx(2 * (n - 1) * size / 1e10)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (
            lambda: replay([[Transfer(0, 1, 1.0, (0,), True)]] * 2, range(2)),
            "round 2: 0 → 1 adds part 0: rank 0 is in it already",
        ),
        (lambda: all_reduce_rounds("gossip", range(4), 1), "no all-reduce 'gossip'; there is ring"),
        (lambda: all_reduce_rounds("hierarchical", range(5), 1), "5 ranks on 2 nodes"),
    ],
)
def test_what_cannot_be_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call()

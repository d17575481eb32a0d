"""Collectives: every rank ends up with what it ought to have, in the time that the closed forms
say, and links are shared fairly."""

from math import ceil, log2

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.collectives import (
    ALL_REDUCE,
    all_to_all,
    broadcast,
    busbw_factor,
    closed_form_s,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_reduce_scatter,
)
from simlab.engine.network import Network, max_min_rates, run_rounds
from simlab.errors import InputError
from simlab.spec.hardware import Link

SIZE = 1e6
LATENCY_S, BANDWIDTH = 5e-6, 1e9
OWN = Network.of_pairs(Link(latency_s=LATENCY_S, bandwidth_bytes_per_s=BANDWIDTH))


def play(rounds, buffers):
    """Carry out `rounds` on {rank: {part: set of the ranks whose contribution is in it}}: all of a
    round happens at once."""
    for transfers in rounds:
        carried = [(t, {part: set(buffers[t.source][part]) for part in t.parts}) for t in transfers]
        for t, content in carried:
            for part, ranks in content.items():
                if t.adds:
                    assert not buffers[t.destination][part] & ranks, "a contribution is added twice"
                    buffers[t.destination][part] |= ranks
                else:
                    buffers[t.destination][part] = ranks
    return buffers


def own_buffers(n, parts):
    return {rank: {part: {rank} for part in parts} for rank in range(n)}


@pytest.mark.parametrize("name", ALL_REDUCE)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 16])
def test_after_an_all_reduce_every_rank_has_every_ranks_contribution_in_every_part(name, n):
    if name == "halving-doubling" and n & (n - 1):
        with pytest.raises(InputError, match=f"on {n} ranks.*give a power of 2"):
            halving_doubling_all_reduce(range(n), SIZE)
        return
    parts = [0] if name in ("tree", "star") else range(n)
    buffers = play(ALL_REDUCE[name](range(n), SIZE), own_buffers(n, parts))
    assert all(
        content == set(range(n)) for buffer in buffers.values() for content in buffer.values()
    )


@pytest.mark.parametrize(("nodes", "g"), [(1, 4), (2, 2), (2, 4), (3, 4), (4, 8)])
def test_a_hierarchical_all_reduce_reaches_everyone_and_crosses_nodes_with_one_part_per_place(
    nodes, g
):
    groups = [list(range(node * g, node * g + g)) for node in range(nodes)]
    rounds = hierarchical_all_reduce(groups, SIZE)
    buffers = play(
        rounds,
        own_buffers(nodes * g, [(part, piece) for part in range(g) for piece in range(nodes)]),
    )
    assert all(
        content == set(range(nodes * g))
        for buffer in buffers.values()
        for content in buffer.values()
    )
    node_of = {rank: node for node, ranks in enumerate(groups) for rank in ranks}
    crossing = sum(
        t.size_bytes
        for transfers in rounds
        for t in transfers
        if node_of[t.source] != node_of[t.destination]
    )
    assert crossing == pytest.approx(2 * (nodes - 1) * SIZE)
    inside = [t for transfers in rounds[: g - 1] for t in transfers]
    assert all(node_of[t.source] == node_of[t.destination] for t in inside) and len(
        inside
    ) == nodes * g * (g - 1)


@pytest.mark.parametrize("n", [2, 3, 4, 8])
def test_reduce_scatter_leaves_each_rank_one_whole_sum_and_all_gather_gives_everyone_all(n):
    buffers = play(ring_reduce_scatter(range(n), SIZE), own_buffers(n, range(n)))
    assert all(buffers[r][(r + 1) % n] == set(range(n)) for r in range(n))
    own = {
        rank: {part: {rank} if part == rank else set() for part in range(n)} for rank in range(n)
    }
    assert all(
        buffer == {part: {part} for part in range(n)}
        for buffer in play(ring_all_gather(range(n), SIZE), own).values()
    )


@pytest.mark.parametrize("n", [1, 2, 3, 5, 8, 13])
def test_a_broadcast_reaches_every_rank_in_the_logarithm_of_their_number(n):
    rounds = broadcast(range(n), SIZE)
    assert len(rounds) == (ceil(log2(n)) if n > 1 else 0)
    have = {0}
    for transfers in rounds:
        assert {t.source for t in transfers} <= have
        have |= {t.destination for t in transfers}
    assert have == set(range(n))


def test_an_all_to_all_sends_each_pair_its_part_once():
    sent = [
        (t.source, t.destination) for transfers in all_to_all(range(6), SIZE) for t in transfers
    ]
    assert sorted(sent) == [(a, b) for a in range(6) for b in range(6) if a != b]


OTHERS = {
    "all-gather": ring_all_gather,
    "reduce-scatter": ring_reduce_scatter,
    "all-to-all": all_to_all,
    "broadcast": broadcast,
}
sizes = st.floats(1.0, 1e9)


@given(
    st.sampled_from([*{*ALL_REDUCE} - {"star"}, *OTHERS]),
    st.integers(1, 4),
    sizes,
    st.floats(0, 1e-3),
    st.floats(1e6, 1e11),
)
def test_on_links_of_their_own_collectives_take_what_their_closed_form_says(
    name, log_n, size_bytes, latency_s, bandwidth
):
    n = 2**log_n
    network = Network.of_pairs(Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth))
    rounds = (ALL_REDUCE | OTHERS)[name](range(n), size_bytes)
    assert run_rounds([rounds], network) == pytest.approx(
        [closed_form_s(name, n, size_bytes, latency_s, bandwidth)], rel=1e-9
    )


def test_of_two_sizes_on_one_link_the_smaller_takes_twice_its_time_and_the_larger_what_is_left():
    link = {"x": Link(bandwidth_bytes_per_s=BANDWIDTH)}
    small, large = (
        [[t]] for t in (broadcast([0, 1], SIZE)[0][0], broadcast([0, 1], 3 * SIZE)[0][0])
    )
    assert run_rounds([small, large], Network(link, lambda a, b: ["x"])) == pytest.approx(
        [2 * SIZE / BANDWIDTH, 4 * SIZE / BANDWIDTH]
    )


def test_max_min_fairness_gives_a_flow_over_a_narrow_link_less_and_the_others_what_it_leaves():
    links = {"narrow": Link(bandwidth_bytes_per_s=1.0), "wide": Link(bandwidth_bytes_per_s=10.0)}
    rates = max_min_rates({"a": ["narrow", "wide"], "b": ["narrow"], "c": ["wide"]}, links)
    assert rates == pytest.approx({"a": 0.5, "b": 0.5, "c": 9.5})


def test_bus_bandwidth_factors_are_nccl_tests():
    assert [busbw_factor(name, 8) for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "reduce")] == [
        1.75, 0.875, 0.875, 0.875, 1, 1,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: hierarchical_all_reduce([[0, 1], [2]], SIZE), r"nodes of \[1, 2\] ranks"),
        (lambda: busbw_factor("gossip", 4), "no bus bandwidth for 'gossip'"),
        (lambda: closed_form_s("gossip", 4, 1, 1, 1), "no closed form for 'gossip'"),
    ],
)
def test_what_makes_no_sense_is_refused(call, says):
    with pytest.raises(InputError, match=says):
        call()

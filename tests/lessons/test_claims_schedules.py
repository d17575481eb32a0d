"""What lesson 2 tells people to say holds over a sweep of what it depends on."""

from random import Random

import pytest

import simlab as sl
from simlab.studies.survey import survey


def rows(p, m, split=(20, 20, 20)):
    forward, inputs, weights = (value * 1e-3 for value in split)
    times = sl.OpTimes(forward_s=forward, input_grad_s=inputs, weight_grad_s=weights)
    return {row.schedule: row for row in survey(p, m, times)}


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (8, 16), (8, 32)])
def test_with_alike_parts_zb_h1_leaves_a_third_of_the_bubble_and_zb_v_none_in_1f1bs_memory(p, m):
    found = rows(p, m)
    assert found["zb-h1"].bubble_s == pytest.approx(found["1f1b"].bubble_s / 3)
    assert found["zb-v"].bubble_s == pytest.approx(0.0, abs=1e-9)
    for name in ("zb-h1", "zb-v"):
        assert max(found[name].peak_activations) <= p + 1e-9


@pytest.mark.parametrize(("p", "m"), [(4, 8), (8, 16)])
@pytest.mark.parametrize("split", [(20, 15, 25), (20, 25, 25), (20, 10, 30)])
def test_with_a_w_longer_than_f_zb_h1_leaves_more_than_its_formula_and_zb_v_less_than_with_a_short_w(
    p, m, split
):
    found, (forward, inputs, weights) = rows(p, m, split), split
    assert found["zb-h1"].bubble_s > (p - 1) * (forward + inputs - weights) * 1e-3 + 1e-9
    assert found["zb-h1"].bubble_s < rows(p, m, (20, 30, 10))["zb-h1"].bubble_s
    assert found["zb-v"].bubble_s < rows(p, m, (20, 30, 10))["zb-v"].bubble_s


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (8, 16), (8, 32)])
def test_zb_h2_and_zb_v_leave_nothing_only_where_f_i_and_w_are_equal(p, m):
    equal, unequal = rows(p, m), rows(p, m, (20, 30, 10))
    for name in ("zb-h2", "zb-v"):
        assert equal[name].bubble_s == pytest.approx(0.0, abs=1e-9)
        assert unequal[name].bubble_s > 0.01
    assert equal["zb-h2"].step_s == pytest.approx(equal["zb-h1"].step_s)  # no rank waits, and yet


@pytest.mark.parametrize("seed", range(8))
def test_the_slowest_stage_sets_the_pace_and_the_exact_cut_makes_it_fastest(seed):
    random = Random(seed)
    cost = [random.choice((1.0, 1.0, 1.0, 0.1, 4.0)) for _ in range(16)]
    m, p = 64, 4
    steps = {}
    for name, cut in {
        "even": sl.even_partition(cost, p),
        "best": sl.best_partition(cost, p),
    }.items():
        work = sl.stage_work(cost, cut)
        times = sl.OpTimes(
            forward_s=tuple(1e-3 * w for w in work), backward_s=tuple(2e-3 * w for w in work)
        )
        steps[name] = sl.simulate(sl.generate("1f1b", p, m), times).step_s
        assert m * 3e-3 * max(work) <= steps[name] <= (m + p - 1) * 3e-3 * max(work) + 1e-9
    assert steps["best"] <= steps["even"] * 1.05


ZOO = ("gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v")


def lost_s(name, p, m, link_s):
    """By how much transfers of `link_s` lengthen the step, F = I = W = 20 ms for a whole rank."""
    program = sl.generate(name, p, m)
    times = sl.OpTimes(forward_s=0.02, input_grad_s=0.02, weight_grad_s=0.02)
    scaled = times.scaled(p / program.stages)
    slow, free = (sl.simulate(program, scaled, link=sl.Link(latency_s=s)) for s in (link_s, 0.0))
    return slow.step_s - free.step_s


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 16), (8, 16), (8, 32)])
@pytest.mark.parametrize("link_s", [0.002, 0.005, 0.010])
def test_1f1b_loses_most_to_transfers_that_are_shorter_than_an_op(p, m, link_s):
    lost = {name: lost_s(name, p, m, link_s) for name in ZOO}
    assert max(lost, key=lost.get) == "1f1b"
    assert lost["eager-1f1b"] < 0.6 * lost["1f1b"], "more in flight hides them"


@pytest.mark.parametrize(("p", "m"), [(2, 4), (2, 8), (4, 8)])
def test_where_a_transfer_takes_as_long_as_an_op_interleaving_loses_more_than_1f1b(p, m):
    assert lost_s("interleaved-1f1b", p, m, 0.020) > lost_s("1f1b", p, m, 0.020)


@pytest.mark.parametrize("p", [2, 4, 8, 16])
@pytest.mark.parametrize("v", [2, 3, 4])
def test_v_chunks_cost_at_least_v_times_the_messages_and_much_more_on_two_ranks(p, v):
    sent = [
        len(sl.simulate(sl.generate("interleaved-1f1b", p, p, chunks=chunks), MANY).messages())
        for chunks in (1, v)
    ]
    times = sent[1] / sent[0]
    assert times == pytest.approx((p * v - 1) / (p - 1)) and times >= v
    assert (times > 1.4 * v) == (p == 2)


MANY = sl.OpTimes(forward_s=0.01, backward_s=0.02)


@pytest.mark.parametrize("head", [3.0, 4.5])
@pytest.mark.parametrize("v", [1, 2, 4])
def test_interleaving_does_not_balance_a_head_and_fewer_blocks_in_the_last_chunk_do(v, head):
    p, m, blocks = 4, 16, 32
    program = sl.generate("interleaved-1f1b", p, m, chunks=v)
    each = blocks // (p * v)
    equal = [(k * each, (k + 1) * each + (k == p * v - 1)) for k in range(p * v)]
    cost = [*[1.0] * blocks, head]
    steps = {}
    for name, cut in {"equal": equal, "best": sl.best_partition(cost, p * v)}.items():
        work = sl.stage_work(cost, cut)
        times = sl.OpTimes(
            forward_s=tuple(1e-3 * w for w in work), backward_s=tuple(2e-3 * w for w in work)
        )
        steps[name] = sl.simulate(program, times).step_s
    assert steps["equal"] >= m * 3e-3 * (blocks / p + head), "the rank with the head sets the pace"
    assert steps["best"] < 0.95 * steps["equal"]

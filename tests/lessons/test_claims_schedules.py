"""What lesson 2 tells people to say holds over a sweep of what it depends on."""

from random import Random

import pytest

import simlab as sl
from simlab.studies.survey import survey

PIPELINES = [(2, 4), (4, 8), (4, 16), (8, 16), (8, 32)]
SPLITS = [(20, 20, 20), (20, 30, 10), (10, 12, 8), (20, 22, 15)]  # ms of F, I, W


def rows(p, m, split=(20, 20, 20)):
    forward, inputs, weights = (value * 1e-3 for value in split)
    times = sl.OpTimes(forward_s=forward, input_grad_s=inputs, weight_grad_s=weights)
    return {row.schedule: row for row in survey(p, m, times)}


@pytest.mark.parametrize(("p", "m"), PIPELINES)
@pytest.mark.parametrize("split", SPLITS)
def test_1f1b_has_gpipes_bubble_and_at_most_p_microbatches(p, m, split):
    found = rows(p, m, split)
    assert found["1f1b"].bubble_s == pytest.approx(found["gpipe"].bubble_s)
    assert found["1f1b"].bubble_s == pytest.approx((p - 1) * sum(split) * 1e-3)
    assert max(found["1f1b"].peak_activations) == p and max(found["gpipe"].peak_activations) == m


@pytest.mark.parametrize(("p", "m"), PIPELINES)
@pytest.mark.parametrize("v", [2, 3, 4])
def test_v_chunks_divide_the_bubble_by_v_for_about_v_times_the_messages(p, m, v):
    whole = sl.OpTimes(forward_s=0.02, backward_s=0.04)
    traces = [
        sl.simulate(sl.generate("interleaved-1f1b", p, m, chunks=chunks), whole.scaled(1 / chunks))
        for chunks in (1, v)
    ]
    idle = [trace.step_s - m * 0.06 for trace in traces]
    assert idle[1] == pytest.approx(idle[0] / v)
    messages = [len(trace.messages()) for trace in traces]
    assert messages[1] * (p - 1) == messages[0] * (p * v - 1)


@pytest.mark.parametrize(("p", "m"), PIPELINES)
@pytest.mark.parametrize("split", SPLITS)
def test_zb_h1_leaves_p_minus_1_times_f_plus_i_minus_w_in_the_memory_of_1f1b(p, m, split):
    found = rows(p, m, split)["zb-h1"]
    forward, inputs, weights = split
    assert found.bubble_s == pytest.approx((p - 1) * (forward + inputs - weights) * 1e-3)
    assert max(found.peak_activations) <= p + 1e-9


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

"""What lesson 1 tells people to say holds over a sweep of what it depends on."""

import pytest

import simlab as sl

PIPELINES = [(2, 2), (2, 8), (4, 4), (4, 8), (4, 32), (8, 8), (8, 32)]
TIMES = sl.OpTimes(forward_s=0.02, backward_s=0.04)


def step(name, p, m, link_s=0.0):
    return sl.simulate(sl.generate(name, p, m), TIMES, link=sl.Link(latency_s=link_s))


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_stage_s_holds_m_under_gpipe_and_at_most_p_minus_s_under_1f1b(p, m):
    assert sl.peak_memory(step("gpipe", p, m)) == [m] * p
    assert sl.peak_memory(step("1f1b", p, m)) == [min(m, p - s) for s in range(p)]


@pytest.mark.parametrize(("p", "m"), PIPELINES)
def test_warm_up_and_cool_down_have_as_many_ops_and_forwards_alternate_with_backwards(p, m):
    for rank, ops in enumerate(sl.generate("1f1b", p, m).ranks):
        kinds = "".join(op.kind for op in ops)
        warmup = min(m, p - 1 - rank)
        assert kinds == "F" * warmup + "FB" * (m - warmup) + "B" * warmup


@pytest.mark.parametrize(("p", "m"), [(4, 8), (4, 32), (8, 16), (8, 64)])
@pytest.mark.parametrize("link_s", [0.001, 0.005, 0.02])
def test_with_slow_links_afab_pays_them_once_and_1f1b_again_for_every_microbatch(p, m, link_s):
    free_s = (m + p - 1) * 0.06
    afab_s, one_f_one_b_s = (step(name, p, m, link_s).step_s - free_s for name in ("gpipe", "1f1b"))
    assert afab_s == pytest.approx(2 * (p - 1) * link_s)
    per_microbatch_s = (one_f_one_b_s - afab_s) / (m - 1)
    assert per_microbatch_s == pytest.approx(2 * (p - 1) * link_s / p, rel=0.1)


@pytest.mark.parametrize("p", [2, 4, 8])
@pytest.mark.parametrize("times", [2, 4])
def test_at_equal_memory_1f1b_has_the_smaller_bubble_because_m_is_larger(p, times):
    room, batch = p, times * p
    gpipe_s = times * step("gpipe", p, room).step_s
    assert gpipe_s > step("1f1b", p, batch).step_s
    assert max(sl.peak_memory(step("1f1b", p, batch))) == room


@pytest.mark.parametrize("p", [2, 4, 8])
def test_without_a_flush_the_first_stage_is_p_minus_1_updates_behind(p):
    for rank, ops in enumerate(sl.generate("1f1b", p, 4 * p).ranks):
        first, last = ops.index(sl.Op(rank, "F", 2 * p)), ops.index(sl.Op(rank, "B", 2 * p))
        assert sum(op.kind == "B" for op in ops[first:last]) == p - 1 - rank


def warmed_up(p, m, more):
    """1F1B with `more` forwards of warm-up than it has, on every stage."""
    ranks = []
    for rank in range(p):
        w = max(0, min(m, p - 1 - rank + more))
        order = [("F", i) for i in range(w)]
        order += [op for k in range(m - w) for op in (("F", w + k), ("B", k))]
        order += [("B", i) for i in range(m - w, m)]
        ranks.append([sl.Op(rank, kind, i) for kind, i in order])
    return sl.simulate(sl.validate(sl.Program(ranks)), TIMES)


@pytest.mark.parametrize(("p", "m"), [(2, 8), (4, 8), (4, 32), (8, 32)])
def test_one_forward_less_of_warm_up_makes_the_step_far_longer_and_one_more_gains_nothing(p, m):
    right, less, more = (warmed_up(p, m, by) for by in (0, -1, 1))
    assert right.step_s == pytest.approx(step("1f1b", p, m).step_s)
    assert less.step_s > 1.25 * right.step_s
    assert more.step_s == pytest.approx(right.step_s)
    held = [sl.peak_memory(trace) for trace in (right, more)]
    assert held[1] == [of_rank + 1 for of_rank in held[0]]


@pytest.mark.parametrize(("p", "m"), [(4, 1), (4, 3), (8, 4), (8, 7)])
def test_with_fewer_microbatches_than_stages_a_rank_is_idle_for_at_least_half_of_the_step(p, m):
    assert sl.bubble(step("1f1b", p, m)).idle_over_makespan >= 0.5 - 1e-9
    first = "".join(op.kind for op in sl.generate("1f1b", p, m).ranks[0])
    assert first == "F" * m + "B" * m


@pytest.mark.parametrize("m", [8, 16])
def test_more_stages_do_not_change_the_activations_of_the_first_one_under_1f1b(m):
    layers = 32
    held = {p: max(sl.peak_memory(step("1f1b", p, m))) * layers / p for p in (1, 2, 4, 8)}
    assert {*held.values()} == {layers}
    bubbles = [sl.bubble(step("1f1b", p, m)).idle_over_makespan for p in held]
    assert bubbles == sorted(bubbles) and len({*bubbles}) == len(bubbles)


@pytest.mark.parametrize("p", [4, 8])
def test_the_same_warm_up_on_every_rank_is_slower_than_gpipe_and_holds_more_than_1f1b(p):
    m = 4 * p
    order = [("F", i) for i in range(p)]
    order += [op for i in range(p, m) for op in (("F", i), ("B", i - p))]
    order += [("B", i) for i in range(m - p, m)]
    ranks = [[sl.Op(rank, kind, i) for kind, i in order] for rank in range(p)]
    same = sl.simulate(sl.validate(sl.Program(ranks)), TIMES)
    assert same.step_s > step("gpipe", p, m).step_s
    held = [max(sl.peak_memory(trace)) for trace in (same, step("1f1b", p, m))]
    assert m > held[0] > held[1]

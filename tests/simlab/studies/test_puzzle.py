"""The puzzle's verdicts: the first thing that is wrong, and how far from the best an answer is."""

import pytest

import simlab as sl
from simlab.errors import InputError

UNIT = sl.OpTimes(forward_s=1e-3, input_grad_s=1e-3, weight_grad_s=1e-3)


def puzzle(ranks=3, microbatches=4, cap=3):
    return sl.Puzzle(ranks, microbatches, UNIT, cap)


def test_the_start_is_valid_within_the_cap_and_as_slow_as_no_pipeline_at_all():
    verdict = puzzle().check(puzzle().start)
    one_microbatch_s = (2 * 3 + 1) * 1e-3  # down, up, and rank 0's W before its next F
    assert verdict.trace.step_s == pytest.approx(4 * one_microbatch_s)
    assert verdict.excess_s == pytest.approx(0.014) and "100%" in verdict.text


def test_zb_h1_is_optimal_where_the_cap_admits_it():
    verdict = puzzle().check(str(sl.generate("zb-h1", 3, 4)))
    assert verdict.excess_s == pytest.approx(0, abs=1e-12) and "optimal" in verdict.text


def test_more_than_the_cap_is_named_with_rank_op_and_time_and_does_not_count():
    verdict = puzzle().check(str(sl.generate("zb-h2", 3, 4)))
    assert (
        verdict.text
        == "Too much memory: rank 0 holds 4 from 3.0 ms on, when 0F3 starts; the cap is 3."
    )
    assert verdict.excess_s is None and verdict.trace.metadata["activation_cap"] == 3


@pytest.mark.parametrize(("answer", "says"), [
    ("hello", "'hello' is not an op"), ("0F0", "0F0 has no backward"), (str(sl.generate("1f1b", 3, 4)), "write the backward as I and W"),
    (str(sl.generate("zb-h1", 3, 5)), "5 microbatches; asked for is stage 0 on rank 0"), ("", "no op in it"),
    (str(sl.generate("zb-h1", 2, 4)), "stages [[0], [1]]"),
])  # fmt: skip
def test_the_first_thing_that_is_wrong_is_said(answer, says):
    verdict = puzzle().check(answer)
    assert verdict.text.startswith("Not yet: ") and says in verdict.text and verdict.trace is None


def test_stages_on_two_ranks_are_no_answer_and_no_measure_of_one():
    """DualPipe has as many stages as ranks, each of them twice: it would beat every answer that the
    puzzle asks for."""
    four = puzzle(4, 8, 5)
    assert four.check(str(sl.generate("dualpipe", 4, 8).unpaired())).excess_s is None
    assert four.shortest_s == pytest.approx(0.027) == pytest.approx(four.bound_s)


def test_less_memory_never_makes_the_best_shorter_and_nothing_is_below_the_bound():
    best = [puzzle(3, 4, cap).shortest_s for cap in (1, 2, 3, 4)]
    assert best == sorted(best, reverse=True) and min(best) >= puzzle().bound_s * (1 - 1e-9)


@pytest.mark.parametrize("cap", [0, 0.5, float("nan")])
def test_a_cap_that_nothing_fits_under_is_refused_and_quoted(cap):
    with pytest.raises(InputError, match=f"^a cap of {cap}"):
        puzzle(cap=cap)


def test_a_backward_that_is_one_op_is_asked_for_as_such():
    whole = sl.Puzzle(3, 6, sl.OpTimes(forward_s=1e-3, backward_s=2e-3), 3)
    assert whole.check(whole.start).trace.step_s == pytest.approx(6 * 3 * 3e-3)
    assert whole.check(str(sl.generate("1f1b", 3, 6))).excess_s == pytest.approx(0, abs=1e-12)
    assert whole.least_held == 3 and whole.bound_s == pytest.approx((3 - 1 + 6) * 3e-3)
    assert "write the backward as B" in whole.check(str(sl.generate("zb-h1", 3, 6))).text


def test_a_cap_that_no_known_schedule_of_these_ops_keeps_is_refused_with_what_would_be_valid():
    tight = sl.Puzzle(4, 6, sl.OpTimes(forward_s=1e-3, backward_s=2e-3), 2)
    with pytest.raises(InputError, match="no schedule of F, B is known that holds at most 2"):
        tight.shortest_s  # noqa: B018 - it is worked out when it is read

import pytest

from simlab import InputError, OpTimes, generate, simulate
from simlab.analysis.comparison import Pair, compare


def trace(name="1f1b", stages=2, microbatches=4, forward_s=1.0, backward_s=2.0):
    return simulate(
        generate(name, stages, microbatches), OpTimes(forward_s=forward_s, backward_s=backward_s)
    )


def test_the_error_is_signed_above_zero_where_the_prediction_is_too_long():
    assert Pair(predicted=11, measured=10).error == pytest.approx(0.1)
    assert Pair(predicted=9, measured=10).error == pytest.approx(-0.1)
    assert Pair(predicted=1, measured=0).error is None


def test_a_trace_compared_with_itself_has_no_error_anywhere():
    result = compare(trace(), trace())
    pairs = [
        result.step_s,
        *result.bubble.values(),
        *result.op_s.values(),
        *result.busy_s,
        *result.idle_s,
        *result.peak_live_microbatches,
    ]
    assert len(pairs) == 1 + 3 + 2 + 2 + 2 + 2
    assert all(pair.predicted == pair.measured for pair in pairs)


def test_errors_are_found_per_op_kind_and_in_the_step():
    result = compare(trace(forward_s=1.0, backward_s=3.0), trace(forward_s=2.0, backward_s=2.0))
    assert {kind: pair.error for kind, pair in result.op_s.items()} == {
        "F": pytest.approx(-0.5),
        "B": pytest.approx(0.5),
    }
    # (4 + 2 - 1)(F + B): wrong in both parts, right in the sum
    assert result.step_s == Pair(predicted=20.0, measured=20.0)


def test_idle_and_bubble_are_compared_per_rank_and_by_figure():
    result = compare(trace(), trace(forward_s=2.0, backward_s=4.0))
    assert result.idle_s == [Pair(predicted=3.0, measured=6.0)] * 2  # (p - 1)(F + B)
    assert result.busy_s == [Pair(predicted=12.0, measured=24.0)] * 2
    assert {name: pair.error for name, pair in result.bubble.items()} == {
        "idle_over_ideal": pytest.approx(0), "idle_over_makespan": pytest.approx(0), "longest_stage": pytest.approx(0)
    }  # fmt: skip


def test_the_table_has_a_line_for_each_quantity():
    lines = str(compare(trace(), trace(forward_s=1.25))).splitlines()
    assert lines[0].split() == ["predicted", "measured", "error"]
    assert lines[1].split() == ["step", "15.000", "s", "16.250", "s", "-7.7%"]
    assert len(lines) == 1 + 1 + 2 + 2 + 3 + 1


@pytest.mark.parametrize("other, message", [
    ({"stages": 3}, "the prediction has 2 ranks, the measurement 3"),
    ({"microbatches": 5}, "the traces do not hold the same ops: 0B4, 0F4, 1B4 is only in one of them"),
    ({"name": "gpipe"}, "the traces are of different programs: rank 0 does not run the same ops in the same order"),
])  # fmt: skip
def test_traces_of_different_programs_are_not_compared(other, message):
    with pytest.raises(InputError) as raised:
        compare(trace(), trace(**other))
    assert str(raised.value) == message

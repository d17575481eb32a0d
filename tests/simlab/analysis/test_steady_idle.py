"""The idle share while a pipeline is full, counted second by second."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import op_times, plans

from simlab import Link, OpTimes, generate, simulate
from simlab.analysis.bubble import steady_idle


def counted(trace):
    """Of a trace whose times are whole seconds and which has fewer than 10 stages: the share of
    idle ranks in the seconds from the end of rank 0's first backward to its last forward."""
    ops = [(span.op[1], span) for span in trace.compute(0)]
    ends = [round(span.end_s) for kind, span in ops if kind in "BI"]
    starts = [round(span.start_s) for kind, span in ops if kind == "F"]
    if not ends or not starts or min(ends) >= max(starts):
        return None
    seconds = range(min(ends), max(starts))
    busy = sum(s.start_s <= second < s.end_s for second in seconds for s in trace.compute())
    return 1 - busy / (len(seconds) * trace.ranks)


@given(plans(), st.lists(st.integers(1, 4), min_size=20, max_size=20))
def test_it_is_the_share_of_idle_seconds_between_the_first_backward_and_the_last_forward(
    program, times
):
    seconds = {kind: times[5 * at : 5 * at + 5] for at, kind in enumerate("FBIW")}
    trace = simulate(program, op_times(seconds))
    expected = counted(trace)
    assert steady_idle(trace) == (expected if expected is None else pytest.approx(expected))


def test_a_full_1f1b_pipeline_idles_only_while_messages_travel():
    times = OpTimes(forward_s=1.0, backward_s=2.0)
    program = generate("1f1b", 4, 12)
    assert steady_idle(simulate(program, times)) == pytest.approx(0, abs=1e-12)
    slow = simulate(program, times, link=Link(latency_s=1.0))
    assert steady_idle(slow) == pytest.approx(counted(slow)) and steady_idle(slow) > 0.1


def test_without_a_full_pipeline_there_is_none():
    assert (
        steady_idle(simulate(generate("gpipe", 4, 8), OpTimes(forward_s=1, backward_s=2))) is None
    )

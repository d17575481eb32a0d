"""The overlay: in each rank's row the first trace above the second, and the error of its step."""

import pytest

import simlab as sl
from simlab import InputError
from simlab.views.chart import Boxes


def trace(name="1f1b", ranks=3, forward_s=0.02):
    return sl.simulate(
        sl.generate(name, ranks, 4), sl.OpTimes(forward_s=forward_s, backward_s=2 * forward_s)
    )


def halves(chart):
    """{(rank, "upper" or "lower"): sorted [(start, end) of its boxes, ms]}."""
    found = {}
    for mark in chart.marks:
        if isinstance(mark, Boxes):
            for left, right, top, bottom in zip(mark.x0, mark.x1, mark.y0, mark.y1):
                half = "lower" if round(top, 9) == round(top) else "upper"
                rank = round(top if half == "lower" else bottom)
                found.setdefault((rank, half), []).append((round(left, 6), round(right, 6)))
    return {key: sorted(boxes) for key, boxes in found.items()}


def test_the_first_traces_ops_are_above_the_seconds_in_each_ranks_row():
    pair = trace(), trace(forward_s=0.025)
    (chart,) = sl.overlay([pair]).charts
    drawn = halves(chart)
    for half, its in zip(("upper", "lower"), pair):
        for rank in range(3):
            boxes = [(span.start_s * 1e3, span.end_s * 1e3) for span in its.compute(rank)]
            assert drawn[rank, half] == [pytest.approx(box) for box in sorted(boxes)]


def test_the_title_names_both_steps_and_the_error_of_the_first():
    first, second = trace(), trace(forward_s=0.025)
    second.metadata["source"] = "measured"
    title = sl.overlay([(first, second)]).axes[0].get_title(loc="left")
    # 6 x (20 + 40) ms, and 6 x (25 + 50) ms: 20% too short
    assert "simulated (upper) 360.0 ms" in title and "measured (lower) 450.0 ms" in title
    assert "-20.0%" in title


def test_no_pair_and_pairs_of_different_programs_are_refused():
    with pytest.raises(InputError, match="no pair"):
        sl.overlay([])
    with pytest.raises(InputError, match="2 ranks, the measurement 3"):
        sl.overlay([(trace(ranks=2), trace())])
    with pytest.raises(InputError, match="different programs"):
        sl.overlay([(trace("gpipe"), trace())])

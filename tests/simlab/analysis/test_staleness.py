"""Weights that change after every backward, and caps on activations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simlab_oracles import plans

from simlab import (
    InputError,
    MemoryPoint,
    OpTimes,
    Program,
    Span,
    Trace,
    breaches,
    generate,
    peak_memory,
    simulate,
    staleness,
)
from simlab.trace import ACTIVATIONS, LIVE

UNIT = OpTimes(forward_s=1, backward_s=2, input_grad_s=1, weight_grad_s=1)


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize("more", [0, 1, 7])
def test_rank_r_of_pipedream_keeps_p_minus_r_versions_and_is_p_minus_1_minus_r_updates_late(
    p, more
):
    """Narayanan et al. 2019, PipeDream, sections 3.3 and 3.4."""
    found = staleness(generate("pipedream", p, 2 * p + more))
    assert found.weight_versions == [p - rank for rank in range(p)]
    assert found.staleness == [p - 1 - rank for rank in range(p)]


def test_pipedream_runs_1f1b():
    assert generate("pipedream", 4, 8).ranks == generate("1f1b", 4, 8).ranks


def test_versions_and_updates_of_a_rank_written_by_hand():
    # each forward with the newest weights
    assert staleness(Program.from_text("0F0 0B0 0F1 0B1")) == ([1], [0])
    # F0 and F1 with the first weights; F2 after one update; B2 comes after another, B1's
    assert staleness(Program.from_text("0F0 0F1 0B0 0F2 0B1 0B2")) == ([2], [1])
    # the first weights stay for B1 and B2
    assert staleness(Program.from_text("0F0 0F1 0F2 0B0 0B1 0B2")) == ([2], [2])


def test_with_a_split_backward_the_weights_change_after_w():
    assert staleness(Program.from_text("0F0 0F1 0I0 0I1 0W0 0W1")) == staleness(
        Program.from_text("0F0 0F1 0B0 0B1")
    )
    assert staleness(Program.from_text("0F0 0I0 0F1 0W0 0I1 0W1")) == ([2], [1])


def test_every_stage_of_a_rank_has_versions_of_its_own():
    # two stages, one version of each
    assert staleness(Program.from_text("0F0 1F0 1B0 0B0 0F1 1F1 1B1 0B1")) == ([2], [0])


@given(plans())
def test_a_microbatch_is_no_later_than_the_updates_between_its_forward_and_its_own(program):
    worst = []
    for ops in program.ranks:
        late = 0
        for end, (stage, kind, microbatch) in enumerate(ops):
            if kind in "BW":
                start = ops.index((stage, "F", microbatch))
                late = max(
                    late, sum(op.stage == stage and op.kind in "BW" for op in ops[start:end])
                )
        worst.append(late)
    assert staleness(program).staleness == worst


# caps
# -----------------------------------------------------------------------------------------------------


def test_a_breach_is_the_first_time_a_rank_holds_more_and_names_the_op_that_starts_then():
    found = breaches(simulate(generate("gpipe", 2, 4), UNIT), 2)
    assert [tuple(breach) for breach in found] == [(0, 2.0, "0F2", 3.0), (1, 3.0, "1F2", 3.0)]
    assert str(found[0]) == "rank 0 holds 3 from 2.000 s on, when 0F2 starts"


def test_only_the_ranks_that_hold_more_are_named():
    trace = simulate(generate("1f1b", 4, 8), UNIT)
    assert [breach.rank for breach in breaches(trace, 2.5)] == [0, 1]
    assert breaches(trace, 4) == []


@given(plans(), st.floats(0.0, 10.0))
def test_a_rank_breaches_a_cap_if_and_only_if_its_peak_is_above(program, cap):
    trace = simulate(program, UNIT)
    for category in (ACTIVATIONS, LIVE):
        peaks = peak_memory(trace, category)
        assert [breach.rank for breach in breaches(trace, cap, category)] == [
            rank for rank, peak in enumerate(peaks) if peak > cap * (1 + 1e-9)
        ]


def test_what_adds_up_to_the_cap_but_for_rounding_fits():
    trace = Trace(
        [Span.of_op((0, "F", 0), 0, 0, 1)],
        [MemoryPoint(0, ACTIVATIONS, 0, 0.1 + 0.2)],
        {"ranks": 1},
    )
    assert 0.1 + 0.2 > 0.3 and breaches(trace, 0.3) == []


@pytest.mark.parametrize("cap", [-0.5, float("nan")])
def test_a_cap_that_cannot_be_is_refused_and_quoted(cap):
    with pytest.raises(InputError, match=f"^a cap of {cap}: give a number, 0 or more"):
        breaches(simulate(generate("1f1b", 2, 2), UNIT), cap)


def test_an_unknown_schedule_option_of_pipedream_is_refused():
    with pytest.raises(InputError, match="pipedream has no chunks to choose: leave it out"):
        generate("pipedream", 4, 8, chunks=2)

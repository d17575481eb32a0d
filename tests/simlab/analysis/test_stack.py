"""Stacked categories over a step, ZeRO's curves and traffic: against the figures that they are made
of."""

from math import fsum

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.analysis import walk_stack
from simlab.analysis.stack import GROUPS
from simlab.collectives import most_sent_by_calls, zero_calls
from simlab.errors import InputError
from simlab.memory import CATEGORIES

GPT = sl.load_model("gpt2-xl")
LLAMA, NODE = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")


def test_every_category_of_a_walk_belongs_to_one_group():
    members = [category for categories in GROUPS.values() for category in categories]
    assert sorted(members) == sorted([*CATEGORIES, "buffers"])


@pytest.mark.parametrize("sharding", ["ddp", "zero1", "zero2", "fsdp"])
def test_a_walks_stack_holds_what_the_walk_holds(sharding):
    memory = sl.data_parallel_memory(GPT, 8, microbatch_size=4, sharding=sharding, recipe="zero")
    stack = sl.memory_stack(memory, capacity_bytes=memory.peak.total - 1)
    assert stack.totals == pytest.approx([moment.total for moment in memory.moments])
    assert (
        stack.ops == tuple(moment.op for moment in memory.moments)
        and len(stack.edges) == len(stack.ops) + 1
    )
    assert stack.ops[stack.peak] == memory.peak.op
    assert stack.breach == stack.peak and "over" in str(stack)
    assert sl.memory_stack(memory, capacity_bytes=memory.peak.total).breach is None
    assert all(any(amounts) for amounts in stack.held.values())
    assert sum(stack.held_in(memory.peak.op).values()) == pytest.approx(memory.peak.total)
    with pytest.raises(InputError, match="lunch"):
        stack.held_in("lunch")


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b"])
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_a_predictions_stack_peaks_where_the_prediction_does(schedule, recompute):
    plan = sl.Plan(dp=2, pp=4, microbatches=8, zero=1, schedule=schedule, recompute=recompute)
    prediction = sl.predict(LLAMA, plan, NODE)
    for rank in range(4):
        stack = prediction.memory_stack(rank)
        assert max(stack.totals) == pytest.approx(sum(prediction.held[rank].values()))
        assert stack.edges[0] == 0 and list(stack.edges) == sorted(stack.edges)
        assert stack.capacity_bytes == NODE.gpu.memory_bytes and (stack.breach is not None) == (
            max(stack.totals) > NODE.gpu.memory_bytes
        )
    stack = prediction.memory_stack()
    assert max(stack.totals) == pytest.approx(sum(prediction.memory_bytes.values()))
    ran = {str(op) for op in prediction.program.ranks[prediction.peak_rank]}
    assert stack.ops[stack.peak] in ran
    last = stack.held["activations"][-1]
    assert last == 0 and stack.ops[-1] == "after the last op"


def test_a_rank_that_is_not_there_is_named():
    trace = sl.predict(LLAMA, sl.Plan(dp=2, pp=4, microbatches=4), NODE).trace
    with pytest.raises(InputError, match="rank 4"):
        walk_stack(trace, 4, {})


# ZeRO
# ------------------------------------------------------------------------------------------------------


def test_curves_are_the_papers_formulas():
    ranks = (1, 2, 64, 1024)
    curves = sl.zero_curves(1e9, ranks)
    forms = {0: lambda n: 16, 1: lambda n: 4 + 12 / n, 2: lambda n: 2 + 14 / n, 3: lambda n: 16 / n}
    assert curves == {
        stage: pytest.approx([1e9 * form(n) for n in ranks]) for stage, form in forms.items()
    }
    assert set(sl.zero_curves(1e9, ranks, recipe="deepspeed")) == {2, 3}


@given(
    st.floats(1e6, 1e12),
    st.floats(1e9, 2e11),
    st.sampled_from([0, 1, 2, 3]),
    st.sampled_from(["zero", "megatron", "fp32"]),
)
def test_the_fewest_ranks_fit_and_one_fewer_does_not(parameters, memory_bytes, zero, recipe):
    fewest = sl.fewest_ranks(parameters, memory_bytes, zero=zero, recipe=recipe)

    def total(ranks):
        return sl.model_states(parameters, ranks, zero=zero, recipe=recipe).total

    if fewest is None:
        assert total(10**9) > memory_bytes * (1 - 1e-6)
    else:
        assert total(fewest) <= memory_bytes * (1 + 1e-6)
        assert fewest == 1 or total(fewest - 1) > memory_bytes * (1 - 1e-6)


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_stages_1_and_2_send_as_much_as_plain_data_parallelism_and_stage_3_half_as_much_again(
    ranks,
):
    share = 2 * (ranks - 1) / ranks  # bytes per 16-bit parameter and collective
    sent = [most_sent_by_calls(zero_calls(1e6, zero), ranks) for zero in range(4)]
    assert sent == pytest.approx(
        [2 * share * 1e6, 2 * share * 1e6, 2 * share * 1e6, 3 * share * 1e6]
    )


@pytest.mark.parametrize("microbatches", [1, 4, 16])
def test_with_more_microbatches_stages_2_and_3_send_more(microbatches):
    volumes = [
        most_sent_by_calls(zero_calls(1e6, zero, microbatches=microbatches), 4) / 1.5e6
        for zero in range(4)
    ]
    assert volumes == pytest.approx([2, 2, 1 + microbatches, 3 * microbatches])
    assert (
        fsum(call.count for call in zero_calls(1.0, 3, microbatches=microbatches))
        == 3 * microbatches
    )


def test_a_stage_that_does_not_exist_is_refused():
    with pytest.raises(InputError, match="stage 4"):
        zero_calls(1.0, 4)

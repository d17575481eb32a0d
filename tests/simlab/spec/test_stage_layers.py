"""Layers of the stages of a plan: rules, given numbers, and what follows from them."""

import re
import time
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab import InputError, Plan
from simlab.spec.stage_layers import RULES

LLAMA = Plan(
    dp=128, tp=8, pp=16, schedule="interleaved-1f1b", chunks=8, microbatches=16, zero=1,
    sequence_parallel=True,
)  # fmt: skip
"""Llama 3 405B on 16,384 GPUs (Dubey et al. 2024, arXiv 2407.21783, Table 4, second row)."""
MODEL = sl.Model(name="six", layers=6, hidden=256, heads=8, vocab=1024, seq=128)


@given(st.sampled_from(RULES), st.integers(1, 40), st.integers(1, 130))
def test_stages_have_all_layers_between_them_or_a_reason_is_given(rule, stages, layers):
    plan = Plan(pp=stages, stage_layers=rule)
    even, ends = layers % stages == 0, (layers + 2) % stages == 0
    possible = {
        "even": even, "ends-count-as-layers": ends, "auto": even or ends, "uneven": stages <= layers,
    }[rule]  # fmt: skip
    if not possible:
        with pytest.raises(InputError) as why:
            plan.layers_of_stages(layers)
        assert {str(stages), str(layers)} <= set(re.findall(r"\d+", str(why.value)))
        assert "nearest that do: " in str(why.value) and "stage_layers = 'uneven'" in str(why.value)
        return
    found = plan.layers_of_stages(layers)
    assert len(found) == stages and sum(found) == layers
    if rule == "even" or (rule == "auto" and even):
        assert len(set(found)) == 1
    elif rule == "uneven":
        assert max(found) - min(found) <= 1
    elif stages > 1:
        weights = [
            found[0] + 1,
            *found[1:-1],
            found[-1] + 1,
        ]  # embedding and head count as one each
        assert len(set(weights)) == 1


def test_the_published_layers_of_llama_3():
    """126 layers: embedding only, 126 stages of a layer, head only (section 3.3.2)."""
    assert LLAMA.layers_of_stages(126) == [0, *[1] * 126, 0]
    assert Plan(pp=16).layers_of_stages(126) == [7, *[8] * 14, 7]
    assert Plan(pp=5, stage_layers="uneven").layers_of_stages(32) == [6, 7, 7, 6, 6]
    # a rule that needs no exception: 6 layers on 8 stages
    assert Plan(pp=8).layers_of_stages(6) == [0, 1, 1, 1, 1, 1, 1, 0]


def test_given_numbers_are_taken_as_they_are():
    plan = Plan(pp=4, stage_layers=[0, 4, 2, 0])
    assert plan.stage_layers == (0, 4, 2, 0) and plan.layers_of_stages(6) == [0, 4, 2, 0]
    assert hash(plan) == hash(replace(plan)) and plan == replace(plan)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("evn", "stage_layers = 'evn', did you mean 'even'"),
        ((1, 2), "stage_layers has 2 numbers, but pp x chunks = 4 stages"),
        ((1, 0, 2, 3), r"stage_layers\[1\] = 0: give a whole number, at least 1; only the first"),
        ((1, 1, 2, -1), r"stage_layers\[3\] = -1: give a whole number, at least 0"),
        ((1, 1, 2, 2.0), r"stage_layers\[3\] = 2.0"),
        (7, "stage_layers = 7: give one of auto, even"),
    ],
)
def test_what_is_neither_a_rule_nor_a_number_for_each_stage(value, message):
    with pytest.raises(InputError, match=message):
        Plan(pp=4, stage_layers=value)


def test_numbers_that_do_not_add_up_are_refused_with_the_model():
    with pytest.raises(InputError, match="has 5 layers on 2 stages, but there are 6 layers"):
        Plan(pp=2, stage_layers=(2, 3)).check(MODEL)


# what follows
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize(
    ("schedule", "chunks"),
    [("1f1b", None), ("interleaved-1f1b", 2), ("zb-h1", None), ("zb-v", None)],
)
def test_stages_without_layers_hold_the_embedding_and_the_head_only(schedule, chunks, zero):
    stages = 8
    pp = stages // (2 if schedule in ("interleaved-1f1b", "zb-v") else 1)
    plan = Plan(
        dp=2, pp=pp, schedule=schedule, chunks=chunks, microbatches=2 * pp, zero=zero, stage_layers=(0, 1, 1, 1, 1, 1, 1, 0)
    )  # fmt: skip
    cluster = sl.load_cluster("dgx-a100", nodes=-(-plan.gpus // 8))
    cluster = replace(cluster, gpus_per_node=plan.gpus // cluster.nodes)
    step = sl.predict(MODEL, plan, cluster)
    first, last = step.stages[0], step.stages[-1]
    assert first.forward.total < step.stages[1].forward.total and last.forward.total > 0
    forwards = {(s.stage, s.microbatch): s for s in step.trace.spans if s.kind == "F"}
    # the first one waits for its parameters, others are slowed by the gathering of later stages'
    last_one = forwards[0, plan.microbatches - 1]
    if zero < 2:
        assert last_one.end_s - last_one.start_s == pytest.approx(first.forward.total)
    sent = [each.pp for each in sl.traffic(MODEL, plan)]
    assert sum(sent) > 0
    # an embedding alone keeps no activations of layers
    from stage_memory import stage_memory

    assert stage_memory(MODEL, plan, 0, first=True).activations == 0


def predicted_in(dp):
    """(the step of `LLAMA` with so many replicas, seconds of this process to predict it)"""
    model, cluster = sl.load_model("llama-3-405b"), sl.load_cluster("dgx-h100", nodes=16 * dp)
    start_s = time.process_time()
    step = sl.predict(model, replace(LLAMA, dp=dp), cluster)
    return step, time.process_time() - start_s


def test_llama_3_as_published_is_predicted_as_fast_as_a_sixteenth_of_its_replicas():
    predicted_in(8)  # what the first prediction does once
    _, few_s = predicted_in(8)
    step, all_s = predicted_in(128)
    assert all_s < 4 * few_s
    assert step.tokens == 16 * 2**20 and LLAMA.gpus == 16384
    assert 0.3 < step.mfu < 0.5  # the paper's: 41%

"""Plans: what is refused and how that is said, what is filled in, how layers are dealt out to stages."""

from dataclasses import FrozenInstanceError, replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.model import Model, load_model
from simlab.plan import ATTENTIONS, OFFLOADS, PRECISIONS, RECOMPUTE, TP_OVERLAPS, Plan, near
from simlab.schedules import CHUNKED, SCHEDULES, V_SHAPED, generate

LLAMA = load_model("llama-3-8b")  # 32 layers, 32 heads, 8 of them for keys and values, 14336 wide


@pytest.mark.parametrize("fields, says", [
    ({"dp": 0}, "dp = 0: give a whole number, at least 1"), ({"tp": 2.0}, "tp = 2.0: give a whole number, at least 1"),
    ({"pp": True}, "pp = True: give a whole number"), ({"cp": -4}, "cp = -4: give"), ({"microbatches": "8"}, "microbatches = '8': give"),
    ({"microbatch_size": None}, "microbatch_size = None: give"), ({"seq": 0}, "seq = 0: give a whole number, at least 1"),
    ({"bucket_bytes": 0}, "bucket_bytes = 0: give"), ({"prefetch": -1}, "prefetch = -1: give a whole number, at least 0"),
    ({"gradient_bytes": 0}, "gradient_bytes = 0: give a whole number, at least 1"),
    ({"hybrid": -2}, "hybrid = -2: give a whole number, at least 0"), ({"zero": 4}, r"zero = 4: give 0 \(none\), 1, 2 or 3"),
    ({"zero": True}, "zero = True: give 0"), ({"recompute": "some"}, "recompute = 'some': give one of none, selective, per-op, full"),
    ({"precision": "int8"}, "precision = 'int8': give one of fp32, fp16, bf16, fp8"),
    ({"attention": "fast"}, "attention = 'fast': give one of flash, flash-2, flash-1, unfused"),
    ({"tp_overlap": "all"}, "tp_overlap = 'all': give one of none, weight-grad, pipelined"),
    ({"offload": "disk"}, "offload = 'disk': give one of none, optimizer, parameters, activations"),
    ({"sequence_parallel": "no"}, "sequence_parallel = 'no': give True or False"), ({"dropout": 0.1}, "dropout = 0.1: give True or False"),
    ({"schedule": "1b1f"}, "unknown schedule '1b1f', did you mean '1f1b'\\? there is gpipe, 1f1b, "),
    ({"schedule": "1f1b", "chunks": 2}, "chunks = 2: 1f1b has 1, without a choice; leave it out, or take one of interleaved-1f1b"),
    ({"schedule": "zb-v", "chunks": 4}, "chunks = 4: zb-v has 2, without a choice"),
    ({"order": 5}, "order = 5: give a text, such as 'tp-cp-dp-pp'"), ({"schedule": ["1f1b"]}, r"schedule = \['1f1b'\]: give a text"),
    ({"precision": ["bf16"]}, r"precision = \['bf16'\]: give one of fp32"), ({"library": {}}, "library = {}: give one of megatron"),
    ({"zero": 1.0}, "zero = 1.0: give 0"),
    ({"dp": 12, "zero": 3, "hybrid": 5}, "hybrid = 5 does not divide dp x cp = 12; nearest that do: 3, 4, 6"),
])  # fmt: skip
def test_what_makes_no_plan_is_refused_and_quoted(fields, says):
    with pytest.raises(InputError, match=f"^{says}"):
        Plan(**fields)


@pytest.mark.parametrize("fields, gpus, says", [
    ({"dp": 3, "tp": 4}, 16, "dp x tp x pp x cp = 3 x 4 x 1 x 1 = 12, but there are 16 GPUs: dp = 4 would"),
    ({"pp": 3}, 16, "= 1 x 1 x 3 x 1 = 3, but there are 16 GPUs: tp x pp x cp = 3 does not divide them; nearest that do: 1, 2, 4"),
    ({"tp": 3}, 3, "tp = 3 does not divide llama-3-8b's heads = 32; nearest that do: 1, 2, 4"),
    ({"tp": 64}, None, "tp = 64 does not divide llama-3-8b's heads = 32; nearest that do: 8, 16, 32"),
    ({"cp": 3}, 3, "cp = 3 does not divide llama-3-8b's seq = 8192; nearest that do: 1, 2, 4"),
    ({"pp": 5}, 5, "pp x chunks = 5 x 1 = 5 stages do not divide 32 layers .nor 34 .*; nearest that do: 2, 4, 8"),
    ({"pp": 20, "schedule": "zb-v"}, None, "pp x chunks = 20 x 2 = 40 stages are more than the 32 layers; nearest that do: 8, 16, 32"),
])  # fmt: skip
def test_what_does_not_go_with_a_model_or_a_cluster_is_refused_with_what_would(fields, gpus, says):
    with pytest.raises(InputError, match=says):
        Plan(**fields).check(LLAMA, gpus)


def test_ranks_that_would_share_out_keys_and_values_unevenly_are_refused():
    model = Model(name="m", layers=2, hidden=96, heads=12, kv_heads=6, vocab=100)
    with pytest.raises(InputError, match="tp = 4 neither divides m's kv_heads = 6 nor is a multiple of them; nearest that do: 2, 3, 6"):
        Plan(tp=4).check(model)
    for tp in (1, 2, 3, 6, 12):  # with 12, two ranks have a copy each
        Plan(tp=tp).check(model)


def test_a_sequence_longer_than_the_learned_positions_is_refused():
    gpt2 = load_model("gpt2")
    for plan in (Plan(), Plan(seq=1024), Plan(seq=512)):
        assert plan.check(gpt2) is plan
    with pytest.raises(InputError, match=r"^seq = 4096 is more than gpt2's 1024 positions: give at most those$"):
        Plan(seq=4096).check(gpt2)
    Plan(seq=2**20).check(LLAMA)  # rotary embeddings have no table


def test_a_plan_stays_as_it_is():
    plan = Plan(dp=2)
    with pytest.raises(FrozenInstanceError):
        plan.dp = 4
    with pytest.raises(TypeError):
        Plan(2)
    assert plan == Plan(dp=2) and len({plan, Plan(dp=2), Plan(dp=3)}) == 2


def test_what_is_left_out_is_filled_in():
    plan = Plan()
    assert (plan.gpus, plan.stages, plan.global_batch, plan.shards, plan.chunks) == (1, 1, 1, 1, 1)
    assert Plan(schedule="afab").schedule == "gpipe"
    assert [Plan(precision=p).gradient_bytes for p in PRECISIONS] == [4, 2, 4, 4]
    assert [Plan(attention=a).dropout for a in ATTENTIONS] == [False, False, False, True]
    assert not Plan(sequence_parallel=True).sequence_parallel and Plan(tp=2, sequence_parallel=True).sequence_parallel
    assert Plan(dp=8, cp=2, zero=3, hybrid=4).shards == 4 and Plan(dp=8, cp=2, zero=3).shards == 16


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"zb-auto", "dualpipe"}))
def test_a_plan_knows_its_schedules_stages(schedule):
    plan = Plan(pp=3, microbatches=6, schedule=schedule)
    assert plan.stages == generate(schedule, 3, 6).stages
    assert plan.chunks == (2 if schedule in (*CHUNKED, *V_SHAPED) else 1)
    assert replace(plan, dp=2).schedule == schedule


# random plans ---------------------------------------------------------------------------------------------

counts = st.integers(1, 6)
plans = st.builds(
    Plan, dp=counts, tp=counts, pp=counts, cp=counts, zero=st.integers(0, 3), microbatch_size=counts, microbatches=counts,
    schedule=st.sampled_from(sorted(SCHEDULES)), recompute=st.sampled_from(RECOMPUTE), precision=st.sampled_from(sorted(PRECISIONS)),
    attention=st.sampled_from(ATTENTIONS[:-1]), tp_overlap=st.sampled_from(TP_OVERLAPS), offload=st.sampled_from(OFFLOADS),
    sequence_parallel=st.booleans(), uneven=st.booleans(), prefetch=st.integers(0, 3),
)  # fmt: skip


@given(plans)
def test_every_gpu_has_its_place_and_tensor_parallel_ranks_are_neighbours(plan):
    ranks = plan.ranks()
    assert len(ranks) == len(set(ranks)) == plan.gpus == plan.dp * plan.tp * plan.pp * plan.cp
    assert {tuple(map(max, zip(*ranks)))} == {(plan.dp - 1, plan.cp - 1, plan.pp - 1, plan.tp - 1)}
    for first in range(0, plan.gpus, plan.tp):
        group = ranks[first : first + plan.tp]
        assert len({rank[:3] for rank in group}) == 1 and [t for *_, t in group] == list(range(plan.tp))


@given(plans)
def test_a_plan_that_was_made_is_made_again_from_its_fields(plan):
    assert replace(plan) == plan and replace(replace(plan, dp=7), dp=plan.dp) == plan


@given(plans, st.integers(1, 130))
def test_stages_have_all_layers_between_them_or_a_reason_is_given(plan, layers):
    try:
        found = plan.layers_of_stages(layers)
    except InputError as why:
        assert plan.stages > layers or (not plan.uneven and layers % plan.stages)
        assert str(plan.stages) in str(why) and str(layers) in str(why) and "nearest that do: " in str(why)
        return
    assert len(found) == plan.stages and sum(found) == layers and min(found) >= 1
    assert max(found) - min(found) <= (2 if plan.stages == 1 else 1)
    if layers % plan.stages == 0:
        assert len(set(found)) == 1


@given(plans)
def test_a_checked_plan_can_be_cut_and_an_unchecked_one_says_what_cannot(plan):
    model = Model(layers=60, hidden=240, heads=60, vocab=100, seq=240)
    try:
        assert plan.check(model, plan.gpus) is plan
    except InputError as why:
        assume("stages do not divide" not in str(why))
        raise
    assert all(whole % degree == 0 for whole, degree in ((60, plan.tp), (240, plan.cp)))


def test_embedding_and_head_count_as_a_layer_each_where_that_comes_out_even():
    """Llama 3 405B: 126 layers on 16 ranks (Dubey et al. 2024, section 3.3.2)."""
    assert Plan(pp=16).layers_of_stages(126) == [7, *[8] * 14, 7]
    assert Plan(pp=5, uneven=True).layers_of_stages(32) == [6, 7, 7, 6, 6]


@given(st.integers(1, 300), st.integers(1, 300))
def test_what_is_near_divides_and_nothing_that_divides_is_nearer(value, whole):
    offered = [int(text) for text in near(value, whole).split(": ")[1].split(", ")]
    others = {n for n in range(1, whole + 1) if whole % n == 0} - set(offered)
    assert all(whole % n == 0 for n in offered) and len(offered) <= 3
    assert all(abs(n - value) >= max(abs(o - value) for o in offered) for n in others)

"""Plans: what is refused and how that is said, what is filled in, how layers are dealt out to
stages."""

import json
from dataclasses import FrozenInstanceError, fields, replace
from pydoc import plaintext, render_doc

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import simlab as sl
from simlab.errors import InputError, near
from simlab.layer.passes.recomputation import RECOMPUTE
from simlab.schedules import SCHEDULES, generate
from simlab.spec.fields import documented_fields, parsed
from simlab.spec.hardware import Efficiency
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan, plan_fields
from simlab.spec.plan_checks import ATTENTIONS, OFFLOADS, PRECISIONS, TP_OVERLAPS
from simlab.spec.stage_layers import RULES

LLAMA = load_model("llama-3-8b")  # 32 layers, 32 heads, 8 of them for keys and values, 14336 wide


@pytest.mark.parametrize("fields, says", [
    ({"dp": 0}, "dp = 0: give a whole number, at least 1"), ({"tp": 2.0}, "tp = 2.0: give a whole number, at least 1"),
    ({"pp": True}, "pp = True: give a whole number"), ({"cp": -4}, "cp = -4: give"), ({"microbatches": "8"}, "microbatches = '8': give"),
    ({"microbatch_size": None}, "microbatch_size = None: give"), ({"seq": 0}, "seq = 0: give a whole number, at least 1"),
    ({"bucket_bytes": 0}, "bucket_bytes = 0: give"), ({"prefetch": -1}, "prefetch = -1: give a whole number, at least 0"),
    ({"gradient_bytes": 0}, "gradient_bytes = 0: give a whole number, at least 1"),
    ({"hybrid": -2}, "hybrid = -2: give a whole number, at least 0"), ({"zero": 4}, "zero = 4: give one of 0, 1, 2, 3"),
    ({"zero": True}, "zero = True: give one of 0"),
        ({"recompute": "some"}, "recompute = 'some': give one of none, selective, outputs, per-op, full"),
    ({"precision": "int8"}, "precision = 'int8': give one of fp32, fp16, bf16, fp8"),
    ({"attention": "fast"}, "attention = 'fast': give one of flash, flash-2, flash-1, flash-fp8, unfused"),
    ({"tp_overlap": "all"}, "tp_overlap = 'all': give one of none, weight-grad, pipelined"),
    ({"offload": "disk"}, "offload = 'disk': give one of none, optimizer, parameters, activations"),
    ({"sequence_parallel": "no"}, "sequence_parallel = 'no': give True or False"), ({"dropout": 0.1}, "dropout = 0.1: give True or False"),
    ({"schedule": "1b1f"}, "unknown schedule '1b1f', did you mean '1f1b'\\? there is gpipe, 1f1b, "),
    ({"schedule": "1f1b", "chunks": 2}, "chunks = 2: 1f1b has 1, without a choice; leave it out, or take one of interleaved-1f1b"),
    ({"schedule": "zb-v", "chunks": 4}, "chunks = 4: zb-v has 2, without a choice"),
    ({"order": 5}, "order = 5: give a text, such as 'tp-cp-dp-pp'"),
        ({"schedule": ["1f1b"]}, r"unknown schedule \['1f1b'\]; there is gpipe"),
    ({"precision": ["bf16"]}, r"precision = \['bf16'\]: give one of fp32"), ({"library": {}}, "library = {}: give one of megatron"),
    ({"zero": 1.0}, "zero = 1.0: give one of 0"),
    ({"gradient_bytes": 3}, "gradient_bytes = 3: give 2 or 4, the bytes of a number in 16 or 32 bits$"),
    ({"gradient_bytes": 2, "precision": "fp32"}, "gradient_bytes = 2 with precision = 'fp32': give 4, or leave it out$"),
    ({"dp": 12, "zero": 3, "hybrid": 5}, "hybrid = 5 does not divide dp x cp = 12; nearest that do: 3, 4, 6"),
])  # fmt: skip
def test_what_makes_no_plan_is_refused_and_quoted(fields, says):
    with pytest.raises(InputError, match=f"^{says}"):
        Plan(**fields)


@pytest.mark.parametrize("fields, gpus, says", [
    ({"dp": 3, "tp": 4}, 16, "dp x tp x pp x cp = 3 x 4 x 1 x 1 = 12, but there are 16 GPUs: dp = 4 would use them all"),
    ({"tp": 8, "cp": 2, "seq": 8200, "sequence_parallel": True, "cp_layout": "contiguous"}, None,
     "tp = 8 with sequence_parallel does not divide the 4100 tokens that cp = 2 leaves of llama-3-8b's seq = 8200; nearest that do: "),
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
    with pytest.raises(
        InputError,
        match="tp = 4 neither divides m's kv_heads = 6 nor is a multiple of them; nearest that do: 2, 3, 6",
    ):
        Plan(tp=4).check(model)
    for tp in (1, 2, 3, 6, 12):  # with 12, two ranks have a copy each
        Plan(tp=tp).check(model)


def test_a_sequence_longer_than_the_learned_positions_is_refused():
    gpt2 = load_model("gpt2")
    for plan in (Plan(), Plan(seq=1024), Plan(seq=512)):
        assert plan.check(gpt2) is plan
    with pytest.raises(
        InputError, match=r"^seq = 4096 is more than gpt2's 1024 positions: give at most those$"
    ):
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
    wide = {
        p: Plan(precision=p, library="torch" if p == "fp8-rowwise" else "megatron").gradient_bytes
        for p in PRECISIONS
    }
    assert {p: its for p, its in wide.items() if its != 4} == {"fp16": 2}
    assert [a for a in ATTENTIONS if Plan(attention=a, precision="fp8-mx").dropout] == ["unfused"]
    assert Plan(dp=8, cp=2, zero=3, hybrid=4).shards == 4 and Plan(dp=8, cp=2, zero=3).shards == 16


TWO_STAGES_A_RANK = ("interleaved-1f1b", "looped-bfs", "zb-v", "v-half", "v-min", "dualpipe-v")


@pytest.mark.parametrize("schedule", sorted(set(SCHEDULES) - {"zb-auto"}))
def test_a_plan_knows_its_schedules_stages(schedule):
    plan = Plan(pp=4, microbatches=8, schedule=schedule)
    assert plan.stages == generate(schedule, 4, 8).stages
    assert plan.chunks == (2 if schedule in TWO_STAGES_A_RANK else 1)
    assert replace(plan, dp=2).schedule == schedule


# random plans
# ---------------------------------------------------------------------------------------------

counts = st.integers(1, 6)


@st.composite
def random_plans(draw):
    """Plans of all degrees, with options that have an effect beside them."""
    fields = {
        name: draw(counts) for name in ("dp", "tp", "pp", "cp", "microbatch_size", "microbatches")
    }
    fields |= {
        "zero": draw(st.integers(0, 3)),
        "schedule": draw(st.sampled_from(sorted(SCHEDULES))),
        "recompute": draw(st.sampled_from(RECOMPUTE)),
        "precision": draw(st.sampled_from(sorted(PRECISIONS))),
        "attention": draw(st.sampled_from(ATTENTIONS[:-1])),
        "offload": draw(st.sampled_from(OFFLOADS)),
        "stage_layers": draw(st.sampled_from(RULES)),
    }
    if fields["schedule"] == "dualpipe":
        fields |= {"pp": 2 * fields["pp"], "zero": fields["zero"] % 2}
    if fields["precision"] == "fp8-rowwise":
        fields["library"] = "torch"
    if fields["attention"] == "flash-fp8":
        fields["precision"] = "fp8-mx"
    if fields["precision"] in ("fp8-current", "fp8-mx"):
        fields["library"] = "megatron"
    if fields["tp"] > 1:
        fields["tp_overlap"] = draw(st.sampled_from(TP_OVERLAPS))
        fields["sequence_parallel"] = draw(st.booleans())
    if fields["zero"] == 3:
        fields |= {"prefetch": draw(st.integers(0, 3)), "reshard": draw(st.booleans())}
    if fields["recompute"] == "outputs":
        fields["library"] = "megatron"
        fields["precision"] = fields["precision"].replace("-rowwise", "")
    return Plan(**fields)


plans = random_plans()


@given(plans)
def test_every_gpu_has_its_place_and_tensor_parallel_ranks_are_neighbours(plan):
    ranks = plan.layout.all_coordinates()
    assert len(ranks) == len(set(ranks)) == plan.gpus == plan.dp * plan.tp * plan.pp * plan.cp
    assert {tuple(map(max, zip(*ranks)))} == {(plan.dp - 1, plan.cp - 1, plan.pp - 1, plan.tp - 1)}
    for first in range(0, plan.gpus, plan.tp):
        group = ranks[first : first + plan.tp]
        assert len({rank[:3] for rank in group}) == 1 and [t for *_, t in group] == list(
            range(plan.tp)
        )


@given(plans)
def test_a_plan_that_was_made_is_made_again_from_its_fields(plan):
    assert replace(plan) == plan and replace(replace(plan, dp=7), dp=plan.dp) == plan
    as_json = json.loads(
        json.dumps({field.name: getattr(plan, field.name) for field in fields(plan)})
    )
    assert Plan(**as_json) == plan


def test_a_number_that_was_derived_is_derived_anew_by_replace_and_a_given_one_stays():
    plan = Plan(dp=512, schedule="zb-v", precision="fp16", cp=2)
    assert (plan.chunks, plan.gradient_bytes) == (2, 2)
    changed = replace(plan, dp=1, cp=1, schedule="1f1b", precision="bf16")
    assert changed == Plan()  # 2 chunks of 1f1b are not refused
    given_all = Plan(dp=512, chunks=2, schedule="zb-v", gradient_bytes=4, bucket_bytes=10**6)
    changed = replace(given_all, dp=256, precision="fp16")
    assert (changed.gradient_bytes, changed.bucket_bytes) == (4, 10**6)
    with pytest.raises(InputError, match="chunks = 2: 1f1b has 1"):
        replace(given_all, schedule="1f1b")


@given(plans)
def test_a_checked_plan_can_be_cut_and_an_unchecked_one_says_what_cannot(plan):
    model = Model(layers=60, hidden=240, heads=60, vocab=100, seq=3600)
    try:
        assert plan.check(model, plan.gpus) is plan
    except InputError as why:
        assume("stages do not divide" not in str(why))
        raise
    assert all(whole % degree == 0 for whole, degree in ((60, plan.tp), (3600, plan.cp)))


@given(st.integers(1, 300), st.integers(1, 300))
def test_what_is_near_divides_and_nothing_that_divides_is_nearer(value, whole):
    offered = [int(text) for text in near(value, whole).split(": ")[1].split(", ")]
    others = {n for n in range(1, whole + 1) if whole % n == 0} - set(offered)
    assert all(whole % n == 0 for n in offered) and len(offered) <= 3
    assert all(abs(n - value) >= max(abs(o - value) for o in offered) for n in others)


# documentation
# ----------------------------------------------------------------------------------------------


def test_help_shows_a_sentence_for_every_field():
    shown = " ".join(render_doc(Plan, renderer=plaintext).replace(" |  ", "").split())
    assert [facts.name for facts in plan_fields()] == [field.name for field in fields(Plan)]
    for facts in plan_fields():
        assert facts.doc in shown, facts.name
        assert facts.doc[0].isupper() and facts.doc.endswith(".")
        for choice in facts.choices or ():
            assert repr(choice) in shown


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("dp", "8", 8), ("seq", "4096", 4096), ("zero", "3", 3), ("fused", "no", False), ("dropout", "yes", True),
        ("schedule", "zb-h1", "zb-h1"), ("stage_layers", "even", "even"), ("stage_layers", "0,1,1,0", (0, 1, 1, 0)),
        ("stage_layers", "6", (6,)), ("dp", "two", "two"), ("stage_layers", "1,x", "1,x"), ("fused", "maybe", "maybe"),
    ],
)  # fmt: skip
def test_a_field_is_read_from_text(name, text, value):
    facts = next(facts for facts in plan_fields() if facts.name == name)
    found = parsed(facts, text)
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize("kind", [sl.Model, sl.Cluster, sl.Gpu, sl.Link, sl.Fabric, Efficiency])
def test_every_field_of_what_is_asked_for_is_typed_and_documented(kind):
    shown = " ".join(render_doc(kind, renderer=plaintext).replace(" |  ", "").split())
    facts = documented_fields(kind)
    assert [its.name for its in facts] == [field.name for field in fields(kind)]
    assert all(its.doc in shown and its.doc.endswith(".") for its in facts)
    assert object not in [its.type for its in facts]


def test_what_is_asked_for_is_shown_in_a_line():
    cluster = sl.load_cluster("dgx-h100", nodes=4)
    assert repr(cluster) == "Cluster('dgx-h100': 4 x 8 h100-sxm-80gb)"
    assert repr(cluster.gpu) == "Gpu('h100-sxm-80gb', 79.6 GiB, 132 SMs)"
    assert repr(sl.Link(latency_s=1e-6)) == "Link(latency_s=1e-06)"
    assert repr(Plan(tp=4)).startswith("Plan(tp=4, ")
    for shown in (cluster.inter, load_model("llama-3-405b"), Plan(), sl.Link()):
        assert len(repr(shown)) < 200 and "source" not in repr(shown)
    assert eval(repr(Plan(tp=4, zero=3)), {"Plan": Plan}) == Plan(tp=4, zero=3)


def test_the_schema_of_a_plan_has_every_field_with_its_default_and_choices():
    schema = json.loads(json.dumps(sl.plan_schema()))
    properties = schema["properties"]
    assert list(properties) == [field.name for field in fields(Plan)]
    assert schema["required"] == [] and schema["additionalProperties"] is False
    assert properties["dp"] == {
        "type": "integer", "default": 1, "description": plan_fields()[0].doc,
    }  # fmt: skip
    assert properties["zero"]["enum"] == [0, 1, 2, 3]
    assert properties["seq"]["anyOf"] == [{"type": "integer"}, {"type": "null"}]
    assert properties["stage_layers"]["anyOf"] == [
        {"type": "string"}, {"type": "array", "items": {"type": "integer"}},
    ]  # fmt: skip
    # what the schema has as defaults makes the default plan
    assert Plan(**{name: its["default"] for name, its in properties.items()}) == Plan()

"""Models whose layers are of several kinds, in a pattern."""

import json
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import simlab as sl
from simlab.layer.parameters import stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import RankLowering
from simlab.lowering.kernels import Attention, UnitKernels
from simlab.studies.caching_allocator import pool_steps

SIZES = {"layers": 8, "hidden": 256, "heads": 4, "vocab": 1024, "bias": False, "seq": 128}
MIXED = sl.Model(
    name="every second",
    **SIZES,
    experts=4,
    experts_per_token=2,
    expert_ffn=128,
    kinds={"wide layer": {"experts": 0, "ffn": 2048}},
    pattern=["wide layer", "layer"],
)
ALL_EXPERTS = replace(MIXED, kinds=(), pattern=())
ALL_WIDE = sl.Model(name="wide", **SIZES, ffn=2048)
NODE = sl.load_cluster("dgx-h100")


def ends(model):
    return 2 * model.vocab * model.hidden + model.hidden


def test_parameters_and_operations_are_those_of_each_layers_kind():
    """Half of the layers have experts; the sums are those of models with one kind, halved."""
    for count in ("parameters", "active_parameters"):
        mixed, *others = (getattr(its, count) - ends(its) for its in (MIXED, ALL_EXPERTS, ALL_WIDE))
        assert 2 * mixed == sum(others)
    flops = [its.flops_per_token() - 3 * its.head_flops for its in (MIXED, ALL_EXPERTS, ALL_WIDE)]
    assert 2 * flops[0] == flops[1] + flops[2]


def test_a_pool_of_memory_meets_the_tensors_of_each_kind():
    """Half of the layers are of each kind, and a gradient of the last layer's output is there."""
    gradient = 2 * 128 * 256
    mixed, experts, wide = (
        pool_steps(its, [128])[0].allocated_bytes - gradient
        for its in (MIXED, ALL_EXPERTS, ALL_WIDE)
    )
    assert experts != wide and 2 * mixed == pytest.approx(experts + wide, rel=0.01)


def test_dense_layers_are_a_pattern_like_any_other():
    first = sl.Model(**SIZES, experts=4, experts_per_token=2, dense_layers=2)
    said = replace(first, dense_layers=0, pattern=["dense layer"] * 2 + ["layer"] * 6)
    plan = sl.Plan(dp=4, pp=2, microbatches=4)
    assert said.parameters == first.parameters
    assert sl.predict(said, plan, NODE).to_dict() | {"model": 0} == (
        sl.predict(first, plan, NODE).to_dict() | {"model": 0}
    )


def test_a_model_is_the_same_again_from_json():
    again = sl.Model(**json.loads(json.dumps(MIXED.to_dict())))
    assert again == MIXED and hash(again) == hash(MIXED)


def test_units_of_a_stage_have_the_kinds_of_its_layers_in_order():
    plan = sl.Plan(dp=2, pp=4, microbatches=4, stage_layers=(1, 3, 3, 1))
    lowering = RankLowering(MIXED, plan, program_of(plan), 1)
    assert [(unit.name, unit.type) for unit in lowering.units[1]] == [
        ("layer 1", "layer"),
        ("layer 2", "wide layer"),
        ("layer 3", "layer"),
    ]
    held = [unit.parameters for unit in lowering.units[1]]
    one = {
        "layer": stage_parameters(ALL_EXPERTS, sl.Plan(), 1),
        "wide layer": stage_parameters(ALL_WIDE, sl.Plan(), 1),
    }
    assert held == [one["layer"], one["wide layer"], one["layer"]]


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("library", ["megatron", "torch"])
def test_a_stage_holds_and_computes_what_its_layers_would_among_their_like(library, zero):
    """Of two stages of one layer the first is wide and the second has experts: activations and
    seconds of each are as in a model that has no other layers."""
    plan = sl.Plan(dp=4, pp=2, microbatches=4, library=library, zero=zero)
    two = [replace(model, layers=2) for model in (MIXED, ALL_WIDE, ALL_EXPERTS)]
    mixed, wide, experts = (sl.predict(model, plan, NODE) for model in two)
    assert mixed.held[0] == pytest.approx(wide.held[0])
    assert mixed.held[1] == pytest.approx(experts.held[1])
    assert mixed.stages[0] == wide.stages[0] and mixed.stages[1] == experts.stages[1]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"pattern": "layer"}, "pattern = 'layer': give a list"),
        ({"pattern": ["dense layer"]}, "pattern has 'dense layer'.* give one of layer"),
        ({"kinds": {"head": {}}}, "kind of layers named 'head'"),
        ({"kinds": {"a": {"vocab": 1}}, "pattern": ["a"]}, "kind 'a': 'vocab'; give fields"),
        ({"kinds": {"a": {"fnn": 1}}, "pattern": ["a"]}, "did you mean 'ffn'"),
        ({"kinds": {"a": {"ffn": 0}}, "pattern": ["a"]}, "ffn = 0"),
        ({"kinds": {"a": {"ffn": 1}}, "pattern": ["layer"]}, "no layer of pattern is a 'a'"),
        ({"kinds": ["a"], "pattern": ["a"]}, "kinds = .*: give {name: {field: value}}"),
        (
            {"experts": 2, "experts_per_token": 1, "dense_layers": 1, "pattern": ["layer"]},
            "dense_layers = 1 beside a pattern",
        ),
    ],
)
def test_what_is_no_pattern_is_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        sl.Model(**SIZES | fields)


# kinds of attention, norms and biases
# ------------------------------------------------------------------------------------------------


@st.composite
def any_layers(draw):
    """A model of two kinds of layers, and a plan for eight GPUs."""
    experts = draw(st.sampled_from([0, 4]))
    choices = {
        "norms": ("before", "both", "behind"), "qk_norm": (False, True, "whole", "weightless"), "sinks": (False, True),
        "biases": ((), ("qkv",), ("qkv", "output", "mlp", "router", "norm")), "window": (0, 64, 512), "window_slides": (True, False),
        "rotary": (True, False), "rope_size": (0, 16), "tied_head": (False, True),
    }  # fmt: skip
    fields = {name: draw(st.sampled_from(its)) for name, its in choices.items()}
    other = {
        "window": 0,
        "ffn": 640,
        "experts": 0,
        "norms": draw(st.sampled_from(["before", "both"])),
    }
    model = sl.Model(
        **SIZES | {"hidden": 512, "heads": 8, "seq": 256}, kv_heads=4, gated_mlp=True, experts=experts,
        experts_per_token=experts // 2, **fields, kinds={"other layer": other}, pattern=["layer", "other layer"],
    )  # fmt: skip
    tp = draw(st.sampled_from([1, 2]))
    try:
        plan = sl.Plan(
            dp=4 // tp, tp=tp, pp=2, microbatches=4, library=draw(st.sampled_from(["megatron", "torch", "fsdp1"])),
            zero=draw(st.sampled_from([0, 3])), recompute=draw(st.sampled_from(["none", "full", "per-op", "outputs"])),
            sequence_parallel=tp > 1 and draw(st.booleans()), precision=draw(st.sampled_from(["bf16", "fp8"])),
            schedule=draw(st.sampled_from(["1f1b", "zb-h1"])), ep=2 if experts and tp == 1 else 1,
        )  # fmt: skip
        plan.check(model)
    except sl.InputError:
        assume(False)
    return model, plan


@given(any_layers())
def test_any_layers_give_back_what_they_hold_and_take_as_long_walked_as_played(step):
    model, plan = step
    predicted = sl.predict(model, plan, NODE)
    for rank in range(plan.pp):
        moments = predicted.memory.moments(rank)
        first, last = moments[0].held, moments[-2].held
        assert all(min(moment.held.values()) > -1 for moment in moments)
        changed = [name for name in first if abs(last[name] - first[name]) > 1]
        assert set(changed) <= {"gradients"}
    played = sl.layer_trace(model, plan, NODE).whole_step_s
    assert played == pytest.approx(predicted.step_s, rel=1e-9)


def test_a_query_meets_the_keys_of_its_window():
    """The model's operations count so many keys for each query (as Megatron-Bridge does); the kernel
    takes the time of the pairs that there are: w s - w^2 / 2, or half of w s in windows side by side."""
    seq, window = 4096, 1024
    model = sl.Model(**SIZES | {"hidden": 4096, "heads": 32, "layers": 2})
    times = {}
    for name, fields in {
        "all": {},
        "slides": {"window": window},
        "chunks": {"window": window, "window_slides": False},
        "wide": {"window": 10 * seq},
    }.items():
        its = replace(model, **fields)
        keys = min(seq, its.window or seq)
        assert its.layer_flops(seq)["scores"] == 2 * keys * 4096
        kernels = UnitKernels(its, sl.Plan(seq=seq))["layer"].forward
        (kernel,) = (kernel for kernel in kernels if isinstance(kernel, Attention))
        times[name] = kernel.share * kernel.flops / 2
        pairs = sum(min(query + 1, keys) for query in range(seq))
        if name == "chunks":
            pairs = sum(query % window + 1 for query in range(seq))
        assert times[name] / (4 * 4096) == pytest.approx(pairs, rel=2e-3)
    assert times["wide"] == times["all"]


def test_norms_behind_keep_the_results_of_attention_and_mlp():
    before, both, behind = (
        sum(sl.Model(**SIZES, norms=norms).layer_activations(2, flash=True).values())
        for norms in ("before", "both", "behind")
    )
    hidden = 2 * 2 * SIZES["seq"] * SIZES["hidden"]  # bytes of 16 bits, of two samples
    assert both - before == 2 * hidden
    assert both - behind == 2 * hidden  # what norms before make, or what they read


@pytest.mark.parametrize(
    ("fields", "plan", "says"),
    [
        (
            {"window": 64},
            {"cp": 2},
            "no ring has the model's windows of 64 keys; give cp_kind = 'all-gather' or",
        ),
        (
            {"window": 64, "window_slides": False},
            {"cp": 2, "cp_kind": "all-gather"},
            "windows of 64 keys side by side are not cut over sequences",
        ),
        (
            {"sinks": True},
            {"cp": 2, "cp_kind": "all-gather"},
            "sinks are cut over sequences by all-to-all only",
        ),
        (
            {"qk_norm": "whole"},
            {"tp": 2},
            "norm of all heads' queries is cut over ranks by library = 'torch' with",
        ),
    ],
)
def test_what_of_a_layer_cannot_be_cut_is_refused(fields, plan, says):
    kinds = {"kinds": {"other": fields}, "pattern": ["layer", "other"]}
    with pytest.raises(sl.InputError, match=says):
        sl.Plan(**plan).check(sl.Model(**SIZES, **kinds))


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"norms": "after"}, "norms = 'after'.* give one of before, both, behind"),
        ({"biases": ("qvk",)}, "biases = 'qvk', did you mean 'qkv'"),
        ({"window": -1}, "window = -1"),
        ({"sinks": 1}, "sinks = 1: give True or False"),
        ({"rope_size": 64}, "rope_size = 64: give less than head_size = 64"),
    ],
)
def test_words_that_a_layer_has_not_are_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        sl.Model(**SIZES | fields)


@pytest.mark.parametrize(
    ("name", "parameters", "routers"),
    [("glm-4.5", 358_337_791_296, 90 * 160), ("glm-4.5-air", 110_468_824_832, 46 * 128)],
)
def test_modules_that_predict_a_second_token_have_the_published_parameters(
    name, parameters, routers
):
    """Numbers in the safetensors of zai-org/GLM-4.5 and GLM-4.5-Air, whose module has copies of the
    embedding and the head, and whose routers have biases without gradients."""
    model = replace(sl.load_model(name), mtp_layers=1)
    assert model.parameters + 2 * model.vocab * model.hidden + routers == parameters


def test_a_module_is_one_more_layer_a_projection_and_the_head_once_more():
    model, h = sl.load_model("deepseek-v3"), 7168
    more = replace(model, mtp_layers=1)
    layer = sum(model.layer_flops(4096).values())
    own = more.flops_per_token(4096) - model.flops_per_token(4096)
    assert own == 3 * (layer + 2 * 2 * h * h + model.head_flops)
    idle = 3 * h * model.expert_ffn * (model.experts - model.experts_per_token)
    added = more.parameters - model.parameters
    assert more.active_parameters - model.active_parameters == added - idle

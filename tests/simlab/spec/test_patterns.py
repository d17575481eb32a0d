"""Models whose layers are of several kinds, in a pattern."""

import json
from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import RankLowering

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

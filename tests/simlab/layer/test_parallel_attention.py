"""Attention and MLP that read one input and are added to it together (GPT-J, PaLM, Falcon, Command R)."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations
from simlab.lowering.build import program_of
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.memory.step import StepWalk
from simlab.spec.model.hugging_face import sizes_of

SIZES = sl.Model(
    name="P", layers=4, hidden=512, heads=8, kv_heads=4, ffn=1024, vocab=2048, seq=256, gated_mlp=True, bias=False
)  # fmt: skip
ONE, TWO = (replace(SIZES, parallel=its) for its in (True, "two norms"))
TOKENS, H = 256, 512


def sent(kernels):
    return [
        (its.kind, its.size_bytes / (2 * TOKENS * H))
        for its in kernels
        if isinstance(its, Communication)
    ]


@pytest.mark.parametrize("model", [ONE, TWO])
def test_ranks_sum_up_attention_and_mlp_together(model):
    """gpt_j_residual in EleutherAI/gpt-neox (megatron/model/transformer.py) adds both parts of a rank and
    reduces the sum once. Each column-parallel product sums up its own input's gradient
    (copy_to_model_parallel_region), or gathers its input itself."""
    kernels, plain = (layer_kernels(its, sl.Plan(tp=2)) for its in (model, SIZES))
    assert sent(kernels.forward) == [("all_reduce", 1)]
    assert sent(plain.forward) == [("all_reduce", 1)] * 2
    assert sent(kernels.input_grad) == sent(plain.input_grad) == [("all_reduce", 1)] * 2
    cut = layer_kernels(model, sl.Plan(tp=2, sequence_parallel=True))
    assert sent(cut.forward) == [("all_gather", 1), ("all_gather", 1), ("reduce_scatter", 1)]


@pytest.mark.parametrize(("model", "norms"), [(ONE, 1), (TWO, 2)])
def test_a_layer_has_the_same_products_and_so_many_norms(model, norms):
    assert model.layer_flops(TOKENS) == SIZES.layer_flops(TOKENS)
    kinds = [its.kind for its in layer_operations(model)]
    assert kinds.count(OperationKind.NORM) == norms and kinds.count(OperationKind.RESIDUAL) == 1
    assert SIZES.layer_parameters["norms"] - model.layer_parameters["norms"] == (2 - norms) * H


def test_a_layer_keeps_its_input_once():
    """Of a layer one after the other the backward reads the sum between both and the second norm's
    result besides."""
    kept = [sum(its.layer_activations(1, flash=True).values()) for its in (SIZES, TWO, ONE)]
    assert kept[0] - kept[1] == kept[1] - kept[2] == 2 * TOKENS * H


@pytest.mark.parametrize("model", [ONE, replace(TWO, biases=("head", "mlp", "norm"))])
@pytest.mark.parametrize(
    "plan",
    [
        {"tp": 2, "sequence_parallel": True},
        {"tp": 2, "schedule": "zb-h1", "sequence_parallel": True, "recompute": "full"},
        {"tp": 2, "library": "torch", "zero": 3, "dp": 2, "recompute": "per-op"},
        {"library": "torch", "dp": 2},
        {"library": "nanotron", "tp": 2, "attention": "unfused", "dropout": True},
    ],
)
def test_a_step_gives_back_what_it_takes_and_takes_as_long_walked_as_played(model, plan):
    plan = sl.Plan(pp=2, microbatches=4, **plan)
    walk = StepWalk(model, plan, program_of(plan), [2, 2])
    for rank in range(2):
        moments = walk.moments(rank)
        first, last = moments[0].held, moments[-2].held
        assert all(min(its.held.values()) > -1 for its in moments)
        assert {name for name in first if abs(last[name] - first[name]) > 1} <= {"gradients"}
    cluster = replace(
        sl.load_cluster("dgx-h100", nodes=1), gpus_per_node=plan.gpus, nics_per_node=8
    )
    found = sl.predict(model, plan, cluster)
    played_s = sl.layer_trace(model, plan, cluster).whole_step_s
    assert found.step_s == pytest.approx(played_s, rel=1e-9)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        ({"new_decoder_architecture": False}, {"parallel": True, "kv_heads": 1}),
        ({"multi_query": False, "parallel_attn": False}, {"parallel": False, "kv_heads": 8}),
        (
            {"new_decoder_architecture": True, "num_kv_heads": 2},
            {"parallel": "two norms", "kv_heads": 2},
        ),
        (
            {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
            {"parallel": True, "kv_heads": 8},
        ),
    ],
)
def test_falcon_says_its_kind_by_several_keys(config, fields):
    """FalconDecoderLayer and FalconAttention in transformers, models/falcon/modeling_falcon.py."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 8, "vocab_size": 99}
    read = sizes_of({"model_type": "falcon"} | sizes | config)
    assert {name: read[name] for name in fields} == fields


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"parallel": 1}, "parallel = 1; give one of False, True, two norms"),
        ({"parallel": True, "norms": "both"}, "parallel = True with norms = 'both'"),
        ({"biases": ("head",), "tied_head": True}, "tied_head with a bias of the head"),
    ],
)
def test_what_does_not_go_together_is_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        replace(SIZES, **fields)

"""Norms over all heads of queries and keys under tensor parallelism, as allenai/OLMo-core has them: q and k
come from ColwiseParallel with output_layouts Shard(1), and from SequenceParallel, which has a whole
scale on each rank, with output_layouts Shard(2) (`Attention.apply_tp` in nn/attention/__init__.py)."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import partial_parameters, stage_parameters
from simlab.lowering.kernels import Communication, layer_kernels

MODEL = sl.Model(
    name="O", layers=2, hidden=256, heads=8, kv_heads=4, ffn=512, vocab=1024, seq=64, gated_mlp=True,
    bias=False, norms="behind", qk_norm="whole",
)  # fmt: skip
QUERIES, KEYS, NORMS = 256, 128, 2 * 256


def exchanges(kernels):
    return [
        (its.name, its.size_bytes) for its in kernels
        if isinstance(its, Communication) and its.kind == "all_to_all"
    ]  # fmt: skip


@pytest.mark.parametrize("fields", [{}, {"rope_size": 16}, {"rotary": False}])
@pytest.mark.parametrize("tp", [2, 4])
def test_queries_and_keys_are_exchanged_before_the_norm_and_back(tp, fields):
    """Two bytes of each number of a rank's part, whatever part of a head is turned afterwards; gradients
    go the same ways back."""
    model = sl.Model(**MODEL.to_dict() | fields)
    plan = sl.Plan(tp=tp, sequence_parallel=True, library="torch")
    kernels = layer_kernels(model, plan)
    parts = [2 * 64 * numbers / tp for numbers in (QUERIES, KEYS)]
    forward, backward = exchanges(kernels.forward), exchanges(kernels.input_grad)
    assert [size for _, size in forward] == 2 * parts
    assert [size for _, size in backward] == 2 * parts[::-1]
    assert not exchanges(layer_kernels(model, sl.Plan(library="torch")).forward)
    sl.predict(model, plan, replace(sl.load_cluster("dgx-h100", nodes=1), gpus_per_node=tp))


def test_scales_are_whole_on_each_rank_and_their_gradients_are_summed():
    plan = sl.Plan(tp=2, sequence_parallel=True, library="torch")
    one = stage_parameters(MODEL, sl.Plan(), 1)
    whole = QUERIES + KEYS + NORMS
    assert stage_parameters(MODEL, plan, 1) == (one - whole) / 2 + whole
    assert partial_parameters(MODEL, plan, 1) == whole


@pytest.mark.parametrize(
    "plan",
    [
        {"library": "megatron", "sequence_parallel": True},
        {"library": "torch"},
        {"library": "torch", "sequence_parallel": True, "recompute": "per-op"},
        {"library": "torch", "sequence_parallel": True, "tp": 8},
    ],
)
def test_others_do_not_cut_such_norms(plan):
    """Megatron-Bridge builds OLMoE's norms of the width of all heads and applies them to a rank's
    (models/olmoe/modeling_olmoe.py), which fits one rank only."""
    with pytest.raises(
        sl.InputError, match="norm of all heads' queries is cut over ranks by library = 'torch'"
    ):
        sl.Plan(**{"tp": 2} | plan).check(MODEL)

"""What Transformer Engine keeps of weights whose products are in 8 bits, and what is gathered of them,
against numbers from the shapes of Llama-3-8B's matrices."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.parameters import product_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import rank_instructions

LLAMA = sl.load_model("llama-3-8b")
NODE = sl.load_cluster("dgx-h100")
LAYER = 4096 * (4096 + 2 * 1024 + 4096 + 3 * 14336)
"""Numbers of a layer's matrices: those of q, k and v, of attention's output, and of three in the MLP."""
FP8 = sl.Plan(dp=4, tp=2, zero=1, precision="fp8", sequence_parallel=True, microbatches=4)
GATHERED = replace(FP8, fp8_param_gather=True)


def parameters_bytes(plan, model=LLAMA):
    cluster = replace(NODE, nodes=plan.gpus // 8)
    return sl.predict(model, plan, cluster).memory.rest(0)["parameters"]


def gathered_bytes(plan, model=LLAMA, dimension="dp"):
    """Bytes that the first rank's parameters have when they are gathered, once for each time."""
    found = rank_instructions(model, plan, program_of(plan), 0)
    return sum(
        item.size_bytes
        for item in found
        if (item.action, item.kind, item.dimension) == ("begin", "all_gather", dimension)
    )


def test_products_in_8_bits_take_two_bytes_more_of_each_weight_and_save_nothing():
    """The 8-bit copy and its transpose: 57.9 GiB where 53.7 are held in 16 bits."""
    copies = 2 * 32 * LAYER / 2
    bf16 = replace(FP8, precision="bf16")
    assert parameters_bytes(FP8) - parameters_bytes(bf16) == copies
    held = [
        sum(sl.predict(LLAMA, plan, NODE).memory_bytes.values()) / 2**30 for plan in (bf16, FP8)
    ]
    assert held == pytest.approx([53.7, 57.9], abs=0.05)


def test_parameters_in_8_bits_with_their_transposes_are_as_large_as_those_in_16():
    assert parameters_bytes(GATHERED) == parameters_bytes(replace(FP8, precision="bf16"))


def test_zero_3_shards_parameters_in_8_bits_and_no_copies():
    whole, shards = 32 * LAYER / 2, 4
    bf16 = parameters_bytes(replace(FP8, zero=3, precision="bf16"))
    assert parameters_bytes(replace(FP8, zero=3)) - bf16 == 2 * whole
    assert bf16 - parameters_bytes(replace(GATHERED, zero=3)) == whole / shards


@pytest.mark.parametrize("zero, times", [(1, 1), (3, 2 * 4)])  # forward and backward of each
@pytest.mark.parametrize("bucket_bytes", [None, 10**7, 3 * 10**9])
def test_a_byte_of_each_weight_is_gathered(zero, times, bucket_bytes):
    plan = replace(GATHERED, zero=zero, bucket_bytes=bucket_bytes if zero == 1 else None)
    less = gathered_bytes(replace(plan, fp8_param_gather=False)) - gathered_bytes(plan)
    assert less == times * 32 * LAYER / 2


def test_experts_are_gathered_in_8_bits_too_and_routers_are_not():
    model = sl.load_model("mixtral-8x7b")
    plan = replace(GATHERED, dp=8, ep=4)
    experts, h = 8 / 4 * 3 * 14336 * 4096 / 2, 4096
    attention = h * (h + 2 * 1024 + h) / 2
    for dimension, numbers in (("edp", experts), ("dp", attention)):
        wide, narrow = (
            gathered_bytes(replace(plan, fp8_param_gather=on), model, dimension)
            for on in (False, True)
        )
        assert wide - narrow == 32 * numbers
    assert product_parameters(model, plan, 32) == 32 * (experts + attention)
    copies = parameters_bytes(replace(plan, fp8_param_gather=False), model)
    assert copies - parameters_bytes(plan, model) == 2 * 32 * (experts + attention)


def test_biases_and_dense_layers_among_experts():
    gpt = sl.load_model("gpt3-175b")
    assert product_parameters(gpt, sl.Plan(tp=8), 1) == 12 * gpt.hidden**2 / 8
    deepseek = sl.load_model("deepseek-v3")
    only = product_parameters(deepseek, sl.Plan(), ("dense layer",) * 3)
    one = product_parameters(deepseek.of_kind("dense layer"), sl.Plan(), 1)
    assert only == 3 * one == 3 * (187_105_280 + 3 * 7168 * 18432)  # attention's, and the MLP's


@pytest.mark.parametrize(
    "fields, says",
    [
        ({"precision": "bf16"}, "fp8_param_gather with precision = 'bf16': give precision = 'fp8'"),
        ({"zero": 0}, "fp8_param_gather = True with zero = 0: .*give zero = 1"),
        ({"library": "torch"}, "with library = 'torch': .* give library = 'megatron'"),
        ({"offload": "optimizer"}, "with offload = 'optimizer': .* give offload = 'none'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        replace(GATHERED, **fields)

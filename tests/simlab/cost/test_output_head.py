"""The output head of plans in 8 bits, which stays in 16 unless the plan says otherwise."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.roofline import casts_s, kernel_s
from simlab.cost.stage_times import StageCost
from simlab.lowering.kernels import Matmul

MODEL = sl.Model(
    layers=2, hidden=4096, heads=32, ffn=8192, vocab=131072, seq=8192, gated_mlp=True, bias=False
)
PLAN = sl.Plan(precision="fp8-mx", microbatches=4)
CLUSTER = sl.load_cluster("gb200-nvl72", nodes=1)


def products(plan):
    """(the head's three products, their seconds)"""
    cost = StageCost(MODEL, plan, CLUSTER)
    kernels = cost.kernels["head"]
    both = [*kernels.forward, *kernels.input_grad, *kernels.weight_grad]
    found = [its for its in both if isinstance(its, Matmul)]
    assert len(found) == 3
    return found, [cost.kernel_s(its) for its in found]


def test_the_head_stays_in_16_bits_and_else_is_cast_and_computed_in_8():
    kernels, sixteen = products(PLAN)
    gpu = CLUSTER.gpu
    assert sixteen == [kernel_s(its, gpu, "bf16") for its in kernels]
    _, eight = products(replace(PLAN, fp8_head=True))
    assert eight == [
        kernel_s(its, gpu, "fp8-mx") + casts_s(its, gpu, "fp8-mx", kept_for=4) for its in kernels
    ]
    # a GB200 computes twice as many products in 8 bits, of which MXFP8 keeps .9 to .97 (kernels.json)
    assert all(0.45 < a / b < 0.7 for a, b in zip(eight, sixteen))


def test_it_needs_a_precision_that_has_it():
    with pytest.raises(sl.InputError, match="fp8_head"):
        sl.Plan(fp8_head=True)

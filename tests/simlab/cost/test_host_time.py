"""What the host takes for a layer, where nothing else takes time, and what fp8 reads once more."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.communication_times import CHECK_RANK_S, CHECK_S
from simlab.cost.roofline import efficiencies_of, kernel_s
from simlab.cost.stage_times import HOST_COLLECTIVE_OPS, StageCost
from simlab.lowering.kernels import Communication, Matmul

LLAMA = sl.Model(layers=2, hidden=512, heads=8, ffn=1024, gated_mlp=True, vocab=4096, positions=0)
NODE = replace(sl.load_cluster("dgx-h100"), gpus_per_node=8)
HOST_S = 1e-3


def layer_s(kind, model=LLAMA, **fields):
    """Seconds of a layer on a host that is far slower than the GPU."""
    checks = fields.pop("checks", False)
    plan = sl.Plan(sequence_parallel=True, seq=64, **fields)
    cluster = replace(NODE, host_op_s=HOST_S, checks_collectives=checks)
    return StageCost(model, plan, cluster).unit_parts("layer", kind).total


@pytest.mark.parametrize("tp, forward, backward", [(1, 64, 102), (8, 92, 126)])
def test_a_layer_of_nanotron_takes_its_ops_and_its_collectives(tp, forward, backward):
    """Four collectives forward and six backward, two of which gather an input again."""
    calls = HOST_COLLECTIVE_OPS * (tp > 1)
    found = [layer_s(kind, tp=tp, library="nanotron") for kind in "FB"]
    assert found == pytest.approx(
        [HOST_S * (forward + 4 * calls), HOST_S * (backward + 6 * calls)], rel=1e-9
    )


@pytest.mark.parametrize("library", ["megatron", "nanotron"])
@pytest.mark.parametrize("tp", [2, 8])
def test_a_checked_collective_takes_longer_the_more_ranks_it_has(library, tp):
    for kind, calls in (("F", 4), ("B", 6)):
        more = layer_s(kind, tp=tp, library=library, checks=True) - layer_s(
            kind, tp=tp, library=library
        )
        assert more == pytest.approx(calls * (CHECK_S + (tp - 1) * CHECK_RANK_S))


@pytest.mark.parametrize(
    "fields, forward, backward",
    [
        ({}, 30 + 73 + 14, 50 + 46 + 28),
        ({"dp": 2, "ep": 2}, 30 + 99 + 6, 50 + 49 + 12),
        ({"dp": 2, "ep": 2, "dispatcher": "once-a-node"}, 30 + 73 + 6, 50 + 46 + 12),
    ],
)
@pytest.mark.parametrize("shared", [0, 1])
def test_a_layer_with_experts_takes_the_ops_of_their_router_and_permutation(
    shared, fields, forward, backward
):
    """Beside a dispatch and a combine forward, and as many backward, where tokens travel. Of 8 experts on
    one rank, or 4 on each of two, all but one are launched besides, in each of two products."""
    model = replace(LLAMA, experts=8, experts_per_token=2, shared_experts=shared, bias=False)
    calls = 2 * HOST_COLLECTIVE_OPS * ("ep" in fields)
    found = [layer_s(kind, model, **fields) for kind in "FB"]
    assert found == pytest.approx(
        [HOST_S * (forward + 10 * shared + calls), HOST_S * (backward + 20 * shared + calls)],
        rel=1e-9,
    )


def test_without_tensor_parallelism_a_layer_has_nothing_to_check():
    assert layer_s("F", checks=True) == layer_s("F")


def test_torchs_float8_reads_both_operands_once_more_for_their_largest_values():
    """2 bytes of each number, in two kernels; Transformer Engine finds them while it casts."""
    kernel = Matmul("up", 4096, 2048, 1024)
    gpu = NODE.gpu
    found = {
        library: StageCost(
            LLAMA, sl.Plan(dp=8, zero=zero, library=library, precision="fp8"), NODE
        ).kernel_s(kernel)
        for library, zero in (("torch", 3), ("megatron", 0))
    }
    reached = efficiencies_of(gpu)
    read_s = 2 * (4096 + 2048) * 1024 / (gpu.memory_bandwidth_bytes_per_s * reached.memory)
    more = found["torch"] - found["megatron"]
    assert more == pytest.approx(read_s + 2 * reached.kernel_s)
    assert found["megatron"] == kernel_s(kernel, gpu, "fp8")


def test_the_head_is_computed_in_16_bits_and_has_no_largest_value_to_find():
    cost = StageCost(LLAMA, sl.Plan(dp=8, zero=3, library="torch", precision="fp8"), NODE)
    (head,) = [k for k in cost.kernels["head"].forward if isinstance(k, Matmul)]
    assert cost.kernel_s(head) == kernel_s(head, NODE.gpu, "bf16")
    assert not [k for k in cost.kernels["head"].forward if isinstance(k, Communication)]

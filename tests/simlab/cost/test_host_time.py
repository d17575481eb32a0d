"""What the host takes for a layer, where nothing else takes time, and what fp8 reads once more."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.communication_times import CHECK_RANK_S, CHECK_S
from simlab.cost.roofline import casts_s, efficiencies_of, kernel_s
from simlab.cost.stage_times import HOST_COLLECTIVE_OPS, StageCost
from simlab.layer.operation import OperationKind
from simlab.lowering.kernels import Communication, Matmul, runtime_ops
from simlab.lowering.kernels.backward import matmul_backward
from simlab.spec.cluster import gpus

LLAMA = sl.Model(layers=2, hidden=512, heads=8, ffn=1024, gated_mlp=True, vocab=4096, positions=0)
BLACKWELL = sl.load_cluster("dgx-b200")
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


def casts_s_of(library, kernel, microbatches=1, precision="fp8", **fields):
    """What the casts of a product take, without the product."""
    plan = sl.Plan(dp=8, library=library, precision=precision, microbatches=microbatches, **fields)
    node = node_with(precision)
    return StageCost(LLAMA, plan, node).kernel_s(kernel) - kernel_s(kernel, node.gpu, precision)


def node_with(precision):
    """A node of H100s, or of GPUs that have 4 bits."""
    return BLACKWELL if precision == "fp4" else NODE


@pytest.mark.parametrize(
    "precision, apart, after_norm",
    [("fp8", 4, 1), ("fp8-current", 6, 6), ("fp8-mx", 6, 0), ("fp4", 8, 8)],
)
def test_transformer_engine_casts_weights_once_a_step_and_an_activation_for_two_products(
    precision, apart, after_norm
):
    """Bytes of each number: 2 read and 2 written, and with current scaling 2 read before. The input after
    a norm moves one more than a norm in 16 bits does; a parameter in 8 bits is only transposed."""
    m, n, k = 4096, 2048, 1024
    gpu = node_with(precision).gpu
    its = efficiencies_of(gpu)
    bandwidth = gpu.memory_bandwidth_bytes_per_s * its.memory
    in_eight_bits = (
        ((8, GATHERED, 2),) if precision != "fp4" else ()
    )  # no parameter is kept in 4 bits
    x, dy, weights = m * k, m * n, k * n
    for operation, of_input in ((OperationKind.DOWN, apart), (OperationKind.UP, after_norm)):
        forward = Matmul("product", m, n, k, operation=operation)
        (to_input,), (to_weight,) = matmul_backward(forward, sl.Plan())
        for microbatches, fields, of_weight in ((1, {}, apart), (8, {}, apart), *in_eight_bits):
            found = [
                casts_s_of("megatron", each, microbatches, precision, **fields)
                for each in (forward, to_input, to_weight)
            ]
            bytes_ = of_input * x + of_weight * weights / microbatches, apart * dy
            moved_s = [its_bytes / bandwidth + its.kernel_s for its_bytes in bytes_]
            assert found == pytest.approx([*moved_s, 0.0], abs=1e-12)


@pytest.mark.parametrize(
    "precision, times", [("fp8-mx", (2.847 - 2.365) / (2.486 - 2.158)), ("fp4", (1.932 - 1.254) / (2.486 - 2.158))]
)  # fmt: skip
def test_a_cast_takes_as_much_longer_as_transformer_engine_measured(precision, times):
    """Of the inputs and weights of four products on a B300, over delayed scaling's."""
    gpu = gpus()["b300-sxm"]
    products = [Matmul("", 15872, n, k) for k, n in GEMMS]
    of = {name: sum(casts_s(each, gpu, name, kept_for=1) for each in products) for name in ("fp8", precision)}  # fmt: skip
    assert of[precision] / of["fp8"] == pytest.approx(times, rel=0.05)


GATHERED = {"zero": 1, "fp8_param_gather": True}


def test_torchs_float8_casts_as_long_as_transformer_engines_tensors_that_are_scaled_by_their_own_values():
    """Each reads 2 bytes for the largest value, 2 for the cast, and writes 1, before every product.
    On an H200 NVL four forward products of 15,872 tokens took 6.503 ms with casts of both operands and
    5.577 ms without (TransformerEngine@d0067d0d docs/examples/gemm_profiling/gemm_profiling.rst)."""
    products = [Matmul("", 15872, n, k) for k, n in GEMMS]
    found_s = sum(casts_s(each, gpus()["h200-sxm"]) for each in products)
    assert found_s == pytest.approx((6.503 - 5.577) / 1e3, rel=0.1)
    assert casts_s_of("torch", products[0], zero=3) == pytest.approx(casts_s(products[0], NODE.gpu))


GEMMS = ((4096, 12288), (4096, 4096), (4096, 16384), (16384, 4096))


def test_the_head_is_computed_in_16_bits_and_has_no_largest_value_to_find():
    cost = StageCost(LLAMA, sl.Plan(dp=8, zero=3, library="torch", precision="fp8"), NODE)
    (head,) = [k for k in cost.kernels["head"].forward if isinstance(k, Matmul)]
    assert cost.kernel_s(head) == kernel_s(head, NODE.gpu, "bf16")
    assert not [k for k in cost.kernels["head"].forward if isinstance(k, Communication)]


@pytest.mark.parametrize("recompute", ["selective", "per-op"])
def test_what_is_computed_again_is_launched_again(recompute):
    """On a host that is slower than the GPU each kernel of it takes what the host needs."""
    fields = {"attention": "unfused", "library": "megatron"}
    plan = sl.Plan(seq=64, recompute=recompute, sequence_parallel=True, **fields)
    again = StageCost(LLAMA, plan, NODE).kernels["layer"].recompute
    more = layer_s("B", recompute=recompute, **fields) - layer_s("B", **fields)
    assert again and more == pytest.approx(HOST_S * len(again), rel=0.01)


@pytest.mark.parametrize("kind", ["F", "B"])
@pytest.mark.parametrize("seq", [8, 4096])
def test_a_core_computes_an_op_after_it_has_dispatched_it(kind, seq):
    """So every op adds its dispatch, however long its kernels take; the launch that is in a kernel's own
    time is not added twice. A GPU computes meanwhile."""
    model = replace(LLAMA, positions=0)
    plan = sl.Plan(seq=seq, precision="fp32")
    core = sl.load_cluster("laptop")
    launch_s = efficiencies_of(core.gpu).kernel_s
    kernels = StageCost(model, plan, core).kernels["layer"]
    forward, input_ops, weight_ops = runtime_ops(model, plan)
    ops = forward if kind == "F" else input_ops + weight_ops
    launched = (
        kernels.forward if kind == "F" else [*kernels.input_grad, *kernels.weight_grad]
    )  # fmt: skip

    def layer_s(host_op_s):
        cluster = replace(core, host_op_s=host_op_s)
        return StageCost(model, plan, cluster).unit_parts("layer", kind).total

    more_s = layer_s(1e-3) - layer_s(0.0)
    assert more_s == pytest.approx(ops * 1e-3 - len(launched) * launch_s, rel=1e-9)


# CUDA graphs
# ------------------------------------------------------------------------------------------------


def test_what_was_recorded_is_launched_as_one():
    """Of a dense layer's 30, 30 and 20 ops attention has half. A router with its sizes has 55 of 99 ops
    forward and 23 of 42 backward, and its weight's gradient."""
    experts = replace(LLAMA, experts=4, experts_per_token=2)
    alone = {"dp": 4, "ep": 4}  # one expert on each rank, so that no product is launched more
    ops = {
        graphs: [runtime_ops(model, sl.Plan(cuda_graphs=graphs, **fields))
                 for model, fields in ((LLAMA, {}), (experts, alone))]
        for graphs in ("none", "router", "parts", "whole")
    }  # fmt: skip
    assert ops == {
        "none": [(30, 30, 20), (30 + 99, 30 + 42, 20 + 7)],
        "router": [(30, 30, 20), (30 + 44 + 1, 30 + 19 + 1, 20)],
        "parts": [(15 + 1, 15 + 1, 10), (15 + 44 + 2, 15 + 19 + 2, 10)],
        "whole": [(0, 0, 0), (0, 0, 0)],
    }


def test_a_step_that_is_one_graph_never_waits_for_its_host():
    experts = replace(LLAMA, experts=4, experts_per_token=2)
    cluster = replace(NODE, gpus_per_node=4)
    found = [
        sl.predict(experts, sl.Plan(dp=4, ep=4, seq=64, cuda_graphs=graphs), cluster)
        for graphs in ("none", "router", "parts", "whole")
    ]
    waits = [its.waterfall_s.host for its in found]
    assert waits[0] > waits[1] > waits[2] > waits[3] == 0


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"cuda_graphs": "router", "dp": 8}, "cuda_graphs = 'router': the model has no experts; leave it out"),
        ({"cuda_graphs": "whole", "library": "torch"}, "cuda_graphs = 'whole' has no effect with library = 'torch'"),
    ],
)  # fmt: skip
def test_graphs_that_no_library_or_model_has_are_refused(fields, says):
    with pytest.raises(sl.InputError, match=says):
        sl.predict(LLAMA, sl.Plan(seq=64, **fields), NODE)

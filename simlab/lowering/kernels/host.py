"""How many ops of a layer the host dispatches."""

from simlab.layer.microbatch import plan_operations
from simlab.layer.operation import Operation, OperationKind
from simlab.lowering.kernels.attention import TORCH_SOFTMAX, softmax_is_fused
from simlab.lowering.kernels.memory_bound import rotates_apart
from simlab.spec.model import Model
from simlab.spec.plan import Plan

RUNTIME_OPS = {True: (30, 30, 20), False: (57, 70, 20)}
"""{whether attention, norms and activations are an op each: (forward, input-gradient,
weight-gradient) ops of a layer that the host dispatches}. Forward and backward were counted with
torch's dispatcher on a layer written as Megatron-LM's of 2021 (57 and 90), and on the same one with
those ops fused. Of a backward, the weights' part is four products, four sums of biases and twelve
additions to a gradient (tests/simlab/cost/test_dispatched_ops.py)."""


EXPERT_OPS = {False: (73, 39, 7), True: (99, 42, 7)}
"""{whether expert-parallel ranks exchange tokens by all-to-alls: (forward, input-gradient,
weight-gradient) ops} that routed experts add to a dense layer. They were counted with torch's
dispatcher on a CPU in Megatron-LM's router and all-to-all dispatcher (core 0.20, PyTorch 2.13), on
one rank and between two: bf16, the router in fp32, a softmax, an auxiliary loss, several experts on
each rank, and no kernels of Transformer Engine. A stand-in has the same ops
(tests/simlab/cost/test_dispatched_ops.py).

Forward, the router has 36 ops, the counts of tokens and their permutation 15, the order by expert
9, copies of counts to the host 4, and the way back and the rest 9. An exchange adds 26: 14 for the
sizes of what is sent and received, 6 for copies of these to the host, and 6 for two collectives, of
counts and of probabilities, which are worth as many ops as the dispatch and the combine that
`layer_kernels` has. Its backward has one such collective. The experts' products and activation are
as many ops as those of a dense MLP here; what each expert adds is `launches_of_experts`.

Leaves out the host's wait for the counts, and 3 slices for each expert in the backward, which take .7 µs each.
--moe-permute-fusion avoids these slices. With it and --moe-router-fusion a forward has about 13 ops
less and a backward about as many, by the code of Transformer Engine's permutation.py and router.py
with each launch as an op. A dispatcher that sends tokens once to a node has about 60 ops forward
then (fused_a2a.py), and is taken to have those of one rank."""

RECORDED_EXPERT_OPS = {False: (39, 23, 7), True: (55, 23, 7)}
"""What of `EXPERT_OPS` a CUDA graph of the router has: all of the router, and the sizes of what is exchanged
without their copies to the host. Counted in the same way."""
RECORDED = (1, 1, 0)
"""The ops that the host dispatches in the stead of those that a CUDA graph has: one forward, and one backward
that makes the weights' gradients, too."""

SHARED_EXPERT_OPS = (10, 10, 10)
"""The (forward, input-gradient, weight-gradient) ops that shared experts add: an MLP without biases
whose activation is one op, and the sums with the routed experts' result and gradient. They were
counted with torch's own linear layers (tests/simlab/cost/test_dispatched_ops.py)."""


SCALED_ROTARY_OPS = (30, 22, 0)
"""The (forward, input-gradient, weight-gradient) ops of a rotary embedding with a factor, of queries and of
keys (`memory_bound.SCALED_ROTARY`), counted with torch's dispatcher (tests/simlab/lowering/
test_scaled_rotary.py)."""


SCAN_OPS = (7, 17, 0)
"""The (forward, input-gradient, weight-gradient) launches of a scan beside an op of autograd: the kernels that
`memory_bound.scan_kernels` names, and sums of their gradients over chunks."""
PARTS_OF_A_LAYER = 2
"""Attention and MLP, each of which is taken to have half of `RUNTIME_OPS`; a scan's layer has as many beside
its kernels."""


def launches_of_experts(product: Operation, plan: Plan) -> tuple[int, int, int]:
    """The (forward, input-gradient, weight-gradient) launches of a product of experts beside those of one
    MLP's.

    Megatron-LM's experts are Transformer Engine's GroupedLinear, two of them. Each calls cuBLAS for one
    expert after the other in the forward, for the inputs' gradients and for the weights'
    (`multi_stream_cublas_gemm` in transformer_engine/common/gemm/cublaslt_gemm.cu). In 8 bits it also
    casts the input of each expert, and the gradient of each result, by a kernel of its own: only casts of
    delayed scaling are one kernel (`multi_tensor_quantize_impl` in pytorch/csrc/extensions/cast.cpp). A
    launch counts as an op, although it needs no dispatch by torch. torch's own experts are one
    kernel (`torch._grouped_mm`).
    """
    own = int(product.weights[0].experts) // plan.ep
    if not plan.habits.launches_each_expert or plan.fused_experts:
        return 0, 0, 0
    products, casts = own - 1, own * plan.has_narrow_products
    return products + casts, products + casts, products


def runtime_ops(model: Model, plan: Plan) -> tuple[int, int, int]:
    """The ops of a layer's forward, input gradients and weight gradients that the host dispatches: those of
    a layer with one MLP, and what single operations add to them.

    A softmax in parts has the same ops in its input gradient as in its forward. The router of 'torch' and
    'fsdp1', which takes the same steps, is taken to have as many ops as Megatron-LM's. A CUDA graph of a
    router has shared experts, too. Leaves out: that it has the collectives of tensor parallelism."""
    if plan.cuda_graphs == "whole":
        return 0, 0, 0
    if plan.habits.layer_ops is not None:
        return plan.habits.layer_ops[plan.tp > 1 and plan.sequence_parallel]
    of_layer = RUNTIME_OPS[plan.fused and plan.attention != "unfused"]
    recorded = plan.cuda_graphs == "parts" and model.mixer != "none"
    own = model.part_count - recorded
    parts = [tuple(count * own // PARTS_OF_A_LAYER for count in of_layer)]
    parts += [RECORDED] * recorded
    for its in plan_operations(model, plan):
        if its.kind in OF_A_MIXER:
            parts += [] if recorded else [_ops_of_a_mixer(its, model, plan)]
        elif its.kind is OperationKind.PERMUTE:
            parts += _ops_of_experts(plan)
        elif its.kind is OperationKind.SHARED_UP and plan.cuda_graphs == "none":
            parts.append(SHARED_EXPERT_OPS)
        elif its.is_product and its.weights[0].experts:
            parts.append(launches_of_experts(its, plan))
    forward, of_inputs, of_weights = (sum(ops) for ops in zip(*parts))
    return forward, of_inputs, of_weights


OF_A_MIXER = (OperationKind.SOFTMAX, OperationKind.ROTARY, OperationKind.SCAN)
"""Operations of attention or a state space that may have ops beside those of `RUNTIME_OPS`."""


def _ops_of_a_mixer(operation: Operation, model: Model, plan: Plan) -> tuple[int, int, int]:
    """What one of `OF_A_MIXER` adds."""
    if operation.kind is OperationKind.SCAN:
        return SCAN_OPS
    if operation.kind is OperationKind.ROTARY:
        return SCALED_ROTARY_OPS if rotates_apart(model, plan) else (0, 0, 0)
    more = 0 if softmax_is_fused(operation, model, plan) else len(TORCH_SOFTMAX) - 1
    return more, more, 0


def _ops_of_experts(plan: Plan) -> list[tuple[int, ...]]:
    """What the router and the exchange of tokens add, with a graph for what is recorded."""
    exchanged = plan.ep > 1 and plan.dispatcher == "all-to-all"
    every = EXPERT_OPS[exchanged]
    if plan.cuda_graphs == "none":
        return [every]
    left = tuple(a - b for a, b in zip(every, RECORDED_EXPERT_OPS[exchanged]))
    return [left, RECORDED]

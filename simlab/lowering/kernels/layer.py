"""The kernels of a transformer layer on one GPU: what its forward, input gradient and weight
gradient launch, in order.

The sizes follow Megatron-LM's layer (Shoeybi et al. 2019; Korthikanti et al. 2022). Tensors have
tokens x hidden elements. Tensor parallelism divides what lies between a column-parallel and a
row-parallel matrix, and with sequence parallelism also the rest.
"""

from simlab.lowering.kernels.attention import TORCH_SOFTMAX, attention_part, softmax_is_fused
from simlab.lowering.kernels.backward import backward, bias_grads, residual_grads
from simlab.lowering.kernels.copies import with_copies
from simlab.lowering.kernels.kernel import Kernel, Launched, LayerKernels
from simlab.lowering.kernels.mlp import mlp_part
from simlab.lowering.kernels.recomputed import recomputed
from simlab.spec.model import Model
from simlab.spec.parameters import unit_parameters
from simlab.spec.plan import Plan

RUNTIME_OPS = {True: (30, 30, 20), False: (57, 70, 20)}
"""{whether attention, norms and activations are an op each: (forward, input-gradient,
weight-gradient) ops of a layer that the host dispatches}. Forward and backward were counted with
torch's dispatcher on a layer written as Megatron-LM's of 2021 (57 and 90), and on the same one with
those ops fused. Of a backward, the weights' part is four products, four sums of biases and twelve
additions to a gradient (tests/simlab/cost/test_dispatched_ops.py)."""


NANOTRON_OPS = {False: (64, 66, 36), True: (92, 90, 36)}
"""{whether tensor parallelism gathers and scatters: (forward, input-gradient, weight-gradient) ops}
of nanotron's layer without its collectives, counted with torch's dispatcher on a layer of the same
form (tests/simlab/cost/test_dispatched_ops.py). Its products beside a gather are three each,
queries, keys and values are copied into two orders, sequence lengths are summed in every layer, and
each gradient is added to its fp32 sum by itself (nanotron/models/llama.py,
parallel/tensor_parallel/functional.py, optim/gradient_accumulator.py)."""


def layer_kernels(model: Model, plan: Plan) -> LayerKernels:
    """The `LayerKernels` of a layer of `model` under `plan`."""
    forward = [*attention_part(model, plan), *mlp_part(model, plan)]
    input_grad: list[Launched] = []
    weight_grad: list[Kernel] = []
    for kernel in reversed(forward):
        grads_in, grads_weight = backward(kernel, plan)
        input_grad += grads_in
        weight_grad += grads_weight
    kernels = LayerKernels(
        forward,
        [*input_grad, *residual_grads(model, plan)],
        [*weight_grad, *bias_grads(model, plan)],
        recomputed(model, plan, forward),
    )
    return with_copies(kernels, plan, unit_parameters(model, plan, "layer"))


def runtime_ops(model: Model, plan: Plan) -> tuple[int, int, int]:
    """The ops of a layer's forward, input gradients and weight gradients that the host dispatches.

    A softmax in parts has the same ops in its input gradient as in its forward."""
    if plan.library == "nanotron":
        return NANOTRON_OPS[plan.tp > 1 and plan.sequence_parallel]
    forward, of_inputs, of_weights = RUNTIME_OPS[plan.fused and plan.attention != "unfused"]
    in_parts = plan.attention == "unfused" and not softmax_is_fused(model, plan)
    more = len(TORCH_SOFTMAX) - 1 if in_parts else 0
    return forward + more, of_inputs + more, of_weights

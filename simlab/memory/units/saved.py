"""What autograd saves for a unit's backward where that is not the tensor that the forward made: the
rules of each library and precision."""

from typing import NamedTuple

from simlab.layer.microbatch import sizes
from simlab.layer.operation import OperationKind
from simlab.lowering.kernels import is_one_kernel, keeps_gathered
from simlab.lowering.zero import autocasts
from simlab.memory.activations import keeps_fp8, layer_tensors, made_tensors
from simlab.spec.model import Model
from simlab.spec.plan import Plan

FP32_BYTES = 4


class Saved(NamedTuple):
    """Bytes that one microbatch leaves for the backward of a unit, on one rank."""

    normed: float
    """Of a norm's result in a layer, for the products of attention, which may have gathered it."""
    mlp_normed: float
    """The same for the products of the MLP, or for a router."""
    head_normed: float
    """Of the last norm's result, for the head."""
    inner: float
    """Of the MLP's inner tensor, for the product down."""
    routed: float = 0.0
    """Of the copies of tokens, for the experts' products up."""
    result: float = 0.0
    """Of attention's result, for the product after it, beside what attention's backward reads."""
    norm_parts: float = 0.0
    """Of a norm, beside its input and its result."""
    gate_part: float = 0.0
    """Of a gated activation, beside gate, up and their product."""


def saved(model: Model, plan: Plan, number: float, inner: float) -> Saved:
    """The `Saved` of a plan: each tensor as it was made, and then the rules that change that.

    number: bytes of a number. inner: bytes of the MLP's inner tensor.
    """
    s, made = sizes(model, plan), made_tensors(model, plan)
    read, routed = (made[name] * number / plan.element_bytes for name in ("qkv input", "mlp input"))
    whole = s.tokens * model.hidden * number
    head = whole if keeps_gathered(plan) else read
    copies = made.get("routed", 0.0) * number / plan.element_bytes
    found = Saved(normed=read, mlp_normed=routed, head_normed=head, inner=inner, routed=copies)
    if keeps_fp8(plan):
        kept = layer_tensors(model, plan, "none")
        found = found._replace(
            normed=kept["qkv input"],
            mlp_normed=kept["mlp input"],
            routed=kept.get("routed", 0.0),
            inner=inner - (made["mlp between"] - kept["mlp between"]),
            result=kept["output input"] - made["output input"],
        )
    if not autocasts(plan):
        if norms_have_parts(model, plan):
            found = found._replace(norm_parts=s.outside * (FP32_BYTES + number))
        if gates_have_parts(model, plan):
            found = found._replace(gate_part=inner)
    return found


def norms_have_parts(model: Model, plan: Plan) -> bool:
    """Whether an RMSNorm is several ops, as in Llama's reference code and in torch before 2.8. Then
    autograd saves two more results of it: the input in fp32 (for its square and for its product with
    the root) and the normalised tensor in 16 bits (for its product with the weight)."""
    return not is_one_kernel(OperationKind.NORM, model, plan)


def gates_have_parts(model: Model, plan: Plan) -> bool:
    """Whether a gated activation is two ops, so that autograd saves the activation of the gate
    beside gate, up and their product."""
    return model.gated_mlp and not is_one_kernel(OperationKind.ACTIVATION, model, plan)

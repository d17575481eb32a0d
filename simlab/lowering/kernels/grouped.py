"""What Megatron-LM's grouped experts do between and after their products by ops of torch, and what one
kernel does in their stead. What the host needs for these ops is left out."""

from simlab.layer.operation import Cut, Operation, OperationKind
from simlab.layer.saved import Share
from simlab.lowering.kernels.kernel import Memory
from simlab.spec.model import Model
from simlab.spec.plan import Plan


def has_bias(operation: Operation) -> bool:
    """Whether it is a product with a bias."""
    return operation.is_product and len(operation.weights) > len(operation.makes)


def adds_apart(operation: Operation, plan: Plan) -> bool:
    """Whether ops of torch add the bias of a product: of experts' second product."""
    apart = plan.habits.adds_biases_apart and not plan.fused_experts
    of_experts = operation.kind is OperationKind.DOWN and operation.weights[0].experts > 0
    return apart and of_experts and has_bias(operation)


def is_limited_apart(operation: Operation, model: Model, plan: Plan) -> bool:
    """Whether ops of torch limit gate and up of experts before their activation function."""
    apart = plan.habits.limits_apart and not plan.fused_experts
    of_experts = (
        operation.kind is OperationKind.ACTIVATION and operation.makes[0].cut is Cut.EXPERTS
    )
    return apart and of_experts and model.clamped and model.gated_mlp


def limited(activation: Operation, plan: Plan, share: Share) -> Memory:
    """What limits gate and up (`weighted_bias_quick_geglu_impl` in Megatron-LM's
    core/fusions/fused_bias_geglu.py): a clamp of each, which are then joined again.

    The backward compares gate with its upper end, up with both, and takes each gradient or 0, with
    truths of one byte; then it joins the two gradients. For a number of each, of n bytes, that is
    3 n + 2 for the gate, 4 n + 6 for up and 4 n to join them. Without recomputation the joined copy is
    kept beside the product's own result, which memory leaves out.
    """
    n, pairs = plan.element_bytes, share.numbers(activation.makes[0])
    moved = (2 * n + 2 * n + 4 * n) * pairs
    backward = (3 * n + 2 + 4 * n + 6 + 4 * n) * pairs
    return Memory("limits of gate and up", moved, OperationKind.ACTIVATION, backward)


def added_biases(down: Operation, plan: Plan, share: Share) -> Memory:
    """What adds the biases of experts' second products (`TEGroupedMLP._apply_bias` in Megatron-LM's
    core/transformer/moe/experts.py): for each expert bias times the router's weight of each token, and the
    sum with the product's result; then all are joined, and cast.

    Weights, and so all of it, are in fp32 where tokens travel once to a node, whose kernels ask for it, and
    of the plan's numbers otherwise. The backward casts the gradient there and back, joins the parts of
    all experts, and for bias and weights multiplies the gradient and sums it up. --moe-router-dtype fp32
    with 'all-to-all' is left out.
    """
    n, numbers = plan.element_bytes, share.numbers(down.makes[0])
    wide = 4 if plan.ep > 1 and plan.dispatcher == "once-a-node" else n
    cast = (n + wide) * (wide != n)
    moved = wide + (n + 2 * wide) + 2 * wide + cast
    backward = cast + cast + 2 * n + 2 * (3 * wide)
    return Memory("biases of experts", moved * numbers, OperationKind.BIAS, backward * numbers)

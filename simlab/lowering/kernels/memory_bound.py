"""Kernels that the memory bounds, as fused kernels or as torch's own ops move their bytes."""

from collections.abc import Sequence

from simlab.layer.operation import Operation, OperationKind, Tensor
from simlab.layer.saved import Share
from simlab.lowering.kernels.backward import BACKWARD_BYTES
from simlab.lowering.kernels.kernel import Memory
from simlab.spec.model import Model
from simlab.spec.plan import Plan

EAGER = {
    OperationKind.NORM: 9,
    OperationKind.LAST_NORM: 9,
    OperationKind.ROTARY: 5,
    OperationKind.ACTIVATION: 10 / 6,
}
"""{operation: how many times the bytes of a fused kernel torch's own ops move}, of a Llama layer.

RMSNorm casts to fp32, squares, takes the mean, scales twice and casts back: 36 bytes an element
instead of 4. Rotary embedding casts, multiplies complex numbers and casts back: 20 bytes instead of
4. The gated activation stores its first half: 10 bytes instead of 6.
"""


SCALED_ROTARY = 6, 7
"""How many times what one kernel moves, forward and backward, the ops of torch move with which Megatron-LM
applies a rotary embedding with a factor (`_apply_rotary_pos_emb_bshd` in core/models/common/embeddings/
rope_utils.py). Forward they multiply with the cosines, negate one half, join the halves, multiply with the
sines, add both products, and join the result with what has no embedding: 12 passes for 2. The backward has
14: two products, a half negated, the halves joined, both paths added, and zeros, which are added, for the
gradient of what has no embedding."""


CHUNK = 128
"""The tokens of a chunk of a scan (`chunk_size` of `MambaMixer` in megatron/core/ssm/mamba_mixer.py)."""


def is_one_kernel(operation: OperationKind, model: Model, plan: Plan) -> bool:
    """Whether a norm, an activation or a rotary embedding is one kernel: where `plan` has fused
    kernels. The norm and the activation of a GPT are one op in torch, too. nanotron has kernels for
    norms and rotary embedding, but not for the gated activation (`GLUActivation` in
    nanotron/models/llama.py)."""
    if model.has_bias("norm"):
        return True
    return plan.fused and (operation != OperationKind.ACTIVATION or plan.habits.fuses_activation)


def rotates_apart(model: Model, plan: Plan) -> bool:
    """Whether ops of torch apply the rotary embedding, for it has a factor."""
    return model.scaled_rotary and plan.habits.rotates_apart


def memory_kernel(
    operation: Operation, tensors: Sequence[Tensor], model: Model, plan: Plan, share: Share
) -> Memory:
    """What reads and writes each number of some tensors once, or what torch's own ops move in its
    stead where an operation is not one kernel."""
    moved = sum(share.size_bytes(its, plan.element_bytes) for its in tensors)
    kind = operation.kind
    if kind is OperationKind.ROTARY and rotates_apart(model, plan):
        forward, backward = SCALED_ROTARY
        return Memory(operation.label, forward * moved, kind, backward * moved)
    if kind in EAGER and not is_one_kernel(kind, model, plan):
        moved *= EAGER[kind]
    if kind in BACKWARD_BYTES or not operation.saves:
        return Memory(operation.label, moved, kind)
    saved = sum(share.size_bytes(its, plan.element_bytes) for its in operation.saves)
    return Memory(operation.label, moved, kind, moved + saved)


def scan_kernels(operation: Operation, model: Model, plan: Plan, share: Share) -> list[Memory]:
    """The convolution, the scan over chunks of `CHUNK` tokens and the gated norm of a state space, as the
    kernels of mamba_ssm move bytes (`mamba_split_conv1d_scan_combined` in ops/triton/ssd_combined.py).

    Where several heads have a B or C in common, its gradient is first made in fp32. Leaves out: numbers that
    there is one of for each token and head, and the multiplications themselves, which are taken to hide behind
    the bytes: in a chunk of c tokens c p + 2 n p of a token and head of width p, and c n of a token and group.
    """
    gate, mixed, _ = map(share.numbers, operation.reads)
    x, b, wide = gate, (mixed - gate) / 2, plan.element_bytes
    states, products = x * model.state_size / CHUNK, b * CHUNK / model.state_size
    of_chunks = wide * (x + b) + 4 * states  # each chunk's own, of x and B, in fp32
    of_pairs = 2 * wide * b + 4 * products  # of B and C within a chunk, in fp32
    forward = (
        of_chunks
        + (4 + wide) * states  # passed from chunk to chunk, then in 16 bits
        + of_pairs
        + (4 * products + wide * (x + b + states) + wide * x)  # the result, from these and C
    )
    backward = (
        *(of_chunks, 8 * states, of_pairs),  # once more, states in fp32
        wide * (x + b) + 4 * states,  # gradients of the states, of the result's and C
        8 * states + 2 * wide * states,  # passed back; both in 16 bits
        4 * products + wide * (2 * x + b + states) + wide * x,  # of x
        2 * (wide * (x + b + states) + 4 * b),  # of B, and of C
        2 * wide * x + 8 * products,  # of the products
        2 * wide * x + 4 * products,  # of the decays
        2 * (4 * products + wide * b + 4 * b + wide * b),  # of B and C by way of the products
    )
    return [
        Memory(name, moved, operation.kind, grad_bytes=grad)
        for name, moved, grad in (
            ("convolution", 2 * wide * mixed, 5 * wide * mixed),  # convolved anew, then backward
            ("scan", forward, sum(backward)),
            ("gated norm", 3 * wide * x, 5 * wide * x),
        )
    ]

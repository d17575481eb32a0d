"""Which kernels of a layer's forward run again before the backward."""

from collections.abc import Sequence
from dataclasses import replace

from simlab.layer.operation import OperationKind
from simlab.lowering.kernels.attention import TORCH_SOFTMAX
from simlab.lowering.kernels.kernel import Attention, Communication, Launched, Matmul
from simlab.spec.model import Model
from simlab.spec.plan import Plan

SCORES = (
    OperationKind.SCORES,
    *TORCH_SOFTMAX,
    OperationKind.ATTENTION_DROPOUT,
    OperationKind.VALUES,
)
"""What attention without a fused kernel computes between queries and its result."""


def recomputed(model: Model, plan: Plan, forward: list[Launched]) -> list[Launched]:
    """What runs again of `forward`, by `Plan.recompute`."""
    if plan.recompute == "full":
        return _until_all_is_there(forward) if stops_early(model, plan) else forward
    if plan.recompute == "selective":
        return _recomputed_scores(forward)
    if plan.recompute == "outputs":
        return _recomputed_outputs(model, forward)
    return _recomputed_ops(model, plan, forward) if plan.recompute == "per-op" else []


def _recomputed_outputs(model: Model, forward: Sequence[Launched]) -> list[Launched]:
    """What Megatron-LM runs again for modules whose outputs it discards: norms, what leads from latents
    to queries and keys, and the activation function of routed experts. Latents' own norms are kept, as
    the products up read their results."""
    again = [OperationKind.Q_UP, OperationKind.KV_UP, OperationKind.COPY] if model.kv_rank else []
    if model.kv_rank:
        again.append(OperationKind.ROTARY)
    if model.experts:
        again.append(OperationKind.ACTIVATION)
    names = ("norm of q latent", "norm of kv latent", "norm of q and k", "shared activation")
    return [
        kernel
        for kernel in forward
        if kernel.operation in (*again, OperationKind.NORM) and kernel.name not in names
    ]


def stops_early(model: Model, plan: Plan) -> bool:
    """Whether full recomputation ends when all tensors are there that the backward reads, and leaves
    out a layer's last product and what follows it.

    torch's non-reentrant checkpointing does (`set_checkpoint_early_stop` in
    torch/utils/checkpoint.py), which FSDP2's users take; Megatron-LM's and FSDP1's runs all of the
    forward. A dropout or a router at the end of the layer keeps something of what comes after.
    """
    return plan.library == "torch" and not plan.dropout and not model.experts


def _until_all_is_there(forward: Sequence[Launched]) -> list[Launched]:
    """`forward` before its last product, whose operands are the last that the backward reads."""
    operations = [kernel.operation for kernel in forward]
    return list(forward[: operations.index(OperationKind.DOWN)])


def _recomputed_scores(forward: Sequence[Launched]) -> list[Launched]:
    """What selective recomputation runs again (Korthikanti et al. 2022, section 5). It is nothing
    with a fused kernel, whose backward computes the scores again anyway."""
    return [kernel for kernel in forward if kernel.operation in SCORES]


def _recomputed_ops(model: Model, plan: Plan, forward: Sequence[Launched]) -> list[Launched]:
    """What torchtitan's per-op recomputation runs again: all but attention, what was reduced, and
    every second matrix product.

    Of q, k, v, output, gate, up and down (`_apply_ac_to_transformer_block` counts them) k, output
    and up are computed again; without a gate k, output and down.
    """
    columns = {OperationKind.QKV: max(1, model.kv_heads // plan.tp) * model.head_size}
    mlp = model.expert_width // plan.etp if model.experts else model.ffn // plan.tp
    for up, down, width in (
        (OperationKind.UP, OperationKind.DOWN, mlp),
        (
            OperationKind.SHARED_UP,
            OperationKind.SHARED_DOWN,
            model.shared_experts * model.expert_width // plan.tp,
        ),
    ):
        columns |= {up: width, down: 0} if model.gated_mlp else {up: 0}
    again: list[Launched] = []
    for kernel in forward:
        if isinstance(kernel, Attention) or (
            isinstance(kernel, Communication) and kernel.kind != "all_gather"
        ):
            continue
        if isinstance(kernel, Matmul):
            kernel = replace(kernel, n=columns.get(kernel.operation, kernel.n))
        if not isinstance(kernel, Matmul) or kernel.n:
            again.append(kernel)
    return again

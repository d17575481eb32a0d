"""What the forward of a layer leaves for its backward, in bytes on one rank."""

from simlab.lowering.kernels import keeps_gathered, routed_tokens, sizes
from simlab.spec.model import Model
from simlab.spec.plan import Plan

UNSCALED = ("dropout masks", "softmax statistics")
"""Tensors whose numbers have the same size in every precision: a byte, and four."""


def layer_activations_bytes(model: Model, plan: Plan, recompute: str) -> float:
    """Bytes that a layer keeps of a microbatch, on one rank.

    Korthikanti et al. 2022 (arXiv 2205.05198), section 4 and Table 2, as `Model.layer_activations`
    has it; with context parallelism by all-gather also the keys and values of all ranks, and with
    experts the copy of a token that each of its experts reads. What library torch has gathered for a
    column-parallel product is kept whole (`keeps_gathered`). Per-op recomputation keeps the
    layer's input, q, v, attention's output, the MLP's first product and, with a gate, the one of
    down; with tensor parallelism also what two reduce-scatters (or all-reduces) left. Leaves out:
    the statistics of norms (`statistics_bytes`), and a mask that a kernel wants stored.
    """
    if recompute != "per-op":
        return sum(layer_tensors(model, plan, recompute).values())
    s = sizes(model, plan)
    columns = (
        (2 * model.heads + max(model.kv_heads, plan.tp)) * model.head_size
        + model.ffn * (not model.experts)
    ) / plan.tp
    summed = 0 if plan.tp == 1 else 1 + (not plan.spreads_experts or model.shared_experts > 0)
    rows = s.outside * (1 + summed) + s.tokens * model.hidden * model.gated_mlp
    routed = 0.0
    if model.experts:
        routed = _one_between_experts(model, plan)
        routed += routed_tokens(model, plan) * model.hidden * (plan.ep > 1)  # of the dispatch
    return (
        s.width * (s.tokens * columns + rows + routed)
        + 4 * s.tokens * model.heads / plan.tp
        + _gathered(model, plan)
    )


def layer_tensors(model: Model, plan: Plan, recompute: str) -> dict[str, float]:
    """{tensor: bytes} of what a layer keeps, with `recompute` 'none', 'selective' or 'full'."""
    tensors = made_tensors(model, plan, recompute)
    if keeps_fp8(plan) and recompute != "full":
        tensors["qkv input"] /= 2
        # of a layer with experts, only the product of shared ones reads it in 8 bits, and the router in 16
        tensors["mlp input"] *= (1 + (model.shared_experts > 0) / 2) if model.experts else 1 / 2
        if model.experts and plan.library == "megatron":
            tensors["routed"] /= 2
        tensors["output input"] *= 1.5
        if not (recompute == "outputs" and model.experts):  # whose activation's result is not kept
            tensors["mlp between"] -= tensors["mlp between"] / (2 * (2 + model.gated_mlp))
    return tensors


def made_tensors(model: Model, plan: Plan, recompute: str) -> dict[str, float]:
    """{tensor: bytes} of the tensors that `layer_tensors` has, each as the forward makes it."""
    tensors = model.layer_activations(
        plan.microbatch_size,
        (plan.seq or model.seq) // plan.cp,
        tp=plan.tp,
        sequence_parallel=plan.sequence_parallel,
        recompute=recompute,
        flash=plan.attention != "unfused",
        dropout=plan.dropout,
    )
    for name in set(tensors) - set(UNSCALED):
        tensors[name] *= plan.element_bytes / 2
    if recompute == "full":
        return tensors
    if keeps_gathered(plan):
        if model.kv_rank:  # the products down read a rank's own tokens, those up gathered latents
            latents = (model.q_rank + model.kv_rank + model.rope_size) * sizes(model, plan).tokens
            tensors["latents"] += latents * plan.element_bytes * (plan.tp - 1) / plan.tp
        if not model.kv_rank or not model.q_rank:
            tensors["qkv input"] *= plan.tp
        if not plan.spreads_experts or model.shared_experts:
            tensors["mlp input"] *= plan.tp
    if gathered := _gathered(model, plan):
        tensors["gathered keys and values"] = gathered
    if model.experts:
        s, routed = sizes(model, plan), routed_tokens(model, plan)
        tensors["routed"] = s.width * routed * model.hidden
        tensors["mlp between"] = s.width * _between_experts(model, plan, recompute)
    return tensors


def _between_experts(model: Model, plan: Plan, recompute: str = "none") -> float:
    """The numbers of the tensors between the two products of a rank's experts that it keeps: what the
    first product made, and what the activation function made of it. 'outputs' makes the latter again, but of
    shared experts."""
    routed = routed_tokens(model, plan) / plan.etp
    shared = sizes(model, plan).tokens * model.shared_experts / plan.tp
    products = 1 + model.gated_mlp
    kept = (products + (recompute != "outputs")) * routed + (products + 1) * shared
    return kept * model.expert_width


def _one_between_experts(model: Model, plan: Plan) -> float:
    """The numbers of one of those tensors."""
    return _between_experts(model, plan) / (2 + model.gated_mlp)


def keeps_fp8(plan: Plan) -> bool:
    """Whether the inputs of a layer's products are kept in 8 bits. Transformer Engine, which
    Megatron-LM uses for fp8, saves the cast of an input for the weight's gradient
    (transformer_engine/pytorch/module/linear.py, and grouped_linear.py for experts). Attention's result is kept in both forms, for its
    own backward is in 16 bits. torch's float8 (torchao, float8_linear.py) keeps the 16-bit input
    and casts it again, but where it is cast before it is gathered (float8_tensor_parallel.py)."""
    return plan.precision == "fp8" and (plan.library == "megatron" or keeps_gathered(plan))


def _gathered(model: Model, plan: Plan) -> float:
    """Keys and values of all context-parallel ranks, where all-gather brings them: 2 x tokens of
    the sequence x key and value heads x head size x element size, beside the rank's own."""
    if plan.cp == 1 or plan.cp_kind != "all-gather":
        return 0.0
    s = sizes(model, plan)
    heads = max(1, model.kv_heads // plan.tp)
    return 2 * s.width * s.tokens * plan.cp * heads * model.head_size


def statistics_bytes(model: Model, plan: Plan) -> float:
    """What a norm keeps of each token in fp32: LayerNorm the mean and the deviation, RMSNorm the
    root of the mean square."""
    s = sizes(model, plan)
    return 4 * (1 + model.bias) * s.outside / model.hidden

"""The bytes of the tensors that one microbatch makes in the embedding, a layer and the head."""

from typing import Literal

from simlab.lowering.kernels import sizes
from simlab.lowering.zero import shards_of
from simlab.memory.activations import (
    keeps_fp8,
    layer_activations_bytes,
    layer_tensors,
    statistics_bytes,
)
from simlab.spec.model import Model
from simlab.spec.plan import Plan

TOKEN_BYTES = 8
"""Of a token's number, an int64."""
STATISTIC_BYTES = 4
"""Of attention's sum of exponentials for a token and head, fp32 in every precision."""

SKIPPED_BYTES = 4
"""Of a number of the skipped path under autocast, fp32."""

UnitPart = Literal["embedding", "dense layer", "layer", "head", "loss"]
"""What an op computes in one piece: a unit, or the loss, which follows the head."""


def autocasts(model: Model, plan: Plan) -> bool:
    """Whether torch's autocast decides the types: DDP in 16 bits, with fp32 parameters. FSDP2
    casts parameters itself, on one rank too. Left out: experts, and models that are cut by tp, pp
    or cp, where all is taken as 16 bits."""
    whole = plan.tp == plan.pp == plan.cp == 1 and not model.experts
    sharded = plan.zero == 3 or shards_of(plan, "optimizer") > 1 or plan.offload != "none"
    return plan.library == "torch" and plan.element_bytes == 2 and whole and not sharded


class UnitSizes:
    """Bytes of the tensors that one microbatch makes in each unit, on one rank.

    With T tokens, h hidden, f MLP width, a heads, V vocabulary, in numbers of `number` bytes each:
    `hidden` is T h, divided by tp under sequence parallelism, and `whole` is never divided; `q`,
    `kv`, `result` and `inner` are the rank's parts of queries, of keys (or of values; the mean
    where they have two widths), of what attention makes and of the MLP between its matrices, for
    every expert that computes a token; `routed` is the copy of each token for each of its experts.
    `sent` are its copies as they leave for other ranks' experts, with expert parallelism.
    `latents` are what latent attention, or a norm of queries and keys, keeps besides.

    Under `autocast`, norms and sums with the skipped path are fp32: `skipped` is T h of their bytes
    (elsewhere it is `hidden`). Each matrix product casts what it reads to 16 bits, a copy for each
    of several products that read the same norm, and it casts its weight: it keeps both for its
    backward. `cast(numbers)` are the bytes of a weight's copy.

    Where norms are no kernel of their own, autograd keeps two more results of each RMSNorm:
    `in_norm`, the input in fp32 (for its square and for its product with the root) and the
    normalised tensor in 16 bits (for its product with the weight), as in Llama's reference code and
    in torch before 2.8. A gated activation that is no one kernel keeps the activation of the gate
    beside gate, up and product: `in_gate`. With sequence parallelism nanotron keeps what a
    column-parallel product has gathered (`ctx.save_for_backward(gathered_tensor, ...)` in
    parallel/tensor_parallel/functional.py, without its option tp_recompute_allgather).

    What a product keeps of its input is `read` bytes of a norm's result in a layer and `head_read`
    in the head, `down_read` of the MLP's inner tensor, and `result_cast` beside attention's result;
    in fp8 they are casts to 8 bits (`simlab.memory.activations.keeps_fp8`).
    """

    def __init__(self, model: Model, plan: Plan, number: float, logit: float) -> None:
        self.model, self.plan, self.number = model, plan, number
        scale = number / plan.element_bytes
        s = sizes(model, plan)
        self.seq = (plan.seq or model.seq) // plan.cp
        self.tokens, self.hidden = s.tokens, s.outside * number
        self.whole = s.tokens * model.hidden * number
        tensors = layer_tensors(model, plan, "none")
        self.q = tensors["q"] * scale
        eight = keeps_fp8(plan)  # then attention's result in 16 bits and 8, the MLP's in 8 bits
        self.result = tensors["output input"] * scale / (1.5 if eight else 1)
        self.kv = (tensors["k"] + tensors["v"]) / 2 * scale
        self.latents = (tensors.get("latents", 0.0) + tensors.get("qk norm inputs", 0.0)) * scale
        self.inner = tensors["mlp between"] / (2 + model.gated_mlp - eight / 2) * scale
        self.routed = tensors.get("routed", 0.0) * scale
        self.sent = 0.0
        if plan.ep > 1 and model.experts:
            self.sent = s.tokens * model.experts_per_token * model.hidden * number
        self.scores = tensors.get("scores", 0.0) * scale
        self.gathered = tensors.get("gathered keys and values", 0.0) * scale
        self.mask = tensors.get("dropout masks", 0.0) * scale / 2
        self.sums = tensors.get("softmax statistics", 0.0) and (
            STATISTIC_BYTES * s.tokens * model.heads / plan.tp
        )
        self.statistics = statistics_bytes(model, plan)
        self.autocast = autocasts(model, plan)
        self.skipped = s.outside * SKIPPED_BYTES if self.autocast else self.hidden
        eager = not (plan.fused or model.bias or self.autocast)
        self.in_norm = s.outside * (STATISTIC_BYTES + number) if eager else 0.0
        in_parts = eager or plan.library == "nanotron"
        self.in_gate = self.inner if in_parts and model.gated_mlp and not self.autocast else 0.0
        self.keeps_gathered = plan.library == "nanotron" and plan.sequence_parallel
        self.head_read = self.whole if self.keeps_gathered else self.hidden
        self.read = self.hidden / 2 if eight else self.head_read
        self.down_read = self.inner / 2 if eight else self.inner
        self.result_cast = self.result / 2 if eight else 0.0
        self.logits, self.loss = (s.tokens * model.vocab / plan.tp * n for n in (number, logit))
        self.casts_logits = logit != number or plan.has_flat_gradients
        self.score_gradients = 0.0
        if plan.attention == "unfused":  # of softmax's result and of the scores
            elements = s.tokens * (plan.seq or model.seq) * model.heads / plan.tp
            self.score_gradients = 2 * elements * number
        again = plan.recompute
        left_out = layer_activations_bytes(model, plan, "none") * scale
        left_out -= layer_activations_bytes(model, plan, again) * scale
        self.products_joined = plan.has_flat_gradients or model.positions > 0
        self.attention_reads = 1 if self.products_joined else 3
        self.mlp_reads = 1 + model.gated_mlp
        more = 2 * self.statistics + self._cast_in_layer
        more += 2 * (self.in_norm + self.head_read - self.hidden) + self.in_gate
        self.recomputed = left_out + more if again in ("per-op", "full") else 0.0
        self.scores_again = left_out if again == "selective" else 0.0

    def cast(self, numbers: float) -> float:
        """Bytes of the 16-bit copy of a weight of so many numbers; 0 without autocast."""
        return numbers * self.number if self.autocast else 0.0

    @property
    def _cast_in_layer(self) -> float:
        """What autocast keeps of a layer beside 16-bit activations, but for its output."""
        if not self.autocast:
            return 0.0
        model, copies = self.model, self.attention_reads + self.mlp_reads - 2
        attention = 2 * (model.heads + model.kv_heads) * model.head_size
        numbers = model.hidden * (attention + (2 + model.gated_mlp) * model.ffn)
        return self.skipped - self.hidden + copies * self.hidden + self.cast(numbers)

    @property
    def travelling(self) -> float:
        """Keys and values that a ring receives while it computes with those that are here."""
        plan = self.plan
        return 2 * self.kv if plan.cp > 1 and plan.cp_kind == "ring" else 0.0

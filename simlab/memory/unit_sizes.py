"""The bytes of the tensors that one microbatch makes in the embedding, a layer and the head."""

from typing import Literal

from simlab.lowering.kernels import sizes
from simlab.memory.activations import layer_activations_bytes, layer_tensors, statistics_bytes
from simlab.spec.model import Model
from simlab.spec.plan import Plan

TOKEN_BYTES = 8
"""Of a token's number, an int64."""
STATISTIC_BYTES = 4
"""Of attention's sum of exponentials for a token and head, fp32 in every precision."""

UnitPart = Literal["embedding", "layer", "head", "loss"]
"""What an op computes in one piece: a unit, or the loss, which follows the head."""


class UnitSizes:
    """Bytes of the tensors that one microbatch makes in each unit, on one rank.

    With T tokens, h hidden, f MLP width, a heads, V vocabulary, in numbers of `number` bytes each:
    `hidden` is T h, divided by tp under sequence parallelism, and `whole` is never divided; `q`,
    `kv` and `inner` are the rank's parts of queries, of keys (or of values) and of the MLP between
    its matrices, for every expert that computes a token; `routed` is the copy of each token for
    each of its experts.
    """

    def __init__(self, model: Model, plan: Plan, number: float, logit: float) -> None:
        self.model, self.plan, self.number = model, plan, number
        scale = number / plan.element_bytes
        s = sizes(model, plan)
        self.seq = (plan.seq or model.seq) // plan.cp
        self.tokens, self.hidden = s.tokens, s.outside * number
        self.whole = s.tokens * model.hidden * number
        tensors = layer_tensors(model, plan, "none")
        self.q, self.kv = tensors["q"] * scale, tensors["k"] * scale
        self.inner = s.tokens * model.ffn / plan.tp * max(1, model.experts_per_token) * number
        self.routed = tensors.get("routed", 0.0) * scale
        self.scores = tensors.get("scores", 0.0) * scale
        self.gathered = tensors.get("gathered keys and values", 0.0) * scale
        self.mask = tensors.get("dropout masks", 0.0) * scale / 2
        self.sums = tensors.get("softmax statistics", 0.0) and (
            STATISTIC_BYTES * s.tokens * model.heads / plan.tp
        )
        self.statistics = statistics_bytes(model, plan)
        self.logits, self.loss = (s.tokens * model.vocab / plan.tp * n for n in (number, logit))
        self.casts_logits = logit != number or plan.library == "megatron"
        self.score_gradients = 0.0
        if plan.attention == "unfused":  # of softmax's result and of the scores
            elements = s.tokens * (plan.seq or model.seq) * model.heads / plan.tp
            self.score_gradients = 2 * elements * number
        again = plan.recompute
        left_out = layer_activations_bytes(model, plan, "none") * scale
        left_out -= layer_activations_bytes(model, plan, again) * scale
        self.recomputed = left_out + 2 * self.statistics if again in ("per-op", "full") else 0.0
        self.scores_again = left_out if again == "selective" else 0.0
        self.products_joined = plan.library == "megatron" or model.positions > 0

    @property
    def travelling(self) -> float:
        """Keys and values that a ring receives while it computes with those that are here."""
        plan = self.plan
        return 2 * self.kv if plan.cp > 1 and plan.cp_kind == "ring" else 0.0

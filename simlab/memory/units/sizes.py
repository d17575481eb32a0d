"""The bytes of the tensors that one microbatch makes in the embedding, a layer and the head."""

from collections.abc import Sequence
from functools import cached_property, partial

from simlab.layer.microbatch import sent_tokens, sizes
from simlab.layer.operation import Operation, OperationKind
from simlab.layer.parameters import on_rank
from simlab.layer.units import layer_operations
from simlab.lowering.kernels import keeps_gathered
from simlab.lowering.zero import autocasts
from simlab.memory.activations import layer_activations_bytes, made_tensors, statistics_bytes
from simlab.memory.units.saved import FP32_BYTES, saved
from simlab.spec.model import Model
from simlab.spec.plan import Plan

TOKEN_BYTES = 8
"""Of a token's number, an int64."""

UnitPart = str
"""What an op computes in one piece: a kind of unit, or the 'loss', which follows the head."""


class UnitSizes:
    """Bytes of the tensors that one microbatch makes in each unit, on one rank.

    With T tokens of h hidden numbers, of `number` bytes each:

    - `hidden` is T h, divided by tp under sequence parallelism, and `whole` is never divided.
      `skipped` is what the skipped path has: `hidden`, and under autocast that in fp32.
    - `q`, `kv`, `result` and `inner` are the rank's parts of the queries, of the keys (or of the
      values; the mean where they have two widths), of what attention makes, and of the MLP between
      its matrices, for every expert that computes a token.
    - `latents` are what latent attention, or a norm of queries and keys, keeps besides.
    - `gathered_keys` are the keys and values of other context-parallel ranks, where an all-gather
      brings them.
    - `scores` and their gradients, `score_gradients`, exist where attention is unfused;
      `softmax_sums` is what a fused one keeps of each row. `mask` is that of one dropout.
    - `norm_statistics` is what a norm keeps of each token in fp32.
    - `routed` is the copy of each token for each of its experts, and `sent` are its copies as they
      leave for other ranks' experts. Both are 0 without such experts. `copied` is `routed` as it is
      made: under autocast in fp32.
    - `gathered_input` is what sequence parallelism gathers for a column-parallel product, and frees
      after it; 0 without, and where it is kept (`keeps_gathered`). `attention_gathered_input` is the
      same for attention, of latents where it has them, and `mlp_gathered_input` for an MLP, whose
      input and result are `mlp_whole`: of a rank's own tokens where all its experts are its own, so
      that `mlp_gathers` is False.
    - `logits` are the head's, and `loss` is the same in the loss's type. `loss_statistics` are what a
      compiled loss keeps of each token.
    - `saved` says what autograd keeps of these tensors (`simlab.memory.units.saved`).

    `attention_weights` and the like are (numbers of a matrix, of its bias) for each product, of all
    experts of the rank together; `inner_norms` are the numbers of all else but the norms before attention
    and MLP: of norms of latents, queries and keys, of norms behind, of a router's bias, of sinks.
    `has_norms_before` says whether there are norms before attention and MLP, and `behind` is what a
    norm behind one of them keeps.
    `products_joined` says whether q, k and v, and gate and up, are one product each; `attention_reads`
    and `mlp_reads` are how many products read a norm's result.
    """

    def __init__(self, model: Model, plan: Plan, number: float, logit: float) -> None:
        self.model, self.plan, self.number = model, plan, number
        scale = number / plan.element_bytes
        s = sizes(model, plan)
        self.seq = (plan.seq or model.seq) // plan.cp
        self.hidden = s.outside * number
        self.whole = s.tokens * model.hidden * number
        tensors = made_tensors(model, plan)
        self.q, self.result = tensors["q"] * scale, tensors["output input"] * scale
        self.kv = (tensors["k"] + tensors["v"]) / 2 * scale
        self.latents = (tensors.get("latents", 0.0) + tensors.get("qk norm inputs", 0.0)) * scale
        self.inner = tensors["mlp between"] / (2 + model.gated_mlp) * scale
        self.routed = tensors.get("routed", 0.0) * scale
        self.sent = 0.0
        if plan.ep > 1 and model.experts:
            self.sent = sent_tokens(model, plan) / plan.expert_load * model.hidden * number
        self.scores = tensors.get("scores", 0.0) * scale
        self.gathered_keys = tensors.get("gathered keys and values", 0.0) * scale
        self.mask = tensors.get("dropout masks", 0.0) * scale / 2
        self.softmax_sums = tensors.get("softmax statistics", 0.0) and (
            FP32_BYTES * s.tokens * model.heads / plan.tp
        )
        self.norm_statistics = statistics_bytes(model, plan)
        self.autocast = autocasts(plan)
        self.skipped = s.outside * FP32_BYTES if self.autocast else self.hidden
        self.saved = saved(model, plan, number, self.inner)
        frees = plan.sequence_parallel and not keeps_gathered(plan)
        self.gathered_input = self.whole if frees else 0.0
        latents = (model.q_rank or model.hidden) + model.kv_rank + model.rope_size
        width = latents if model.kv_rank else model.hidden
        self.attention_gathered_input = self.gathered_input * width / model.hidden
        self.mlp_gathers = not (model.experts and plan.spreads_experts and not model.shared_experts)
        self.mlp_whole = self.whole if self.mlp_gathers else self.hidden
        self.mlp_gathered_input = self.gathered_input if self.mlp_gathers else 0.0
        self.logits, self.loss = (s.tokens * model.vocab / plan.tp * n for n in (number, logit))
        self.loss_statistics = 2 * FP32_BYTES * s.tokens * plan.compiled_loss
        self.casts_logits = logit != number or plan.has_flat_gradients
        self.score_gradients = 0.0
        if plan.attention == "unfused":  # of softmax's result and of the scores
            elements = s.tokens * (plan.seq or model.seq) * model.heads / plan.tp
            self.score_gradients = 2 * elements * number
        self.products_joined = plan.has_flat_gradients or model.positions > 0
        self.mlp_reads = 1 + model.gated_mlp
        self.copied = 2 * self.routed if self.autocast else self.routed
        own = partial(_own_weights, layer_operations(model), plan)
        self.attention_weights = own(ATTENTION, joined=self.products_joined or model.kv_rank > 0)
        self.attention_reads = len(self.attention_weights)
        (self.output_weights,) = own((OperationKind.OUTPUT,))
        ups = OperationKind.UP, OperationKind.SHARED_UP
        self.up_weights = own(ups, joined=self.products_joined)
        (self.down_weights,) = own((OperationKind.DOWN, OperationKind.SHARED_DOWN))
        self.router_weights = sum(n for n, _ in own((OperationKind.ROUTER,)))
        self.has_norms_before = model.norms != "behind"
        self.behind = 0.0
        if model.norms != "before":
            self.behind = self.hidden + self.norm_statistics + self.saved.norm_parts
        norm_numbers = model.hidden * (1 + model.has_bias("norm"))
        before = 2 * norm_numbers * self.has_norms_before
        products = self.attention_weights, self.up_weights, (self.output_weights, self.down_weights)
        counted = sum(n + bias for pairs in products for n, bias in pairs) + self.router_weights
        weights = (
            on_rank(w, plan.tp, plan.etp, plan.ep)
            for its in layer_operations(model)
            for w in its.weights
        )
        self.inner_norms = sum(its.numbers for its in weights) - counted - before

    def cast(self, numbers: float) -> float:
        """Bytes of the 16-bit copy of a weight of so many numbers; 0 without autocast."""
        return numbers * self.number if self.autocast else 0.0

    @cached_property
    def kept_by_recomputed(self) -> float | None:
        """What a layer that is computed again keeps until its backward; None if none is."""
        if self.plan.recompute not in ("outputs", "per-op", "full"):
            return None
        scale = self.number / self.plan.element_bytes
        kept = layer_activations_bytes(self.model, self.plan, self.plan.recompute) * scale
        return kept + self.skipped - self.hidden  # its own output, which may be fp32

    @cached_property
    def scores_again(self) -> float:
        """What selective recomputation frees in a layer's forward, and makes again."""
        if self.plan.recompute != "selective":
            return 0.0
        none, selective = (
            layer_activations_bytes(self.model, self.plan, kind) for kind in ("none", "selective")
        )
        scale = self.number / self.plan.element_bytes
        return none * scale - selective * scale

    @property
    def travelling(self) -> float:
        """Keys and values that a ring receives while it computes with those that are here."""
        plan = self.plan
        return 2 * self.kv if plan.cp > 1 and plan.cp_kind == "ring" else 0.0


ATTENTION = (
    OperationKind.QKV,
    OperationKind.Q_DOWN,
    OperationKind.Q_UP,
    OperationKind.KV_DOWN,
    OperationKind.KV_UP,
)
"""The products before attention."""


def _own_weights(
    operations: Sequence[Operation],
    plan: Plan,
    kinds: Sequence[OperationKind],
    *,
    joined: bool = False,
) -> list[tuple[float, float]]:
    """[(numbers of a matrix, of its bias)] on a rank, of operations of some kinds together: for each
    tensor that they make, or joined for all."""
    found: list[tuple[float, float]] = []
    for its in operations:
        if its.kind not in kinds or not its.weights:
            continue
        own = [on_rank(weight, plan.tp, plan.etp, plan.ep).numbers for weight in its.weights]
        each = len(own) // len(its.makes)
        pairs = [(own[at], sum(own[at + 1 : at + each])) for at in range(0, len(own), each)]
        found = [*map(_added, found, pairs)] if len(found) == len(pairs) else [*found, *pairs]
    return [(sum(n for n, _ in found), sum(n for _, n in found))] if joined else found


def _added(one: tuple[float, float], other: tuple[float, float]) -> tuple[float, float]:
    return one[0] + other[0], one[1] + other[1]

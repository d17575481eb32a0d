"""The bytes of the tensors that one microbatch makes in the embedding, a layer and the head."""

from collections.abc import Sequence
from functools import cached_property

from simlab.layer.microbatch import plan_operations, sent_tokens, share_of, sizes
from simlab.layer.operation import Operation, OperationKind
from simlab.layer.units import embedding_operations, head_operations
from simlab.lowering.kernels import is_one_kernel, keeps_gathered
from simlab.lowering.zero import autocasts
from simlab.memory.activations import layer_activations_bytes, saving, statistics_bytes
from simlab.memory.units.steps import Rank, Step, unit_of
from simlab.spec.model import Model
from simlab.spec.plan import Plan

TOKEN_BYTES = 8
"""Of a token's number, an int64."""
FP32_BYTES = 4

UnitPart = str
"""What an op computes in one piece: a kind of unit, or the 'loss', which follows the head."""


class UnitSizes:
    """Bytes of the tensors that one microbatch makes in the units of a rank, for layers of one kind.

    With T tokens of h hidden numbers, of `number` bytes each:

    - `hidden` is T h, divided by tp under sequence parallelism, and `whole` is never divided.
      `skipped` is what the skipped path has: `hidden`, and under autocast that in fp32.
    - `norm_statistics` is what a norm keeps of each token in fp32.
    - `sent` are the copies of tokens as they leave for other ranks' experts.
    - `logits` are the head's, and `loss` is the same in the loss's type. `loss_statistics` are what a
      compiled loss keeps of each token.

    `steps` gives the operations of a unit with the bytes of their tensors.
    """

    def __init__(self, model: Model, plan: Plan, number: float, logit: float) -> None:
        self.model, self.plan, self.number = model, plan, number
        self._steps: dict[UnitPart, list[Step]] = {}
        s = sizes(model, plan)
        self.seq = (plan.seq or model.seq) // plan.cp
        self.hidden = s.outside * number
        self.whole = s.tokens * model.hidden * number
        self.autocast = autocasts(plan)
        self.skipped = s.outside * FP32_BYTES if self.autocast else self.hidden
        self.norm_statistics = statistics_bytes(model, plan)
        self.sent = 0.0
        if plan.ep > 1 and model.experts_per_token:
            self.sent = sent_tokens(model, plan) / plan.expert_load * model.hidden * number
        self.logits, self.loss = (s.tokens * model.vocab / plan.tp * n for n in (number, logit))
        self.loss_statistics = 2 * FP32_BYTES * s.tokens * plan.compiled_loss
        self.casts_logits = logit != number or plan.habits.fuses_loss
        one_kernel = is_one_kernel(OperationKind.ACTIVATION, model, plan)
        self.rank = Rank(
            share=share_of(model, plan),
            number=number,
            ep=plan.ep,
            spreads_experts=plan.spreads_experts,
            products_joined=plan.habits.joins_products or model.positions > 0,
            frees_gathered=plan.sequence_parallel and not keeps_gathered(plan),
            rings=plan.cp > 1 and plan.cp_kind == "ring",
            gates_have_parts=model.gated_mlp and not one_kernel and not self.autocast,
            autocast=self.autocast,
        )

    def steps(self, part: UnitPart) -> list[Step]:
        """The operations of a part of the model, in the order of a forward; the loss is the head's."""
        if part not in self._steps:
            operations = saving(self._operations("head" if part == "loss" else part), self.plan)
            unit, is_loss = unit_of(tuple(operations), self.rank), part == "loss"
            its = [step for step in unit if (step.kind is OperationKind.LOSS) == is_loss]
            self._steps[part] = its
        return self._steps[part]

    def _operations(self, unit: UnitPart) -> Sequence[Operation]:
        if unit == "embedding":
            return embedding_operations(self.model)
        if unit == "head":
            return head_operations(self.model)
        return plan_operations(self.model, self.plan)

    @cached_property
    def norm_parts(self) -> float:
        """What a norm keeps where an RMSNorm is several ops, as in Llama's reference code and in torch
        before 2.8. Then autograd saves two more results of it: the input in fp32 (for its square and
        for its product with the root) and the normalised tensor in 16 bits (for its product with the
        weight)."""
        if self.autocast or is_one_kernel(OperationKind.NORM, self.model, self.plan):
            return 0.0
        return self.hidden / self.number * (FP32_BYTES + self.number)

    @cached_property
    def kept_by_recomputed(self) -> float | None:
        """What a layer that is computed again keeps until its backward; None if none is."""
        if self.plan.recompute in ("none", "selective"):
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

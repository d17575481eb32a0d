"""What the forward of the embedding, a layer and the head allocates and frees, op by op."""

from collections.abc import Callable, Mapping

from simlab.layer.operation import OperationKind
from simlab.layer.units import is_layer
from simlab.memory.ledger import Ledger, Phase
from simlab.memory.units.sizes import UnitPart, UnitSizes
from simlab.memory.units.steps import Step


def forward_phase(of: UnitSizes, part: UnitPart) -> Phase:
    """The `Phase` of the forward of a part."""
    walk = UnitForward(of)
    walk.part(part)
    return walk.ledger.phase


def recomputed_bytes(of: UnitSizes) -> float:
    """Bytes of a layer's activations that its backward makes again before it begins."""
    if of.kept_by_recomputed is None:
        return 0.0
    walk = UnitForward(of)
    walk.part("layer")
    return walk.recomputed


class UnitForward:
    """A fold over the operations of a unit, written into a ledger in PyTorch's order.

    - A layer's forward keeps two norms (each its output and fp32 numbers per token), q, k and v,
      attention's output and an fp32 number per token and head, the sum with the skipped path, the
      MLP between its matrices, and the layer's own output, which the next unit's norm saves. Each
      row-parallel product is there until it is added. Not kept: scores, unless attention is
      unfused, and masks, unless there is dropout. With recomputation the layer frees what it does
      not keep when its forward ends, and makes that again when its backward begins; inside
      recomputed attention only scores are made again.
    - The head keeps its norm and the loss's fp32 log-softmax.

    With sequence parallelism, what a column-parallel matrix reads and a row-parallel one writes is
    whole for as long as that product runs.
    """

    def __init__(self, of: UnitSizes) -> None:
        self.of, self.ledger = of, Ledger()
        self.recomputed = 0.0
        """Bytes that a layer frees when its forward ends, and makes again in its backward."""
        self.sent = 0.0
        """Of results of experts that are on their way back."""
        self.added = 0.0
        """Of the skipped path, where nothing but the sum reads it."""
        self.beside = 0.0
        """Of attention's result, to which an MLP's beside it is added before ranks sum them up."""

    def part(self, part: UnitPart) -> None:
        """All operations of a part, then what is to be recomputed goes."""
        for step in self.of.steps(part):
            FORWARD.get(step.kind, UnitForward.made)(self, step)
        if part == "loss" or not is_layer(part):
            return
        if self.of.kept_by_recomputed is not None:
            self.recomputed = self.ledger.held["activations"] - self.of.kept_by_recomputed
        self.ledger.free(("activations", self.recomputed))
        self.ledger.free(("activations", self.of.scores_again))

    def _keep(self, size: float, free: float = 0.0) -> None:
        self.ledger.op(("activations", size), free=(("activations", free),))

    def _cast(self, step: Step) -> None:
        """Other forms of a result that products save, which may take its place."""
        made, gone = step.cast
        if made:
            self._keep(made, free=gone)

    def embedding(self, step: Step) -> None:
        """Rows of the embedding and, in a GPT, their sum with the positions'."""
        self._keep(self.of.skipped)
        if len(step.operations[0].weights) > 1:
            self._keep(self.of.skipped, free=self.of.skipped)

    def norm(self, step: Step) -> None:
        """A norm's output; under autocast its 16-bit copies take its place, but not behind attention or
        an MLP."""
        of = self.of
        if step.is_behind:
            self._keep(of.hidden + of.norm_statistics + of.norm_parts)
            return
        self._keep(of.skipped + of.norm_statistics + of.norm_parts)
        if of.autocast:
            self._keep(step.copies, free=of.skipped)
        self._cast(step)

    def made(self, step: Step) -> None:
        """What an operation makes, and what it keeps besides, while a ring's keys and values come, or
        tokens of other ranks. Queries and keys that are turned take the place of others."""
        self._enter(step)
        comes, gone = step.gathered + step.travelling, 0.0
        if step.kind is OperationKind.ROTARY:
            gone = step.reads
        self.ledger.op(("activations", step.inside), ("temporaries", comes))
        self._keep(sum(step.makes) + step.gate_part, free=gone)
        self.ledger.free(("temporaries", comes))
        self._cast(step)

    def moved(self, step: Step) -> None:
        """What takes the place of what it is copied from; a single rank collects nothing."""
        if step.kind is OperationKind.JOIN or self.of.plan.tp > 1:
            self._keep(sum(step.makes), free=step.reads)
        self._cast(step)

    def _enter(self, step: Step) -> None:
        """Where products read the skipped path itself, they may save copies of it, so that it goes when
        it has been added."""
        of, kept = self.of, step.kept_input
        if not kept or (kept == of.hidden and not of.autocast):
            return
        self._keep(step.copied(of.hidden) if of.autocast else kept)
        self.added = of.skipped

    def permute(self, step: Step) -> None:
        """With expert parallelism, copies of tokens leave before the products, and return after.
        Autocast copies tokens in fp32."""
        copied = step.makes[0] * (2 if self.of.autocast else 1)
        self.ledger.op(("temporaries", self.of.sent))
        self._keep(copied)
        if self.of.autocast:
            self._keep(step.copies, free=copied)
        self.ledger.free(("temporaries", self.of.sent))
        self._cast(step)

    def row(self, step: Step) -> None:
        """A row-parallel product, a rank's part of it, and the sum over the ranks."""
        of, product = self.of, step.row_product
        if step.is_routed:
            self.sent = of.sent
            self.ledger.op(("temporaries", self.sent))
        self._keep(of.rank.cast(step.weights[0][0]))
        if step.unit.side_by_side:
            self._keep(product)
            if not self.beside:
                self.beside = product
                return
            self._keep(of.hidden, free=self.beside + product)
            self.beside = 0.0
            return
        if of.plan.sequence_parallel or product != of.whole:
            self._keep(product)
            self._keep(of.hidden, free=product)
        else:
            self._keep(of.whole)

    def residual(self, step: Step) -> None:
        """The sum with the skipped path."""
        self._keep(self.of.skipped + step.inside, free=self.of.hidden + self.added)
        self.added = 0.0
        self.ledger.free(("temporaries", self.sent))
        self.sent = 0.0

    def loss(self, _: Step) -> None:
        """The logits go when the loss has its own numbers of them. Megatron-LM's loss works in
        place. nanotron's makes fp32 logits and subtracts their maximum out of place, while the
        logits are still there (parallel/tensor_parallel/functional.py). What torch.compile makes of
        torch's reads the logits, and keeps them with each token's maximum and sum of exponentials in
        fp32; its backward makes the logits' gradient from these. Transformer Engine's loss is taken to do
        the same, though it makes the gradient in the logits' place."""
        of = self.of
        if of.plan.compiled_loss:
            self._keep(of.loss_statistics)
            return
        if of.plan.habits.copies_logits:
            self._keep(of.loss)
            self._keep(of.loss, free=of.loss + of.logits)
            return
        if of.casts_logits:
            self._keep(of.loss, free=of.logits)
        if not of.plan.habits.fuses_loss:
            self._keep(of.loss, free=of.loss if of.casts_logits else of.logits)


FORWARD: Mapping[OperationKind, Callable[[UnitForward, Step], None]] = {
    OperationKind.EMBEDDING: UnitForward.embedding,
    OperationKind.NORM: UnitForward.norm,
    OperationKind.LAST_NORM: UnitForward.norm,
    OperationKind.PERMUTE: UnitForward.permute,
    OperationKind.OUTPUT: UnitForward.row,
    OperationKind.DOWN: UnitForward.row,
    OperationKind.RESIDUAL: UnitForward.residual,
    OperationKind.LOSS: UnitForward.loss,
    OperationKind.JOIN: UnitForward.moved,
    OperationKind.COLLECT: UnitForward.moved,
}
"""{kind of a step: what its forward does}, where it is not `UnitForward.made`."""

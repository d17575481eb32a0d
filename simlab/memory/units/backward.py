"""What the backward of the embedding, a layer and the head allocates and frees, op by op."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from simlab.layer.operation import OperationKind
from simlab.layer.units import is_layer
from simlab.memory.ledger import Ledger, Phase
from simlab.memory.schemes import Scheme
from simlab.memory.units.forward import recomputed_bytes
from simlab.memory.units.sizes import UnitPart, UnitSizes
from simlab.memory.units.steps import Step


@dataclass(kw_only=True)
class UnitBackward:
    """A fold over the operations of a unit reversed, written into a ledger in PyTorch's order.

    - A layer's backward has the gradient of its output at hand. A linear layer makes its input's
      gradient, its weight's and its bias's; then its output's gradient and the input that it saved
      go, and the weight's gradient is accumulated. Attention makes dq, dk and dv, which a joined
      product needs in one contiguous tensor. A norm's gradient is summed with the skipped path's.
    - A split backward keeps, from I to W, the inputs of linear layers and the gradients of their
      outputs (Qi et al. 2023, Table 1: 32 of 34 bytes per element); I accumulates no gradients.

    With sequence parallelism, what a column-parallel matrix reads and a row-parallel one writes is
    whole for as long as that product runs.
    """

    of: UnitSizes
    scheme: Scheme
    kind: str
    """B, I or W."""
    first: bool = True
    """Whether these are the step's first gradients."""
    sums_in_place: bool = True
    waits: bool = False
    """Whether the head's matrix is the embedding's, so that its gradient waits for that one's."""
    table_is_added: bool = False
    """Whether a head on the same rank, but of another stage, has made the gradient of the embedding's
    table before."""
    ledger: Ledger = field(default_factory=Ledger)
    branch: float = 0.0
    """Bytes of the gradient of a branch's result that is not the skipped path's."""

    @property
    def gradient(self) -> float:
        """Bytes that a backward allocates for each number of a weight's gradient."""
        return self.scheme.made_gradient

    def phase(self, part: UnitPart) -> Phase:
        """The `Phase` of a part: of all its operations, the last one first."""
        if is_layer(part) and part != "loss" and self.kind != "W":
            self.ledger.op(("activations", recomputed_bytes(self.of)))
        for step in reversed(self.of.steps(part)):
            BACKWARD.get(step.kind, UnitBackward.made)(self, step)
        return self.ledger.phase

    def _make(self, size: float, temporaries: float = 0.0, activations: float = 0.0) -> None:
        """A temporary of `size`; then others, and activations, are no longer needed."""
        self.ledger.op(
            ("temporaries", size),
            free=(("temporaries", temporaries), ("activations", activations)),
        )

    def _sum(self, size: float) -> None:
        """Two gradients of `size` become one."""
        again = 0.0 if self.sums_in_place else size
        self._make(again, temporaries=size + again)

    def _weights(self, *counts: float) -> None:
        for count in counts:
            self._accumulate(count, self.first)

    def _accumulate(self, count: float, first: bool) -> None:
        self.scheme.accumulate(self.ledger, count * self.gradient, first)

    def _linear(
        self,
        makes: float,
        weights: tuple[float, ...],
        *,
        output: float = 0.0,
        passed: float = 0.0,
        saved: float = 0.0,
        is_head: bool = False,
    ) -> None:
        """A linear layer with `weights` = (matrix, bias) numbers. output: bytes of its output's
        gradient, `passed` if others still need that; saved: of the input that it kept. is_head: whether
        it is the head, whose gradient may wait for the embedding's."""
        if self.kind != "W":
            self._make(makes)
        saved += self.of.rank.cast(weights[0])
        if self.kind == "I" and is_head:
            self.ledger.relabel("temporaries", "activations", output)
            return
        if self.kind == "I":
            self.ledger.relabel("temporaries", "activations", output)
            self.ledger.op(("activations", passed))
            return
        kept = output + passed if self.kind == "W" else 0.0
        self._make(
            sum(weights) * self.gradient,
            temporaries=0.0 if self.kind == "W" else output,
            activations=saved + kept,
        )
        if not (is_head and self.waits):
            self._weights(*weights)

    def column(self, step: Step) -> None:
        """Column-parallel products of the same input, which is gathered again for the gradients of
        their weights. Queries, keys and values of one product, as a GPT has, have their gradients
        joined, and then copied to be contiguous. A head's matrix may be the embedding's."""
        of, makes = self.of, step.reads
        gathered = step.gathered if self.kind != "I" else 0.0
        is_head, last = step.kind is OperationKind.HEAD, len(step.makes) - 1
        if step.kind is OperationKind.QKV and of.model.positions and self.kind != "W":
            for _ in range(2):
                self._make(sum(step.makes), sum(step.makes))
        self.ledger.op(("temporaries", gathered))
        for at, (output, weights) in enumerate(zip(step.makes, step.weights)):
            saved = step.saved if at == last else 0.0
            if of.autocast and at < last:  # which has copied the input for each
                saved = step.saved - step.inside
            self._linear(makes, weights, output=output, saved=saved, is_head=is_head)
            if of.autocast and self.kind != "W":  # to fp32
                self._make(2 * makes, temporaries=makes)
            if at and self.kind != "W":
                self._sum(2 * makes if of.autocast else makes)
        self.ledger.free(("temporaries", gathered))
        self._vectors(step)
        self._leave(step)
        if step.shares_input and self.kind != "W":
            self._meet(step.kind, 2 * makes if of.autocast else makes)

    def _meet(self, kind: OperationKind, made: float) -> None:
        """The gradients of what two branches have read are summed; each is scattered by itself."""
        parts = self.of.plan.tp if self.of.plan.sequence_parallel else 1
        if kind is OperationKind.QKV:  # whose own is scattered by the norm
            self._sum(made / parts)
        elif parts > 1:
            self._make(made / parts, temporaries=made)

    def _vectors(self, step: Step) -> None:
        """The gradients of weights that are no product's."""
        if step.vectors and self.kind != "I":
            self._make(step.vectors * self.gradient)
            self._weights(step.vectors)

    def _leave(self, step: Step) -> None:
        """Where products have read the skipped path itself, the gradients of both are summed."""
        if step.kept_input and self.kind != "W":
            self._scatter(step)
            self._sum(self.of.skipped)

    def _scatter(self, step: Step) -> None:
        """With sequence parallelism, a gradient that was whole is a rank's part."""
        if self.of.plan.sequence_parallel and step.is_whole:
            self._make(self.of.hidden, temporaries=self.of.whole)

    def row(self, step: Step) -> None:
        """A row-parallel product, whose output's gradient is the skipped path's, too, or comes from a
        norm behind it. Experts' has gone back to copies of tokens."""
        of, gathered = self.of, 0.0
        routed = step.makes[0] if step.is_routed and self.kind != "W" else 0.0
        if routed:
            self.ledger.op(("temporaries", of.sent))
            self._make(routed, temporaries=of.sent)
        if self.kind != "W" and of.plan.sequence_parallel and step.is_whole:
            gathered = of.whole
        self.ledger.op(("temporaries", gathered))
        cast = self.branch
        if of.autocast and not step.is_routed and not self.branch:
            cast = of.hidden
            self._make(cast if self.kind != "W" else 0.0)
        self.branch = 0.0
        saved = step.saved + (step.shared if self.kind == "W" else 0.0)
        (weights,) = step.weights
        passes = not cast and not (step.unit.side_by_side and step.kind is OperationKind.OUTPUT)
        passed = of.hidden if passes else 0.0  # once, where it is that of two branches
        self._linear(step.reads, weights, output=cast, passed=passed, saved=saved)
        self.ledger.free(("temporaries", gathered + routed))

    def norm(self, step: Step) -> None:
        """With sequence parallelism, its output's gradient was whole, and a rank's part of it is here
        now. Where there is a skipped path, that path's gradient is added."""
        of, numbers = self.of, step.weights[0]
        self.branch = of.hidden if step.is_behind else 0.0
        if self.kind == "W":
            self._make(sum(numbers) * self.gradient)
            self._weights(*numbers)
            return
        weights = sum(numbers) * self.gradient if self.kind == "B" else 0.0
        kept = of.norm_statistics + of.norm_parts
        if step.is_behind:
            self._make(of.hidden + weights, activations=of.hidden + kept)
        else:
            self._scatter(step)
            saved = of.skipped if step.owned else 0.0  # else another unit's norm saves it
            self._make(of.skipped + weights, of.skipped, saved + kept)
        if step.kind is OperationKind.NORM and not step.is_behind:
            self._sum(of.skipped)
        if self.kind == "B":
            self._weights(*numbers)

    def made(self, step: Step) -> None:
        """Of what an operation without weights has read, as an activation function or rotary
        embedding; of a residual it is at hand for both ways."""
        if self.kind != "W" and step.kind is not OperationKind.RESIDUAL:
            self._make(step.reads, sum(step.makes), step.saved + step.gate_part)

    def join(self, step: Step) -> None:
        """Of what was put side by side, whose gradient sequence parallelism scatters."""
        whole = sum(map(self.of.rank.whole_size, step.results))
        if self.kind != "W":
            self._make(step.reads, temporaries=whole if step.is_whole else sum(step.makes))

    def collect(self, step: Step) -> None:
        """Of what ranks have collected: of a rank's own part of it."""
        if self.kind != "W" and self.of.plan.tp > 1:
            self._make(step.reads, temporaries=sum(step.makes))

    def permute(self, step: Step) -> None:
        """Of the copies of tokens, which go back to these."""
        of, copied = self.of, step.makes[0] * (2 if self.of.autocast else 1)
        if self.kind != "W":
            self._make(of.sent, temporaries=copied if of.sent else 0.0)
            made = of.whole if step.is_whole and not of.autocast else of.skipped
            self._make(made, temporaries=of.sent or copied)

    def router(self, step: Step) -> None:
        """Of a router's matrix; its input is what other products have read, too."""
        if self.kind != "I":
            ((count, bias),) = step.weights
            made = (count + bias) * self.gradient
            self._make(made, activations=step.saved + self.of.rank.cast(count))
            self._weights(count, bias)
        self._leave(step)

    def attention(self, step: Step) -> None:
        """Attention's own backward. The product after it still needs its result in a W. Masks of
        dropouts go with it."""
        of = self.of
        self._vectors(step)
        if self.kind == "W":
            return
        self.ledger.op(("activations", of.scores_again))
        masks = sum(its.saved for its in step.unit if its.kind is OperationKind.RESIDUAL)
        gone = step.saved + masks - (step.shared if self.kind == "I" else 0.0)
        travels = 2 * step.travelling + step.score_gradients
        self._make(step.reads + travels, sum(step.makes) + travels, gone)

    def loss(self, _: Step) -> None:
        """The gradients of the loss and of the logits. Of a vocabulary that is cut over ranks torch
        computes the latter as (gradient + exp(log-softmax)) x gradient of the loss, op by op
        (`_nll_loss_and_log_softmax_backward` in torch/distributed/tensor/parallel/loss.py); a
        compiled loss is taken to be one kernel there, too."""
        of = self.of
        if self.kind == "W":
            return
        if of.plan.compiled_loss:
            self._make(of.logits, activations=of.logits + of.loss_statistics)
            return
        if of.plan.habits.fuses_loss:  # in place of what was kept
            self._make(of.logits, activations=of.loss)
            return
        self._make(of.loss)
        if of.plan.tp > 1:
            self._make(of.loss)
            self._make(of.loss, temporaries=2 * of.loss)
        self._make(of.loss, temporaries=of.loss, activations=of.loss)
        if of.casts_logits:
            self._make(of.logits, temporaries=of.loss)

    def embedding(self, step: Step) -> None:
        """The sum over the batch for the positions, and the tables' gradients."""
        of, (table, *positions) = self.of, step.operations[0].weights
        if self.kind == "I":
            self.ledger.relabel("temporaries", "activations", of.skipped)
            return
        output = ("temporaries" if self.kind == "B" else "activations", of.skipped)
        for its in positions:
            row = of.seq * its.columns * of.number
            self._make(row)
            self._make(its.numbers * self.gradient, row)
            self._weights(its.numbers)
        numbers = table.numbers / of.plan.tp
        made = numbers * self.gradient
        dense = 0.0 if made else numbers * of.number  # made, then added where it stays
        self._make(made + dense, temporaries=dense)
        self.ledger.free(output)
        if self.waits and self.gradient:  # the head's gradient has waited for it
            self._sum(made)
        self._accumulate(numbers, self.first and not self.table_is_added)


BACKWARD: Mapping[OperationKind, Callable[[UnitBackward, Step], None]] = {
    OperationKind.EMBEDDING: UnitBackward.embedding,
    OperationKind.NORM: UnitBackward.norm,
    OperationKind.LAST_NORM: UnitBackward.norm,
    OperationKind.QKV: UnitBackward.column,
    OperationKind.UP: UnitBackward.column,
    OperationKind.TO_EXPERTS: UnitBackward.column,
    OperationKind.FROM_EXPERTS: UnitBackward.column,
    OperationKind.HEAD: UnitBackward.column,
    OperationKind.PROJECTION: UnitBackward.column,
    OperationKind.JOIN: UnitBackward.join,
    OperationKind.COLLECT: UnitBackward.collect,
    OperationKind.ATTENTION: UnitBackward.attention,
    OperationKind.OUTPUT: UnitBackward.row,
    OperationKind.DOWN: UnitBackward.row,
    OperationKind.ROUTER: UnitBackward.router,
    OperationKind.PERMUTE: UnitBackward.permute,
    OperationKind.LOSS: UnitBackward.loss,
}
"""{kind of a step: what its backward does}, where it is not `UnitBackward.made`."""

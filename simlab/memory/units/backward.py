"""What the backward of the embedding, a layer and the head allocates and frees, op by op."""

from collections.abc import Sequence

from simlab.memory.ledger import Ledger, Phase
from simlab.memory.schemes import Scheme
from simlab.memory.units.forward import recomputed_bytes
from simlab.memory.units.sizes import UnitPart, UnitSizes


def backward_phase(
    of: UnitSizes,
    scheme: Scheme,
    part: UnitPart,
    kind: str,
    *,
    first: bool = True,
    sums_in_place: bool = True,
    waits: bool = False,
    table_is_added: bool = False,
) -> Phase:
    """The `Phase` of an op of `kind` (B, I or W) in a part; for the options see `UnitBackward`."""
    walk = UnitBackward(
        of,
        scheme,
        kind,
        first=first,
        sums_in_place=sums_in_place,
        waits=waits,
        table_is_added=table_is_added,
    )
    parts = {"embedding": walk.embedding, "head": walk.head, "loss": walk.loss}
    parts.get(part, walk.layer)()
    return walk.ledger.phase


class UnitBackward:
    """The ops of the backward of one unit, in PyTorch's order, written into a ledger.

    - A layer's backward has the gradient of its output at hand. A linear layer makes its input's
      gradient, its weight's and its bias's; then its output's gradient and the input that it saved
      go, and the weight's gradient is accumulated. Attention makes dq, dk and dv, which a joined
      product needs in one contiguous tensor. A norm's gradient is summed with the skipped path's.
    - A split backward keeps, from I to W, the inputs of linear layers and the gradients of their
      outputs (Qi et al. 2023, Table 1: 32 of 34 bytes per element); I accumulates no gradients.

    With sequence parallelism, what a column-parallel matrix reads and a row-parallel one writes is
    whole for as long as that product runs.
    """

    def __init__(
        self,
        of: UnitSizes,
        scheme: Scheme,
        kind: str,
        *,
        first: bool = True,
        sums_in_place: bool = True,
        waits: bool = False,
        table_is_added: bool = False,
    ) -> None:
        """kind: B, I or W. first: whether these are the step's first gradients. waits: whether
        the head's matrix is the embedding's, so that its gradient waits for that one's.
        table_is_added: whether a head on the same rank, but of another stage, has made the gradient
        of the embedding's table before."""
        self.of, self.scheme, self.kind = of, scheme, kind
        self.first, self.sums_in_place, self.waits = first, sums_in_place, waits
        self.table_is_added = table_is_added
        self.gradient = scheme.made_gradient
        self.ledger = Ledger()

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
    ) -> None:
        """A linear layer with `weights` = (matrix, bias) numbers. output: bytes of its output's
        gradient, `passed` if others still need that; saved: of the input that it kept."""
        if self.kind != "W":
            self._make(makes)
        saved += self.of.cast(weights[0])
        if self.kind == "I":
            self.ledger.op(("activations", output + passed), free=(("temporaries", output),))
            return
        kept = output + passed if self.kind == "W" else 0.0
        self._make(
            sum(weights) * self.gradient,
            temporaries=0.0 if self.kind == "W" else output,
            activations=saved + kept,
        )
        self._weights(*weights)

    def _column(
        self,
        outputs: Sequence[float],
        weights: Sequence[tuple[float, ...]],
        *,
        makes: float,
        saved: float,
        gathered: float,
    ) -> None:
        """Column-parallel products of the same input, whose gradients are `makes` each. gathered: bytes
        that are gathered again for the gradients of their weights."""
        gathered = gathered if self.kind != "I" else 0.0
        self.ledger.op(("temporaries", gathered))
        for at, (output, its) in enumerate(zip(outputs, weights)):
            last = at == len(outputs) - 1 or self.of.autocast  # which copies it for each
            self._linear(makes, its, output=output, saved=saved if last else 0.0)
            if self.of.autocast and self.kind != "W":  # to fp32
                self._make(2 * makes, temporaries=makes)
            if at and self.kind != "W":
                self._sum(2 * makes if self.of.autocast else makes)
        self.ledger.free(("temporaries", gathered))

    def _row(
        self,
        makes: float,
        weights: tuple[float, ...],
        *,
        saved: float,
        casts: bool = True,
        gathers: bool = True,
    ) -> None:
        """A row-parallel product, whose output's gradient is the skipped path's, too, or comes from a
        norm behind it."""
        of, gathered = self.of, 0.0
        if of.behind and self.kind != "W":
            self.ledger.free(("activations", of.behind))
        if self.kind != "W" and of.plan.sequence_parallel and gathers:
            gathered = of.whole
        self.ledger.op(("temporaries", gathered))
        cast = of.hidden if (of.autocast and casts) or of.behind else 0.0
        self._make(cast if self.kind != "W" else 0.0)
        self._linear(makes, weights, output=cast, passed=of.hidden, saved=saved)
        self.ledger.free(("temporaries", gathered))

    def _norm(self, gradient: float, *, skipped: bool) -> None:
        """Its output's gradient, `gradient` bytes, is at hand; so is, where there is a skipped
        path, that path's, to be added."""
        of, h = self.of, self.of.model.hidden
        numbers = (h,) * (1 + of.model.has_bias("norm"))
        if self.kind == "W":
            self._make(sum(numbers) * self.gradient)
            self._weights(*numbers)
            return
        weights = sum(numbers) * self.gradient if self.kind == "B" else 0.0
        self._make(
            of.skipped + weights, gradient, of.skipped + of.norm_statistics + of.saved.norm_parts
        )
        if skipped:
            self._sum(of.skipped)
        if self.kind == "B":
            self._weights(*numbers)

    def _leave(self, gradient: float, saved: float) -> None:
        """The norm before attention or the MLP; without one the sum with the skipped path. saved: what
        products saved of what they read (`UnitForward._enter`)."""
        of = self.of
        if of.has_norms_before:
            self._norm(gradient, skipped=True)
        elif self.kind != "W":
            is_copy = of.autocast or saved != of.hidden
            self.ledger.free(("activations", of.skipped if is_copy else of.skipped - of.hidden))
            self._sum(of.skipped)

    def _scattered(self, gathers: bool = True) -> float:
        """With sequence parallelism, a rank's part of a gradient that was whole; its bytes."""
        of = self.of
        if of.plan.sequence_parallel and gathers and self.kind != "W":
            self._make(of.hidden, temporaries=of.whole)
        return of.skipped

    def loss(self) -> None:
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
        if of.plan.has_flat_gradients:  # in place of what was kept
            self._make(of.logits, activations=of.loss)
            return
        self._make(of.loss)
        if of.plan.tp > 1:
            self._make(of.loss)
            self._make(of.loss, temporaries=2 * of.loss)
        self._make(of.loss, temporaries=of.loss, activations=of.loss)
        if of.casts_logits:
            self._make(of.logits, temporaries=of.loss)

    def head(self) -> None:
        """The head's product and norm."""
        of, model = self.of, self.of.model
        matrix = model.vocab * model.hidden / of.plan.tp
        gathered = of.gathered_input if self.kind != "I" else 0.0
        self.ledger.op(("temporaries", gathered))
        if self.kind != "W":
            self._make(of.whole)
        if self.kind == "I":
            self.ledger.relabel("temporaries", "activations", of.logits)
        elif self.kind == "W":
            kept = of.logits + of.saved.head_normed + of.cast(matrix)
            self._make(matrix * self.gradient, activations=kept)
        else:
            self._make(matrix * self.gradient, of.logits, of.saved.head_normed + of.cast(matrix))
        if of.autocast and self.kind != "W":
            self._make(of.skipped, temporaries=of.whole)
        if self.kind != "I" and not self.waits:
            self._weights(matrix)
        self.ledger.free(("temporaries", gathered))
        self._norm(self._scattered(), skipped=False)

    def layer(self) -> None:
        """MLP, norm, attention, norm, backwards."""
        if self.kind != "W":
            self.ledger.op(("activations", recomputed_bytes(self.of)))
        self._mlp()
        self._attention()

    def _mlp(self) -> None:
        of, gated = self.of, self.of.mlp_reads
        if of.routed and self.kind != "W":
            self.ledger.op(("temporaries", of.sent))
            self._make(of.routed, temporaries=of.sent)
        self._row(
            of.inner,
            of.down_weights,
            saved=of.saved.inner,
            casts=not of.routed,
            gathers=of.mlp_gathers,
        )
        if self.kind != "W":
            if of.routed:
                self.ledger.free(("temporaries", of.routed))
            self._make(
                gated * of.inner, of.inner, gated * of.inner + of.saved.gate_part
            )  # the activation function
        weights = of.up_weights
        outputs = [gated * of.inner / len(weights)] * len(weights)
        entered = of.routed or of.whole
        saved = of.saved.routed or of.saved.mlp_normed
        self._column(outputs, weights, makes=entered, saved=saved, gathered=of.mlp_gathered_input)
        if of.routed:
            self._router()
        self._leave(self._scattered(of.mlp_gathers), of.saved.mlp_normed)

    def _router(self) -> None:
        of = self.of
        if self.kind != "W":
            self._make(of.sent, temporaries=of.copied if of.sent else 0.0)
            made = of.skipped if of.autocast else of.mlp_whole
            self._make(made, temporaries=of.sent or of.copied)
        if self.kind != "I":
            count = of.router_weights
            self._make(count * self.gradient, activations=of.saved.mlp_normed + of.cast(count))
            self._weights(count)

    def _attention(self) -> None:
        of, model = self.of, self.of.model
        saved = of.saved.result + (of.result if self.kind == "W" else 0.0)
        self._row(of.result, of.output_weights, saved=saved)
        every = of.q + 2 * of.kv
        if self.kind != "W":
            self._scores(every)
            if of.products_joined and model.positions:
                self._make(every, every)  # dq, dk, dv in one
                self._make(every, every)  # contiguous
            elif model.rotary and not model.positions:
                self._make(of.q + of.kv, of.q + of.kv)  # rotary embedding
        weights = of.attention_weights  # those of latent attention as one
        outputs = [every] if len(weights) == 1 else [of.q, of.kv, of.kv]
        saved, gathered = of.saved.normed + of.latents, of.attention_gathered_input
        self._column(outputs, weights, makes=of.whole, saved=saved, gathered=gathered)
        if of.inner_norms and self.kind != "I":
            self._make(of.inner_norms * self.gradient)
            self._weights(of.inner_norms)
        self._leave(self._scattered(), of.saved.normed)

    def _scores(self, every: float) -> None:
        """Attention's own backward. The product after it still needs its result in a W."""
        of = self.of
        self.ledger.op(("activations", of.scores_again))
        result = of.result if self.kind == "B" else 0.0
        gone = every + result + of.softmax_sums + of.gathered_keys + of.scores + 2 * of.mask
        travels = 2 * self.of.travelling + of.score_gradients
        self._make(every + travels, of.result + travels, gone)

    def embedding(self) -> None:
        """The sum over the batch for the positions, and the tables' gradients."""
        of, model = self.of, self.of.model
        if self.kind == "I":
            self.ledger.relabel("temporaries", "activations", of.skipped)
            return
        output = ("temporaries" if self.kind == "B" else "activations", of.skipped)
        if model.positions:
            row = self.of.seq * model.hidden * of.number
            self._make(row)
            self._make(model.positions * model.hidden * self.gradient, row)
            self._weights(model.positions * model.hidden)
        numbers = model.vocab * model.hidden / of.plan.tp
        table = numbers * self.gradient
        dense = 0.0 if table else numbers * of.number  # made, then added where it stays
        self._make(table + dense, temporaries=dense)
        self.ledger.free(output)
        if self.waits and self.gradient:  # the head's gradient has waited for it
            self._sum(table)
        self._accumulate(numbers, self.first and not self.table_is_added)

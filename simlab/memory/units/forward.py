"""What the forward of the embedding, a layer and the head allocates and frees, op by op."""

from simlab.memory.ledger import Ledger, Phase
from simlab.memory.units.sizes import UnitPart, UnitSizes


def forward_phase(of: UnitSizes, part: UnitPart) -> Phase:
    """The `Phase` of the forward of a part."""
    walk = UnitForward(of)
    parts = {"embedding": walk.embedding, "head": walk.head, "loss": walk.loss}
    parts.get(part, walk.layer)()
    return walk.ledger.phase


def recomputed_bytes(of: UnitSizes) -> float:
    """Bytes of a layer's activations that its backward makes again before it begins."""
    if of.kept_by_recomputed is None:
        return 0.0
    walk = UnitForward(of)
    walk.layer()
    return walk.recomputed


class UnitForward:
    """The ops of the forward of one unit, in PyTorch's order, written into a ledger.

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

    def _keep(self, size: float, free: float = 0.0) -> None:
        self.ledger.op(("activations", size), free=(("activations", free),))

    def embedding(self) -> None:
        """Rows of the embedding and, in a GPT, their sum with the positions'."""
        self._keep(self.of.skipped)
        if self.of.model.positions:
            self._keep(self.of.skipped, free=self.of.skipped)

    def layer(self) -> None:
        """Norm, attention, norm, MLP; then what is to be recomputed goes."""
        self._attention_half()
        self._mlp_half()
        if self.of.kept_by_recomputed is not None:
            self.recomputed = self.ledger.held["activations"] - self.of.kept_by_recomputed
        self.ledger.free(("activations", self.recomputed))
        self.ledger.free(("activations", self.of.scores_again))

    def _attention_half(self) -> None:
        of, model = self.of, self.of.model
        self._enter(of.attention_reads, sum(n for n, _ in of.attention_weights), of.saved.normed)
        self.ledger.op(("temporaries", of.attention_gathered_input))
        self._keep(of.latents)
        self._keep(of.q + 2 * of.kv)
        self.ledger.free(("temporaries", of.attention_gathered_input))
        if model.rotary and not model.positions:  # rotary embedding
            self._keep(of.q + of.kv, free=of.q + of.kv)
        self._attention()
        self._row_result(of.whole, of.output_weights[0])

    def _mlp_half(self) -> None:
        """With expert parallelism, copies of tokens leave before the products and return after."""
        of, gated = self.of, 1 + self.of.model.gated_mlp
        weights = sum(n for n, _ in of.up_weights)
        if of.routed:  # the router reads it; so many products read the copies
            self._enter(1, of.router_weights, of.saved.mlp_normed)
        else:
            self._enter(of.mlp_reads, weights, of.saved.mlp_normed)
        self.ledger.op(("temporaries", of.mlp_gathered_input))
        self.ledger.op(("temporaries", of.sent))
        self._keep(of.copied)
        if of.routed and of.autocast:
            self._keep(of.mlp_reads * of.routed + of.cast(weights), free=of.copied)
        self.ledger.free(("temporaries", of.sent))
        self._keep(gated * of.inner)
        if of.saved.routed != of.routed:
            self._keep(of.saved.routed, free=of.routed)
        self.ledger.free(("temporaries", of.mlp_gathered_input))
        self._keep(of.inner + of.saved.gate_part)
        if of.saved.inner != of.inner:
            self._keep(of.saved.inner, free=of.inner)
        self.ledger.op(("temporaries", of.sent))
        self._row_result(max(of.mlp_whole, of.routed), of.down_weights[0])
        self.ledger.free(("temporaries", of.sent))

    def _enter(self, reads: int, weights: float, saved: float) -> None:
        """What so many products with so many `weights` together read, of which they save so much: a
        norm's result, or where there is none the skipped path itself, of which they may save a copy."""
        of = self.of
        if of.has_norms_before:
            self._norm(reads, weights)
            self._save(saved)
        elif of.autocast:
            self._keep(reads * of.hidden + of.cast(weights))
        elif saved != of.hidden:
            self._keep(saved)

    def _save(self, size: float) -> None:
        """What a product saves of a norm's result takes that one's place."""
        if size != self.of.hidden:
            self._keep(size, free=self.of.hidden)

    def _attention(self) -> None:
        of, travels = self.of, self.of.travelling
        self.ledger.op(("activations", of.gathered_keys), ("temporaries", travels))
        self._keep(of.scores)
        self._keep(of.result + of.softmax_sums)
        self.ledger.free(("temporaries", travels))
        self._keep(of.saved.result)

    def _norm(self, reads: int, weights: float) -> None:
        """A norm's output; under autocast its 16-bit copies, for so many products with so many
        `weights` together, take its place."""
        of = self.of
        self._keep(of.skipped + of.norm_statistics + of.saved.norm_parts)
        if of.autocast:
            self._keep(reads * of.hidden + of.cast(weights), free=of.skipped)

    def _row_result(self, product: float, weights: float) -> None:
        """The product of a row-parallel matrix with so many weights, a rank's part of it, and the
        sum with the skipped path."""
        of = self.of
        self._keep(of.cast(weights))
        if of.plan.sequence_parallel or product != of.whole:
            self._keep(product)
            self._keep(of.hidden, free=product)
        else:
            self._keep(of.whole)
        self._keep(of.behind)
        self._keep(of.skipped + of.mask, free=of.hidden)

    def head(self) -> None:
        """The last norm and the logits."""
        of = self.of
        self._norm(1, of.model.vocab * of.model.hidden)
        self._save(of.saved.head_normed)
        self.ledger.op(("temporaries", of.gathered_input))
        self._keep(of.logits)
        self.ledger.free(("temporaries", of.gathered_input))

    def loss(self) -> None:
        """The logits go when the loss has its own numbers of them. Megatron-LM's loss works in
        place. nanotron's makes fp32 logits and subtracts their maximum out of place, while the
        logits are still there (parallel/tensor_parallel/functional.py). What torch.compile makes of
        torch's reads the logits, and keeps them with each token's maximum and sum of exponentials in
        fp32; its backward makes the logits' gradient from these."""
        of = self.of
        if of.plan.compiled_loss:
            self._keep(of.loss_statistics)
            return
        if of.plan.library == "nanotron":
            self._keep(of.loss)
            self._keep(of.loss, free=of.loss + of.logits)
            return
        if of.casts_logits:
            self._keep(of.loss, free=of.logits)
        if of.plan.library != "megatron":
            self._keep(of.loss, free=of.loss if of.casts_logits else of.logits)

"""What the forward of the embedding, a layer and the head allocates and frees, op by op."""

from simlab.memory.ledger import Ledger, Phase
from simlab.memory.units.sizes import UnitPart, UnitSizes


def forward_phase(of: UnitSizes, part: UnitPart) -> Phase:
    """The `Phase` of the forward of a part."""
    walk = UnitForward(of)
    parts = {"embedding": walk.embedding, "head": walk.head, "loss": walk.loss}
    parts.get(part, walk.layer)()
    return walk.ledger.phase


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

    def _keep(self, size: float, free: float = 0.0) -> None:
        self.ledger.op(("activations", size), free=(("activations", free),))

    def embedding(self) -> None:
        """Rows of the embedding and, in a GPT, their sum with the positions'."""
        self._keep(self.of.skipped)
        if self.of.model.positions:
            self._keep(self.of.skipped, free=self.of.skipped)

    def layer(self) -> None:
        """Norm, attention, norm, MLP; then what is to be recomputed goes."""
        of, gated = self.of, 1 + self.of.model.gated_mlp
        entered = self._entered
        self._norm(
            of.attention_reads, (of.model.heads + 2 * of.model.kv_heads) * of.model.head_size
        )
        self._read(of.read)
        self.ledger.op(("temporaries", entered))
        self._keep(of.latents)
        self._keep(of.q + 2 * of.kv)
        self.ledger.free(("temporaries", entered))
        if not of.model.positions:  # rotary embedding
            self._keep(of.q + of.kv, free=of.q + of.kv)
        self._attention()
        self._row_result(of.whole, of.model.heads * of.model.head_size)
        self._norm(of.mlp_reads, gated * of.model.ffn)
        self._read(of.read)
        self.ledger.op(("temporaries", entered))
        self.ledger.op(("temporaries", of.sent))
        self._keep(of.routed)
        self.ledger.free(("temporaries", of.sent))
        self._keep(gated * of.inner)
        self.ledger.free(("temporaries", entered))
        self._keep(of.inner + of.in_gate)
        if of.down_read != of.inner:
            self._keep(of.down_read, free=of.inner)
        self.ledger.op(("temporaries", of.sent))
        self._row_result(max(of.whole, of.routed), of.model.ffn)
        self.ledger.free(("temporaries", of.sent))
        self.ledger.free(("activations", of.recomputed))
        self.ledger.free(("activations", of.scores_again))

    def _read(self, size: float) -> None:
        """What a product keeps of a norm's result takes that one's place."""
        if size != self.of.hidden:
            self._keep(size, free=self.of.hidden)

    @property
    def _entered(self) -> float:
        """Bytes that are gathered for a column-parallel product and freed after it."""
        of = self.of
        return of.whole if of.plan.sequence_parallel and not of.keeps_gathered else 0.0

    def _attention(self) -> None:
        of, travels = self.of, self.of.travelling
        self.ledger.op(("activations", of.gathered), ("temporaries", travels))
        self._keep(of.scores)
        self._keep(of.result + of.sums)
        self.ledger.free(("temporaries", travels))
        self._keep(of.result_cast)

    def _norm(self, reads: int, outputs: float) -> None:
        """A norm's output; under autocast its 16-bit copies, for so many products with `outputs`
        columns together, take its place."""
        of = self.of
        self._keep(of.skipped + of.statistics + of.in_norm)
        if of.autocast:
            self._keep(reads * of.hidden + of.cast(of.model.hidden * outputs), free=of.skipped)

    def _row_result(self, product: float, inputs: float) -> None:
        """The product after a row-parallel matrix with so many rows, its part of it, and the sum
        with the skipped path."""
        of = self.of
        self._keep(of.cast(of.model.hidden * inputs))
        if of.plan.sequence_parallel or product != of.whole:
            self._keep(product)
            self._keep(of.hidden, free=product)
        else:
            self._keep(of.whole)
        self._keep(of.skipped + of.mask, free=of.hidden)

    def head(self) -> None:
        """The last norm and the logits."""
        of, entered = self.of, self._entered
        self._norm(1, of.model.vocab)
        self._read(of.head_read)
        self.ledger.op(("temporaries", entered))
        self._keep(of.logits)
        self.ledger.free(("temporaries", entered))

    def loss(self) -> None:
        """The logits go when the loss has its own numbers of them. Megatron-LM's loss works in
        place. nanotron's makes fp32 logits and subtracts their maximum out of place, while the
        logits are still there (parallel/tensor_parallel/functional.py)."""
        of = self.of
        if of.plan.library == "nanotron":
            self._keep(of.loss)
            self._keep(of.loss, free=of.loss + of.logits)
            return
        if of.casts_logits:
            self._keep(of.loss, free=of.logits)
        if of.plan.library != "megatron":
            self._keep(of.loss, free=of.loss if of.casts_logits else of.logits)

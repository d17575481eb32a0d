"""The model's part of the memory: parameters, and what forward and backward make of them, for a GPT."""

from functools import partial

TOKEN_BYTES = 8  # int64
STATISTIC_BYTES = 4  # norms' mean and deviation, attention's sum of exponentials: fp32 always


def block_tensors(model):
    """(rows, entries per row) of a block's parameters, in the order of their definition."""
    h, f, mixed = model.hidden, model.ffn, model.heads * model.head_size
    norms = [(h, 1)] * 4
    return [*norms, (3 * mixed, h), (3 * mixed, 1), (h, mixed), (h, 1), (f, h), (f, 1), (h, f), (h, 1)]


def root_tensors(model):
    h = model.hidden
    return [(model.vocab, h), (model.positions, h), (h, 1), (h, 1)] + ([] if model.tied_head else [(model.vocab, h)])


class GptStep:
    """The ops of one step, in PyTorch's order; between groups of parameters they ask the scheme.

    T tokens, h hidden, f MLP width, a heads, V vocabulary, s sequence; in numbers, but for fp32 statistics:
    - A block's forward keeps 2 norms (each its output Th and 2 fp32 per token), q, k, v (3Th), attention's output (Th) and a fp32
      per token and head, the sum with the skipped path (Th), the MLP between, before and after GELU (2Tf), and its own output (Th):
      T (8h + 2f) numbers and 4T (4 + a) bytes. Each last product (Th) is there until it is added. Not kept: scores (attention is
      fused), masks (no dropout). The head keeps its norm, the loss the log-softmax (TV); the logits (TV) go when the loss is there.
    - A block's backward has the gradient of its output in hand (Th). A linear layer makes its input's gradient, its weight's, its
      bias's; then its output's gradient and the input that it saved go, and the weight's gradient is accumulated. GELU: Tf. A norm:
      Th and 2h; then the sum with the skipped path's gradient. Attention: dq, dk, dv (3Th), put into one tensor (3Th), made
      contiguous (3Th). The loss: twice TV. The embeddings: the sum over the batch (sh), and their weights' gradients.
    """

    def __init__(self, ledger, scheme, model, sequences, seq, number, gradient, sums_in_place):
        self.ledger, self.scheme, self.model, self.seq = ledger, scheme, model, seq
        self.number, self.gradient, self.sums_in_place = number, gradient, sums_in_place
        tokens = self.tokens = sequences * seq
        self.width, self.inner, self.logits = (tokens * size * number for size in (model.hidden, model.ffn, model.vocab))
        self.mixed = tokens * model.heads * model.head_size * number
        self.statistics, self.sums = tokens * 2 * STATISTIC_BYTES, tokens * model.heads * STATISTIC_BYTES
        ledger.held["inputs"] = 2 * tokens * TOKEN_BYTES

    def walk(self):
        """All ops of the step up to the optimizer's, moment by moment."""
        layers = self.model.layers
        parts = [("rest", self.ledger.op), ("forward embedding", self._forward_embedding)]
        parts += [(f"forward block {layer}", partial(self._forward_block, layer)) for layer in range(layers)]
        parts += [("forward head", self._forward_head), ("backward head", self._backward_head)]
        parts += [(f"backward block {layer}", partial(self._backward_block, layer)) for layer in reversed(range(layers))]
        for op, part in [*parts, ("backward embedding", self._backward_embedding)]:
            with self.ledger.moment(op):
                part()
        self.scheme.step_ends()

    # forward ----------------------------------------------------------------------------------------------

    def _keep(self, size, free=0):
        self.ledger.op(("activations", size), free=[("activations", free)])

    def _forward_embedding(self):
        self.scheme.forward_begins("root")
        self._keep(self.width)
        self._keep(self.width, free=self.width)  # the sum with the positions

    def _forward_block(self, layer):
        self.scheme.forward_begins(layer)
        self._keep(self.width + self.statistics)
        self._keep(3 * self.mixed)
        self._keep(self.mixed + self.sums)  # attention
        self._keep(self.width)
        self._keep(self.width, free=self.width)  # the sum with the skipped path
        self._keep(self.width + self.statistics)
        self._keep(self.inner)
        self._keep(self.inner)  # GELU
        self._keep(self.width)
        self._keep(self.width, free=self.width)
        self.scheme.forward_ends(layer)

    def _forward_head(self):
        self._keep(self.width + self.statistics)
        self._keep(self.logits)
        self.scheme.forward_ends("root")
        self._keep(self.logits, free=self.logits)  # log-softmax; then the logits go

    # backward ---------------------------------------------------------------------------------------------

    def _make(self, size, temporaries=0, activations=0):
        """A temporary of `size`; then others, and activations, are no longer needed."""
        self.ledger.op(("temporaries", size), free=[("temporaries", temporaries), ("activations", activations)])

    def _sum(self, size):
        """Two gradients of `size` become one."""
        self._make(0 if self.sums_in_place else size, temporaries=size if self.sums_in_place else 2 * size)

    def _weights(self, *counts):
        for count in counts:
            self.scheme.accumulate(count * self.gradient)

    def _linear(self, makes, weight, bias, *, temporaries=0, activations=0):
        self._make(makes)
        self._make((weight + bias) * self.gradient, temporaries, activations)
        self._weights(weight, bias)

    def _norm(self, *, skipped):
        """Its output's gradient is in hand; so is, where there is a skipped path, that path's, to be added."""
        h = self.model.hidden
        self._make(self.width + 2 * h * self.gradient, self.width, self.width + self.statistics)
        if skipped:
            self._sum(self.width)
        self._weights(h, h)

    def _backward_head(self):
        h, vocab = self.model.hidden, self.model.vocab
        self._make(self.logits)
        self._make(self.logits, temporaries=self.logits, activations=self.logits)
        self.scheme.backward_begins("root")
        self._make(self.width)
        self._make(vocab * h * self.gradient, self.logits, self.width)
        if not self.model.tied_head:  # else it waits for the embedding's
            self._weights(vocab * h)
        self._norm(skipped=False)

    def _backward_block(self, layer):
        h, f, width, mixed = self.model.hidden, self.model.ffn, self.width, self.mixed
        heads = self.model.heads * self.model.head_size
        self.scheme.backward_begins(layer)
        self._linear(self.inner, f * h, h, activations=self.inner)
        self._make(self.inner, self.inner, self.inner)  # GELU
        self._linear(width, f * h, f, temporaries=self.inner, activations=width)
        self._norm(skipped=True)
        self._linear(mixed, heads * h, h)
        self._make(3 * mixed, mixed, 4 * mixed + self.sums)  # attention
        self._make(3 * mixed, 3 * mixed)  # dq, dk, dv in one
        self._make(3 * mixed, 3 * mixed)  # contiguous
        self._linear(width, 3 * heads * h, 3 * heads, temporaries=3 * mixed, activations=width)
        self._norm(skipped=True)
        self.scheme.backward_ends(layer)

    def _backward_embedding(self):
        model = self.model
        row = self.seq * model.hidden * self.number
        self._make(row)
        self._make(model.positions * model.hidden * self.gradient, row)
        self._weights(model.positions * model.hidden)
        table = model.vocab * model.hidden * self.gradient
        self._make(table, self.width)
        if model.tied_head:  # the head's waited
            self._sum(table)
        self._weights(model.vocab * model.hidden)
        self.scheme.backward_ends("root")

"""A pipeline stage under tensor, sequence and context parallelism, as units: the embedding, each block, the head with its loss."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from realrun.parallel.block import ParallelBlock
from realrun.parallel.context import positions
from realrun.parallel.recompute import recompute
from realrun.parallel.sequence import SequenceColumnLinear, scatter_sequence
from realrun.parallel.tensor import ColumnLinear, VocabEmbedding, conjugates, vocab_cross_entropy


class Embedding(nn.Module):
    """Bytes and positions: tokens (batch, tokens of this cp rank) → (batch, the same, hidden), or a tp-th of them."""

    def __init__(self, stage, mesh, plan):
        super().__init__()
        self.tp, self.cp, self.plan = mesh["tp"], mesh["cp"], plan
        self.rows = VocabEmbedding.of(stage.embed, self.tp)
        self.position = nn.Embedding.from_pretrained(stage.position.weight.detach().clone(), freeze=False)

    def forward(self, tokens):
        where = positions(tokens.shape[1], self.cp, self.plan.cp_layout).to(tokens.device) if self.cp.size > 1 else slice(tokens.shape[1])
        at = self.position.weight[where]
        if not self.plan.sequence_parallel:
            return self.rows(tokens) + at
        # one rank's sum has the positions, and every rank's positions the whole gradient: nothing is left to be summed over tp
        at = conjugates(at, lambda x: x.clone() if self.tp.place == 0 else torch.zeros_like(x), lambda dy: dy)
        return scatter_sequence(self.rows.own_rows(tokens) + at, self.tp)

    def whole_on_tp(self):
        """See `ParallelBlock`."""
        return [self.position.weight]

    def partial_over_tp(self):
        """See `ParallelBlock`."""
        return []


class Head(nn.Module):
    """The last norm, the output matrix, and the mean loss of this rank's tokens in nats per byte."""

    def __init__(self, stage, mesh, plan):
        super().__init__()
        self.tp = mesh["tp"]
        self.norm = nn.LayerNorm(stage.norm.normalized_shape).to(stage.norm.weight)
        self.norm.load_state_dict(stage.norm.state_dict())
        self.column = (SequenceColumnLinear if plan.sequence_parallel else ColumnLinear).of(stage.head, self.tp)
        self.sequence_parallel = plan.sequence_parallel

    def forward(self, x, targets):
        logits = self.column(self.norm(x))
        if self.tp.size > 1:
            return vocab_cross_entropy(logits, targets, self.tp).mean()
        exact = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.flatten(0, -2).to(exact), targets.flatten())

    def whole_on_tp(self):
        """See `ParallelBlock`."""
        return [*self.norm.parameters()]

    def partial_over_tp(self):
        """See `ParallelBlock`."""
        return self.whole_on_tp() if self.sequence_parallel else []


class ParallelStage(nn.Module):
    """This rank's part of `stage`, a `realrun.model.Stage`, under `plan` on `mesh`.

    units: {name: module}, 'embedding', 'layer 3', 'head', named as in `simlab.instructions`; first_layer: the number of its first block.
    """

    def __init__(self, stage, first_layer, mesh, plan):
        super().__init__()
        self.is_first, self.is_last = stage.is_first, stage.is_last
        self.tp, self.plan = mesh["tp"], plan
        attention = {"ring": "ring", "all-to-all": "ulysses", "all-gather": "gathered"}[plan.cp_kind]
        options = {"sequence_parallel": plan.sequence_parallel, "attention": attention, "layout": plan.cp_layout}
        blocks = [ParallelBlock(block, mesh["tp"], mesh["cp"], **options) for block in stage.blocks]
        if plan.attention == "unfused":
            recompute(blocks, "selective" if plan.recompute == "selective" else "none", attention="unfused")
        self.units = {"embedding": Embedding(stage, mesh, plan)} if self.is_first else {}
        self.units |= {f"layer {first_layer + at}": block for at, block in enumerate(blocks)}
        self.units |= {"head": Head(stage, mesh, plan)} if self.is_last else {}
        self.held = nn.ModuleList(self.units.values())

    def forward(self, x, targets, between):
        """x: tokens, or what the stage before sent; the loss of the last stage, else hidden states.

        between: called with names of the units before and after; as a tensor's function it returns the tensor that goes from one to the
        other, and is told when the backward comes the other way.
        """
        before = None
        for name, unit in self.units.items():
            if before is not None:
                x = between(x, before, name)
            if name == "head":
                x = unit(x, targets)
            elif name == "embedding" or self.plan.recompute != "full":
                x = unit(x)
            else:
                x = checkpoint(unit, x, use_reentrant=True)  # the forward again, to its end, before any backward: as Megatron-LM does
            before = name
        return x

    def outgoing(self, x):
        """What is sent of `x`, hidden states or their gradient: a tp-th where all tp ranks have the whole."""
        return x if self.plan.sequence_parallel or self.tp.size == 1 else self.tp.own(x, -1).contiguous()

    def incoming(self, x):
        """The whole of which the stage before (or after) sent a tp-th."""
        return x if self.plan.sequence_parallel or self.tp.size == 1 else self.tp.all_gather(x, -1).wait()

    def message_shape(self, microbatch_size, seq):
        """Of what is sent."""
        hidden = next(block for name, block in self.units.items() if name.startswith("layer")).norm1.normalized_shape[0]
        tokens = seq // self.plan.cp
        if self.plan.sequence_parallel:
            return microbatch_size, tokens // self.tp.size, hidden
        return microbatch_size, tokens, hidden // self.tp.size


class Between(torch.autograd.Function):
    """The identity between two units, which tells when the forward and the backward pass it."""

    @staticmethod
    def forward(ctx, x, forwards, backwards):
        ctx.backwards = backwards
        forwards()
        return x.view_as(x)

    @staticmethod
    def backward(ctx, dy):
        ctx.backwards()
        return dy, None, None

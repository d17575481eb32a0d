"""A pipeline stage under tensor, sequence and context parallelism, as units: the embedding, each
block, and the head with its loss."""

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from realrun.comm.mesh import Mesh
from realrun.model.gpt import Stage
from realrun.model.split import split_layers
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.layers.context import positions
from realrun.parallel.layers.sequence import SequenceColumnLinear, scatter_sequence
from realrun.parallel.layers.tensor import (
    ColumnLinear,
    VocabEmbedding,
    conjugates,
    vocab_cross_entropy,
)
from realrun.parallel.recompute import recompute
from simlab.spec.plan import Plan


class Embedding(nn.Module):
    """Bytes and, of a GPT, positions: tokens (batch, tokens of this cp rank) become (batch, the same, hidden).
    With sequence parallelism a tp rank has a tp-th of these tokens."""

    def __init__(self, stage: Stage, mesh: Mesh, plan: Plan) -> None:
        super().__init__()
        self.tp, self.cp, self.plan = mesh["tp"], mesh["cp"], plan
        self.rows = VocabEmbedding.of(stage.embed, self.tp)
        self.position = deepcopy(stage.position)

    def forward(self, tokens: Tensor) -> Tensor:
        if self.position is None:
            if self.plan.sequence_parallel:
                return scatter_sequence(self.rows.own_rows(tokens), self.tp)
            return self.rows(tokens)
        where = (
            positions(tokens.shape[1], self.cp, self.plan.cp_layout).to(tokens.device)
            if self.cp.size > 1
            else slice(tokens.shape[1])
        )
        at = self.position.weight[where]
        if not self.plan.sequence_parallel:
            return self.rows(tokens) + at
        # one rank's sum has the positions, and every rank's positions the whole gradient: nothing
        # is left to be summed over tp
        at = conjugates(
            at, lambda x: x.clone() if self.tp.place == 0 else torch.zeros_like(x), lambda dy: dy
        )
        return scatter_sequence(self.rows.own_rows(tokens) + at, self.tp)

    def whole_on_tp(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return [] if self.position is None else [*self.position.parameters()]

    def partial_over_tp(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return []

    def own_experts(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return []


class Head(nn.Module):
    """The last norm, the output matrix, and the mean loss of this rank's tokens in nats per
    byte."""

    def __init__(self, stage: Stage, mesh: Mesh, plan: Plan) -> None:
        super().__init__()
        self.tp = mesh["tp"]
        self.norm = deepcopy(stage.norm)
        column = SequenceColumnLinear if plan.sequence_parallel else ColumnLinear
        self.column = column.of(stage.head, self.tp)
        self.sequence_parallel = plan.sequence_parallel

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.column(self.norm(x))
        if self.tp.size > 1:
            return vocab_cross_entropy(logits, targets, self.tp).mean()
        exact = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.flatten(0, -2).to(exact), targets.flatten())

    def whole_on_tp(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return [*self.norm.parameters()]

    def partial_over_tp(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return self.whole_on_tp() if self.sequence_parallel else []

    def own_experts(self) -> list[nn.Parameter]:
        """See `ParallelBlock`."""
        return []


Unit = Embedding | ParallelBlock | Head
Told = Callable[[Tensor, str, str], None]
"""Takes a tensor and the names of the units before and after it."""
ATTENTION_OF = {"ring": "ring", "all-to-all": "ulysses", "all-gather": "gathered"}
"""{`Plan.cp_kind`: the attention of `realrun.parallel.layers.context`}"""


class ParallelStage(nn.Module):
    """This rank's part of `stage`, a `realrun.model.gpt.Stage`, under `plan` on `mesh`.

    units: {name: module}. The names are 'embedding', 'layer 3' and 'head', as in
    `simlab.lowering.instructions`. first_layer: the number of its first block.
    split_layers: {name of a unit: its layers whose backward can be split}.
    """

    def __init__(self, stage: Stage, first_layer: int, mesh: Mesh, plan: Plan) -> None:
        super().__init__()
        self.is_first, self.is_last = stage.is_first, stage.is_last
        self.tp, self.plan, self.hidden = mesh["tp"], plan, stage.hidden
        blocks = self._blocks(stage, mesh)
        self.units: dict[str, Unit] = {}
        if self.is_first:
            self.units["embedding"] = Embedding(stage, mesh, plan)
        self.units |= {f"layer {first_layer + at}": block for at, block in enumerate(blocks)}
        if self.is_last:
            self.units["head"] = Head(stage, mesh, plan)
        self.held = nn.ModuleList(self.units.values())
        self.split_layers = {name: split_layers(unit) for name, unit in self.units.items()}

    def _blocks(self, stage: Stage, mesh: Mesh) -> list[ParallelBlock]:
        plan = self.plan
        blocks = [
            ParallelBlock(
                block,
                mesh["tp"],
                mesh["cp"],
                ep=mesh.get("ep"),
                sequence_parallel=plan.sequence_parallel,
                attention=ATTENTION_OF[plan.cp_kind],
                layout=plan.cp_layout,
            )
            for block in stage.layers()
        ]
        if plan.attention == "unfused":
            mode = "selective" if plan.recompute == "selective" else "none"
            recompute(blocks, mode, attention="unfused")
        return blocks

    def forward(self, x: Tensor, targets: Tensor, between: Told | None) -> Tensor:
        """The loss of the last stage, a scalar; of another stage its hidden states. x: tokens, or
        what the stage before sent.

        between: called with what goes from one unit to the next and the names of the two. From a hook
        on that tensor it learns when the backward comes the other way. None: nobody is told.
        """
        before = None
        for name, unit in self.units.items():
            if before is not None and between is not None:
                between(x, before, name)
            if name == "head":
                x = unit(x, targets)
            elif name == "embedding" or self.plan.recompute != "full":
                x = unit(x)
            else:
                # the forward again, to its end, before any backward: as Megatron-LM does
                x = checkpoint(unit, x, use_reentrant=True)
            before = name
        return x

    def outgoing(self, x: Tensor) -> Tensor:
        """What is sent of `x`, which is hidden states or their gradient: a tp-th of it where all tp
        ranks have the whole."""
        if self.plan.sequence_parallel or self.tp.size == 1:
            return x
        return self.tp.own(x, -1).contiguous()

    def incoming(self, x: Tensor) -> Tensor:
        """The whole tensor of which the stage before (or after) sent a tp-th."""
        if self.plan.sequence_parallel or self.tp.size == 1:
            return x
        return self.tp.all_gather(x, -1).wait()

    def message_shape(self, microbatch_size: int, seq: int) -> tuple[int, int, int]:
        """The shape of what is sent to another stage."""
        hidden = self.hidden
        tokens = seq // self.plan.cp
        if self.plan.sequence_parallel:
            return microbatch_size, tokens // self.tp.size, hidden
        return microbatch_size, tokens, hidden // self.tp.size

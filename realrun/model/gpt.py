"""A model of bytes, cut into pipeline stages: a GPT, or one with the layers of another model."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.model.experts import Experts
from realrun.model.layer import Layer, has_module, module_name, norm_of, norms_of
from realrun.model.scan import Scan
from realrun.model.sizes import VOCAB, Sizes, model_of
from realrun.model.split import SplitLinear
from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations
from simlab.spec.model import Model
from simlab.spec.stage_layers import layers_of_stages

EMBEDDING_SEED, HEAD_SEED, LAYER_SEED = 10_000, 10_001, 20_000


class Block(Layer):
    """A `Layer` with all of its parameters: without `model`, of a GPT (Radford et al. 2019, GPT-2)
    with so many hidden numbers and heads."""

    def __init__(
        self,
        hidden: int,
        heads: int,
        experts: Experts | None = None,
        model: Model | None = None,
    ) -> None:
        if model is None:
            model = Model(layers=1, hidden=hidden, heads=heads, vocab=VOCAB, positions=1)
        super().__init__(model)
        self.heads, self.kv_heads = model.heads, model.kv_heads
        for name, size in norms_of(model).items():
            self.add_module(name, norm_of(model, size))
        self.experts = None
        for its in layer_operations(model):
            if its.kind is OperationKind.SCAN:
                self.scan = Scan(model)
            elif its.kind is OperationKind.ROUTER:
                self.experts = experts
            elif has_module(its):
                outputs, biased = (
                    sum(n.numbers for n in its.makes),
                    len(its.weights) > len(its.makes),
                )
                product = SplitLinear(int(its.reads[0].numbers), int(outputs), bias=biased)
                self.add_module(module_name(its), product)


class Stage(nn.Module):
    """A contiguous part of the GPT. Its first weights are the same however many stages there are.

    The first stage embeds bytes: its input is int64 (batch, seq). Any other stage's input is
    (batch, seq, hidden). The last stage's output is the logits, (batch, seq, 256); any other
    stage's is (batch, seq, hidden).

    sizes: of the whole model, see `Sizes`. stage_layers: the number of layers of
    each stage; None: as `layer_range` divides them. A first stage without layers only embeds, and a
    last one without layers only computes logits. `InputError` where stage_layers does not fit the
    model.
    """

    def __init__(
        self, sizes: Sizes, stage: int, stages: int, stage_layers: Sequence[int] | None = None
    ) -> None:
        super().__init__()
        self.hidden = hidden = sizes["hidden"]
        self.model = model = model_of(sizes)
        first, last = layer_range(sizes["layers"], stage, stages, stage_layers)
        self.is_first, self.is_last = stage == 0, stage == stages - 1
        if self.is_first:
            torch.manual_seed(EMBEDDING_SEED)
            self.embed = nn.Embedding(VOCAB, hidden)
            self.position: nn.Embedding | None = None
            if model.positions:
                self.position = nn.Embedding(sizes["seq"], hidden)
        self.blocks = nn.Sequential(*[seeded_block(layer, sizes) for layer in range(first, last)])
        if self.is_last:
            torch.manual_seed(HEAD_SEED)
            self.norm = norm_of(model, hidden)
            self.head = SplitLinear(hidden, VOCAB, bias=False)

    def layers(self) -> list[Block]:
        """The blocks of this stage, in their order."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def forward(self, x: Tensor) -> Tensor:
        if self.is_first:
            tokens = x.shape[1]
            x = self.embed(x)
            if self.position is not None:
                x = x + self.position.weight[:tokens]
        x = self.blocks(x)
        return self.head(self.norm(x)) if self.is_last else x


def seeded_block(layer: int, sizes: Sizes) -> Block:
    """The `Block` of layer number `layer`, which has the same weights in any process."""
    torch.manual_seed(LAYER_SEED + layer)
    whole = model_of(sizes)
    model, experts = whole.of_kind(whole.layer_kinds[layer]), None
    if model.experts:
        parts = sizes.get("routed_parts", 1), sizes.get("routed_zigzag", 1)
        experts = Experts(model, sizes["capacity"], *parts)
    return Block(model.hidden, model.heads, experts, model)


def layer_range(
    layers: int, stage: int, stages: int, stage_layers: Sequence[int] | None = None
) -> tuple[int, int]:
    """(first, one past last) layer of `stage`. The stages are contiguous parts of all `layers`.

    stage_layers: the number of layers of each stage. None stands for the rule 'uneven' of
    `simlab.spec.stage_layers.layers_of_stages`. Raises `InputError` if the numbers do not add up.
    """
    counts = layers_of_stages("uneven" if stage_layers is None else stage_layers, layers, stages)
    return sum(counts[:stage]), sum(counts[: stage + 1])


def loss(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean cross-entropy in nats per byte, a scalar. Logits (..., 256) in 16 bits are taken in
    fp32; targets are int64 (...)."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return functional.cross_entropy(logits.reshape(-1, VOCAB), targets.reshape(-1))

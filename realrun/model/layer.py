"""A layer that runs: it does what the operations of its model say (`simlab.layer`), one after the
other, so that the layer that is simulated is the layer that is executed.

The matrices of queries, keys and values are one parameter, as those of a gate and its MLP are: of a GPT
one below the other; else group by group, the heads of queries that share keys and values and then
these, as Megatron-Core has them, so that tensor parallelism cuts whole groups. A layer may have a state
space in the stead of attention, or one part only. Left out: latent
attention, scores of a head's own, attention and MLP side by side, and dropout. A gate's function is
SiLU, another MLP's is GELU, and rotary embeddings have the base 10,000, whatever the model's.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.model.fused import RMSNorm, gated, rotary
from realrun.model.sizes import check_executed, of_copies
from simlab.layer.operation import Operation, OperationKind
from simlab.layer.units import layer_operations
from simlab.spec.model import Model

NORMS_OF_HEADS = "norm_of_q", "norm_of_k"
ENTERED = "layer input 1"
"""The tensor that enters a layer, as its operations name it."""


def products_of(model: Model) -> dict[str, Operation]:
    """{module: its product} of a layer of `model`, but for a router's and experts'."""
    return {module_name(its): its for its in layer_operations(model) if has_module(its)}


def has_module(operation: Operation) -> bool:
    """Whether it is a product with a module of its own in a layer, as a router and experts have not."""
    return (
        operation.is_product
        and operation.kind is not OperationKind.ROUTER
        and not of_copies(operation)
    )


def module_name(product: Operation) -> str:
    """The name of the module of a product, such as 'shared_up'."""
    return "out" if product.kind is OperationKind.OUTPUT else product.kind.replace(" ", "_")


def products(layer: "Layer", *, by_inputs: bool) -> dict[str, nn.Linear]:
    """{name: product} of those of `layer` whose outputs, or whose inputs, tensor parallelism cuts."""
    of = products_of(layer.model).items()
    names = [name for name, its in of if its.weights[0].by_columns == by_inputs]
    return {name: getattr(layer, name) for name in names}


def norm_of(model: Model, size: int) -> nn.Module:
    """A norm over so many numbers, of the kind that the model has; 0: one without a scale."""
    return nn.LayerNorm(size) if size and model.has_bias("norm") else RMSNorm(size)


def norms_of(model: Model) -> dict[str, int]:
    """{name: numbers of its scale} of the norms of a layer."""
    found: dict[str, int] = {}
    for operation in layer_operations(model):
        if operation.kind is OperationKind.NORM:
            sizes = [int(weight.rows) for weight in operation.weights] or [0] * len(NORMS_OF_HEADS)
            found |= zip(norm_names(operation), sizes)
    return found


class Step(NamedTuple):
    """What is done in one operation."""

    run: Callable[..., Tensor | tuple[Tensor, ...]]
    """(the layer, the operation, what it reads) → what it makes"""
    operation: Operation
    reads: tuple[str, ...]
    makes: tuple[str, ...]
    over: tuple[str, ...]
    """Tensors that nothing reads later."""


class Layer(nn.Module):
    """A layer of `model`, all of whose layers are alike. Its input and its output are (batch, tokens,
    hidden).

    A subclass makes the modules that the operations need: those of `norms_of` and of `products_of`, scan and
    experts. heads, kv_heads: how many this rank has. `InputError` for an operation that is not
    executed.
    """

    heads: int
    kv_heads: int
    scan: nn.Module
    up: nn.Linear
    experts: Any
    """What stands in place of `up` and `down` in a model with experts; None without."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.model = model
        self.steps = steps_of(model)
        self.pieces = {
            name: len(its.makes)
            for name, its in products_of(model).items()
            if its.joined == (its.makes[0].least > 0)  # else group by group, or of several widths
        }
        """{module: how many matrices, one below the other, its weight consists of}"""

    def forward(self, x: Tensor) -> Tensor:
        known = {ENTERED: x}
        for step in self.steps:
            made = step.run(self, step.operation, *[known[name] for name in step.reads])
            several = made if isinstance(made, tuple) else (made,)
            known.update(zip(step.makes, several))
            for name in step.over:
                del known[name]
        return known[self.steps[-1].makes[0]]

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Causal attention of each head, in the model's window. Queries are (batch, heads, tokens, head
        size), and so is the result; keys and values may have fewer heads."""
        tokens = q.shape[-2]
        slides = self.model.keys_met(tokens) < tokens
        mask = window_mask(self.model, tokens, q.device) if slides else None
        shared = q.shape[1] != k.shape[1]
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=not slides, enable_gqa=shared
        )

    def places(self, tokens: int) -> Tensor:
        """The positions in the sequence of this rank's tokens, int64 (tokens,)."""
        return torch.arange(tokens)


def steps_of(model: Model) -> tuple[Step, ...]:
    """The steps of a layer of `model`. What lies between a router and the sum of the experts' results
    is one step."""
    check_executed(model)
    executed: list[Step] = []
    made, newest = {ENTERED}, ENTERED
    for operation in layer_operations(model):
        names = tuple(tensor.name for tensor in operation.reads)
        # without a norm before it, a branch reads what entered
        reads = tuple(name if name in made else newest for name in names)
        makes = tuple(tensor.name for tensor in operation.makes)
        if operation.kind is OperationKind.PERMUTE:
            executed[-1] = executed[-1]._replace(makes=makes[-1:])  # of the router
        elif not of_copies(operation):
            executed.append(
                Step(FUNCTIONS.get(operation.kind, _product), operation, reads, makes, ())
            )
        made |= {*makes}
        newest = makes[0]
    last = {name: number for number, step in enumerate(executed) for name in step.reads}
    return tuple(
        step._replace(over=tuple({name for name in step.reads if last[name] == number}))
        for number, step in enumerate(executed)
    )


def window_mask(model: Model, tokens: int, device: torch.device) -> Tensor:
    """Which keys each query meets, (tokens, tokens): its own and those before it, in its window."""
    rows = torch.arange(tokens, device=device)
    before = rows.unsqueeze(-1) - rows
    met = before < model.window
    if not model.window_slides:
        met = (rows // model.window).unsqueeze(-1) == rows // model.window
    return met & (before >= 0)


# what operations do
# --------------------------------------------------------------------------------------------------


def norm_names(operation: Operation) -> tuple[str, ...]:
    """The names of the modules of a norm."""
    if len(operation.reads) > 1:
        return NORMS_OF_HEADS
    return (operation.name.replace(" behind ", "_behind").replace(" ", ""),)


def _norm(layer: Layer, operation: Operation, *inputs: Tensor) -> tuple[Tensor, ...]:
    norms = [layer.get_submodule(name) for name in norm_names(operation)]
    if len(inputs) > 1 and layer.model.qk_norm == "whole":
        return tuple(
            norm(x.transpose(1, 2).flatten(-2)).unflatten(-1, (x.shape[1], -1)).transpose(1, 2)
            for norm, x in zip(norms, inputs)
        )
    return tuple(norm(x) for norm, x in zip(norms, inputs))


def _product(layer: Layer, operation: Operation, x: Tensor) -> Tensor | tuple[Tensor, ...]:
    """A product, whose results lie group by group where they are of heads, those of a GPT one below the
    other, and else side by side."""
    made: Tensor = getattr(layer, module_name(operation))(x)
    makes = operation.makes
    if len(makes) == 1:
        return made  # of a part that is all of it the backward would make a copy
    if not makes[0].least:
        part = made.shape[-1] / sum(its.numbers for its in makes)
        return made.split([round(its.numbers * part) for its in makes], -1)
    if operation.joined:
        return (*made.unflatten(-1, (len(makes), layer.heads, -1)).permute(2, 0, 3, 1, 4),)
    groups = made.unflatten(-1, (layer.kv_heads, -1))
    widths = [int(its.numbers) // layer.model.kv_heads for its in makes]
    # as copies, for a part of the product would keep all of it
    parts = (part.clone() for part in groups.split(widths, -1))
    return tuple(
        part.unflatten(-1, (-1, int(its.least))).flatten(-3, -2).transpose(1, 2)
        for part, its in zip(parts, makes)
    )


def _rotary(layer: Layer, operation: Operation, *inputs: Tensor) -> tuple[Tensor, ...]:
    where = layer.places(inputs[0].shape[-2])
    turned = layer.model.rope_size or layer.model.head_size
    return tuple(rotary(x, where, turned) for x in inputs)


def _attention(layer: Layer, operation: Operation, *qkv: Tensor) -> Tensor:
    return layer.attend(*qkv).transpose(1, 2).flatten(-2)


def activation(*inputs: Tensor) -> Tensor:
    """What goes down of what came up: of a gate and the rest, or of one product."""
    return gated(*inputs) if len(inputs) > 1 else functional.gelu(inputs[0])


def _shared_down(
    layer: Layer, operation: Operation, x: Tensor, *other: Tensor
) -> Tensor | tuple[Tensor, ...]:
    return x + other[0] if other else _product(layer, operation, x)


FUNCTIONS: dict[OperationKind, Callable[..., Tensor | tuple[Tensor, ...]]] = {
    OperationKind.NORM: _norm,
    OperationKind.ROTARY: _rotary,
    OperationKind.ATTENTION: _attention,
    OperationKind.SCAN: lambda layer, operation, *made: layer.scan(*made),
    OperationKind.RESIDUAL: lambda layer, operation, x, branch: x + branch,
    OperationKind.ROUTER: lambda layer, operation, x: layer.experts(x),
    OperationKind.ACTIVATION: lambda layer, operation, *inputs: activation(*inputs),
    OperationKind.SHARED_DOWN: _shared_down,
}
"""{kind of operation: (layer, operation, what it reads) → what it makes}; all others are products."""

"""The MLP of a layer with experts: a router chooses a few small MLPs for each token (Shazeer et al.
2017, arXiv 1701.06538).

Each expert takes at most `capacity` tokens of a microbatch, in the order of the tokens. What is more
is dropped: the expert adds nothing to those tokens (Fedus et al. 2021, Switch Transformer, arXiv
2101.03961, section 2.2). So all experts' inputs have one shape, and all-to-alls exchange equal
parts, whatever the router chooses. Left out: a loss that balances experts, noise in the router, and
a dispatch without capacity, whose sizes ranks would have to tell each other first.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from realrun.model.layer import activation
from realrun.model.split import SplitLinear
from simlab.lowering.context import context_chunks
from simlab.spec.model import Model


class Expert(nn.Module):
    """One of a layer's MLPs. Inputs and outputs are (..., hidden)."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        self.parts = 1 + model.gated_mlp
        hidden, width, bias = model.hidden, model.expert_width, model.has_bias("mlp")
        self.up = SplitLinear(hidden, self.parts * width, bias=bias)
        self.down = SplitLinear(width, hidden, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(activation(*self.up(x).chunk(self.parts, -1)))


class Routes(NamedTuple):
    """Which tokens go to which expert. A slot is a place among all experts' inputs: `capacity` times
    the expert's number, plus the place there."""

    token: Tensor
    """The token in each slot, (slots,), int64; the number of tokens where there is none."""
    slot: Tensor
    """The slot of each token's copies, (tokens, chosen), int64; the number of slots where a copy is
    dropped."""
    gate: Tensor
    """The weight of each copy's result in the token's output, (tokens, chosen)."""

    def dispatched(self, x: Tensor) -> Tensor:
        """The slots' tokens, (slots, hidden), of `x`, (tokens, hidden). Slots without one are
        zero."""
        return _with_zero(x)[self.token]

    def combined(self, results: Tensor) -> Tensor:
        """The weighted sum of the results of each token's copies, (tokens, hidden), of all
        `results`, (slots, hidden)."""
        return (_with_zero(results)[self.slot] * self.gate.unsqueeze(-1)).sum(1)


def _with_zero(rows: Tensor) -> Tensor:
    """`rows` and one more of zeros."""
    return functional.pad(rows, (0, 0, 0, 1))


def routes(scores: Tensor, chosen: int, capacity: int) -> Routes:
    """The `Routes` of tokens with these scores, (tokens, experts): each goes to the `chosen` experts
    of its highest scores, weighted by the softmax of those (Jiang et al. 2024, Mixtral, arXiv
    2401.04088, section 2.1)."""
    tokens, experts = scores.shape
    best, expert = scores.topk(chosen, -1)
    copies = functional.one_hot(expert.flatten(), experts)
    place = (copies.cumsum(0) * copies).sum(-1) - 1
    slots = experts * capacity
    slot = torch.where(place < capacity, expert.flatten() * capacity + place, slots)
    token = slot.new_full((slots + 1,), tokens)
    token[slot] = torch.arange(tokens * chosen, device=slot.device) // chosen
    return Routes(token[:-1], slot.view(tokens, chosen), best.softmax(-1))


class Experts(nn.Module):
    """A router and all its experts. Input and output are (..., hidden).

    model: says how many experts there are, how many compute each token, and how wide they are.
    experts: {number as text: `Expert`}. capacity: the most tokens of a microbatch that one of them
    takes. parts: into how many parts a sequence is cut, each
    of which is routed by itself, with a `capacity` of its own, as context-parallel ranks do, and
    tensor-parallel ones that have experts of their own. zigzag: how many context-parallel ranks have
    their tokens in zigzag; 1: parts are next to each other.
    """

    def __init__(self, model: Model, capacity: int, parts: int = 1, zigzag: int = 1) -> None:
        super().__init__()
        self.model, self.chosen = model, model.experts_per_token
        self.capacity, self.parts, self.zigzag = capacity, parts, zigzag
        bias = model.has_bias("router")
        self.router = SplitLinear(model.hidden, model.experts, bias=bias)
        numbers = range(model.experts)
        self.experts = nn.ModuleDict({str(number): Expert(model) for number in numbers})

    def forward(self, x: Tensor) -> Tensor:
        if self.zigzag == 1:
            return self._in_parts(x)
        chunks = [n for rank in range(self.zigzag) for n in context_chunks(rank, self.zigzag)]
        tokens = torch.arange(x.shape[-2], device=x.device).view(len(chunks), -1)
        order = tokens[chunks].flatten()
        return self._in_parts(x[..., order, :])[..., order.argsort(), :]

    def _in_parts(self, x: Tensor) -> Tensor:
        """The output of tokens in the order of the parts."""
        return torch.cat([self._routed(part) for part in x.chunk(self.parts, -2)], -2)

    def _routed(self, x: Tensor) -> Tensor:
        """The output of tokens that are routed together."""
        tokens = x.flatten(0, -2)
        ways = routes(self.router(tokens), self.chosen, self.capacity)
        copies = ways.dispatched(tokens).unflatten(0, (-1, self.capacity))
        return ways.combined(self.results(copies).flatten(0, 1)).view_as(x)

    def results(self, copies: Tensor) -> Tensor:
        """What the experts make of their inputs, (experts, capacity, hidden), in the same shape."""
        return torch.stack([expert(its) for expert, its in zip(self.experts.values(), copies)])

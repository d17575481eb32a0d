"""A model of Llama's form whose fused kernels are an op each, as on a GPU: what torch's memory
tracker reads of it is what the walk of `simlab.memory` is held against.

Only what a kernel saves for its backward is written down here; matrices, sums, the order of the
backward and what parallelism does with parameters are torch's own. Numbers mean nothing.
"""

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class _Norm(torch.autograd.Function):
    """RMSNorm saves its input, and a number of each token (`torch.ops.aten._fused_rms_norm`)."""

    @staticmethod
    def forward(context, x, weight):
        context.save_for_backward(x, weight, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(context, gradient):
        x, weight, _ = context.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight)


class _Rotary(torch.autograd.Function):
    """Rotary embedding turns queries and keys and saves nothing of their size."""

    @staticmethod
    def forward(context, q, k):
        return torch.empty_like(q), torch.empty_like(k)

    @staticmethod
    def backward(context, q, k):
        return torch.empty_like(q), torch.empty_like(k)


class _Attention(torch.autograd.Function):
    """Flash attention saves its operands, its result and the logarithm of each row's sum (Dao et
    al. 2022)."""

    @staticmethod
    def forward(context, q, k, v):
        result = torch.empty_like(q)
        context.save_for_backward(q, k, v, result, q.new_empty(q.shape[:-1], dtype=torch.float32))
        return result

    @staticmethod
    def backward(context, gradient):
        return tuple(torch.empty_like(its) for its in context.saved_tensors[:3])


class _Swiglu(torch.autograd.Function):
    """silu(gate) * up saves both operands."""

    @staticmethod
    def forward(context, gate, up):
        context.save_for_backward(gate, up)
        return torch.empty_like(gate)

    @staticmethod
    def backward(context, gradient):
        return tuple(torch.empty_like(its) for its in context.saved_tensors)


class Norm(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden))

    def forward(self, x):
        return _Norm.apply(x, self.weight)


class Mlp(nn.Module):
    def __init__(self, hidden, ffn):
        super().__init__()
        self.gate, self.up = (nn.Linear(hidden, ffn, bias=False) for _ in range(2))
        self.down = nn.Linear(ffn, hidden, bias=False)

    def forward(self, x):
        return self.down(_Swiglu.apply(self.gate(x), self.up(x)))


class Experts(nn.Module):
    """Each token is copied for each of its experts, which get equally many; their results are
    summed. The router's choice is not followed."""

    def __init__(self, hidden, ffn, experts, each):
        super().__init__()
        self.experts, self.each = experts, each
        self.router = nn.Linear(hidden, experts, bias=False)
        self.gate, self.up = (nn.Parameter(torch.zeros(experts, hidden, ffn)) for _ in range(2))
        self.down = nn.Parameter(torch.zeros(experts, ffn, hidden))

    def forward(self, x):
        tokens = x.flatten(0, 1)
        chosen = self.router(tokens)
        copies = tokens[:, None].expand(-1, self.each, -1)
        routed = copies.reshape(self.experts, -1, tokens.shape[1])
        inner = _Swiglu.apply(torch.bmm(routed, self.gate), torch.bmm(routed, self.up))
        result = torch.bmm(inner, self.down).view(len(tokens), self.each, -1).sum(1)
        return (result + 0 * chosen[:, :1]).view_as(x)


class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        hidden, size = model.hidden, model.head_size
        self.size = size
        self.norm1, self.norm2 = Norm(hidden), Norm(hidden)
        self.q = nn.Linear(hidden, model.heads * size, bias=False)
        self.k, self.v = (nn.Linear(hidden, model.kv_heads * size, bias=False) for _ in range(2))
        self.out = nn.Linear(model.heads * size, hidden, bias=False)
        self.mlp = (
            Experts(hidden, model.ffn, model.experts, model.experts_per_token)
            if model.experts
            else Mlp(hidden, model.ffn)
        )

    def forward(self, x):
        normed = self.norm1(x)
        q, k, v = (its(normed).unflatten(-1, (-1, self.size)) for its in (self.q, self.k, self.v))
        x = x + self.out(_Attention.apply(*_Rotary.apply(q, k), v).flatten(-2))
        return x + self.mlp(self.norm2(x))


class Llama(nn.Module):
    """Of a `simlab.Model`. Its input is int64 (batch, seq), its output (batch, seq, vocab).

    recompute: whether a layer keeps its input only, and makes the rest again in its backward.
    """

    def __init__(self, model, *, recompute=False):
        super().__init__()
        self.embed = nn.Embedding(model.vocab, model.hidden)
        self.recompute = recompute
        self.blocks = nn.ModuleList(Block(model) for _ in range(model.layers))
        self.norm = Norm(model.hidden)
        self.head = nn.Linear(model.hidden, model.vocab, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        return self.head(self.norm(x))

"""The ops of a layer of nanotron's form, counted with torch's dispatcher on a stand-in of our own,
and those that the weights of a GPT layer add to its backward."""

import math

import pytest

from simlab.lowering.kernels.layer import NANOTRON_OPS, RUNTIME_OPS

torch = pytest.importorskip("torch")
F = torch.nn.functional
SEQ, BATCH, HIDDEN, HEADS, HEAD, FFN = 16, 2, 32, 4, 8, 64


def counted(function, without=()):
    """(how many ops the dispatcher sees while `function` runs, its result)"""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Count(TorchDispatchMode):
        ops = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.ops += func.overloadpacket.__name__ not in without
            return func(*args, **(kwargs or {}))

    with Count() as count:
        result = function()
    return count.ops, result


def function(forward, backward):
    """An autograd function of these two."""
    methods = {"forward": staticmethod(forward), "backward": staticmethod(backward)}
    return type("Its", (torch.autograd.Function,), methods).apply


def flat(x):
    return x.view(-1, x.shape[-1])


def parts(x, rank, ranks):
    """What comes before a rank's part of the rows, that part, and what comes after."""
    own = x.shape[0] // ranks
    return torch.split(x, [own * rank, own, own * (ranks - rank - 1)], dim=0)


def norm():
    """One kernel (here `zero_`) that keeps its input and a number for each token."""

    def forward(ctx, x, weight):
        rows = x.reshape(-1, x.shape[-1])
        result, roots = torch.empty_like(rows), torch.empty(rows.shape[0])
        result.zero_()
        ctx.save_for_backward(rows, weight, roots)
        ctx.shape = x.shape
        return result.reshape(x.shape)

    def backward(ctx, grad):
        rows, weight, _ = ctx.saved_tensors
        grad = grad.reshape(-1, grad.shape[-1])
        made, partial = torch.empty_like(rows), torch.empty((132, *weight.shape))
        made.zero_()
        of_weight = partial.sum(0).to(weight.dtype) if ctx.needs_input_grad[1] else None
        return made.reshape(ctx.shape), of_weight

    return function(forward, backward)


def column(rank, ranks):
    """The rank's own rows beside the gather, then those before and after them."""

    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        ctx.shape = x.shape
        if ranks == 1:
            return F.linear(x, weight)
        own, *between, width = x.shape
        gathered = torch.empty(own * ranks, *between, width)
        result = torch.empty(own * ranks, *between, weight.shape[0])
        before, same, after = parts(result, rank, ranks)
        rows = own * math.prod(between)
        torch.mm(x.view(rows, width), weight.t(), out=same.view(rows, -1))
        torch.mm(flat(gathered[: own * rank]), weight.t(), out=flat(before))
        torch.mm(flat(gathered[own * (rank + 1) :]), weight.t(), out=flat(after))
        return result

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if ranks > 1:
            x = torch.empty(x.shape[0] * ranks, *x.shape[1:])  # gathered again
        made = grad.matmul(weight)
        grad, x = flat(grad.contiguous()), flat(x)
        if ranks > 1:
            made = torch.empty(ctx.shape)  # scattered
        return made, grad.t().matmul(x) if ctx.needs_input_grad[1] else None

    return function(forward, backward)


def row(rank, ranks):
    """A product whose sum is scattered; backward as `column`'s forward, then the weight's."""

    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        result = F.linear(x, weight)
        if ranks == 1:
            return result
        result = result.contiguous()
        return torch.empty(result.shape[0] // ranks, *result.shape[1:])

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        if ranks == 1:
            made, whole = grad.matmul(weight), grad
        else:
            own, *rest = grad.shape
            whole, grad = torch.empty(own * ranks, *rest), grad.contiguous()
            made = torch.empty(own * ranks, *rest[:-1], weight.shape[1])
            before, same, after = parts(made, rank, ranks)
            torch.mm(flat(grad), weight, out=flat(same))
            first, _, last = parts(whole, rank, ranks)
            torch.mm(flat(first), weight, out=flat(before))
            torch.mm(flat(last), weight, out=flat(after))
        x = flat(x.contiguous())
        return made, flat(whole).t().matmul(x) if ctx.needs_input_grad[1] else None

    return function(forward, backward)


def rotary_of_queries():
    def forward(ctx, q):
        return torch.empty_like(q).zero_()

    return function(forward, forward)


def rotary_of_keys():
    """In place, on the keys of keys and values."""

    def forward(ctx, kv):
        kv[:, :, 0].zero_()
        ctx.mark_dirty(kv)
        return kv

    def backward(ctx, grad):
        grad[:, :, 0].zero_()
        return grad

    return function(forward, backward)


def attention():
    def forward(ctx, q, k, v, lengths):
        result, sums = torch.empty_like(q), torch.empty(q.shape[0])
        torch.empty(2)  # the random state
        result.zero_()
        ctx.save_for_backward(q, k, v, result, sums, lengths)
        return result

    def backward(ctx, grad):
        q, k, v, *_ = ctx.saved_tensors
        grads = [torch.empty_like(x) for x in (q, k, v)]
        torch.empty(q.shape), torch.empty(q.shape[0])
        for its in grads:
            its.zero_()
        return *grads, None

    return function(forward, backward)


def lengths(mask):
    """The running sum of the sequences' lengths, made in every layer, for queries and for keys."""
    found = torch.zeros(BATCH + 1, dtype=torch.int32)
    sums = mask.sum(-1, dtype=torch.int32)
    torch.cumsum(sums, dim=0, dtype=torch.int32, out=found[1:])
    return found


def layer(x, weights, rank, ranks):
    norm_1, norm_2, qkv, output, up, down = weights
    heads, mask = HEADS // ranks, torch.ones(BATCH, SEQ, dtype=torch.bool)

    def of():
        its = column(rank, ranks)(norm()(x, norm_1), qkv)
        ordered = its.view(SEQ, BATCH, 3, heads, HEAD).permute(2, 1, 0, 3, 4).contiguous()
        q, k, v = ordered
        kv = torch.cat([k.unsqueeze(0), v.unsqueeze(0)], dim=0)
        kv = kv.permute(1, 2, 0, 3, 4).contiguous()
        q, kv = rotary_of_queries()(q), rotary_of_keys()(kv)
        k, v = torch.split(kv, 1, dim=2)
        q = q.view(BATCH * SEQ, heads, HEAD)
        k, v = (its.reshape(BATCH * SEQ, heads, HEAD) for its in (k, v))
        of_queries, _ = lengths(mask), lengths(mask)
        found = attention()(q, k, v, of_queries)
        found = found.contiguous().view(BATCH, SEQ, heads * HEAD).transpose(0, 1)
        y = row(rank, ranks)(found, output) + x
        gate, its = torch.split(column(rank, ranks)(norm()(y, norm_2), up), FFN // ranks, dim=-1)
        return row(rank, ranks)(F.silu(gate) * its, down) + y

    return of


def accumulated(weights):
    """Each gradient added to its fp32 sum, of which the optimizer is shown its part."""
    sums = [torch.zeros(its.shape) for its in weights]

    def of():
        for its, total in zip(weights, sums):
            total.add_(its.grad)
            its.grad = None
            total.view(-1)[0:3]

    return of


@pytest.mark.parametrize("ranks", [1, 4])
def test_a_layer_of_nanotrons_form_has_so_many_ops(ranks):
    rank = ranks // 2 if ranks > 1 else 0
    shapes = [
        (HIDDEN,), (HIDDEN,), (3 * HIDDEN // ranks, HIDDEN), (HIDDEN, HIDDEN // ranks),
        (2 * FFN // ranks, HIDDEN), (HIDDEN, FFN // ranks),
    ]  # fmt: skip
    x = torch.zeros(SEQ // ranks, BATCH, HIDDEN, requires_grad=True)

    def ops(learning):
        weights = [torch.zeros(its, requires_grad=learning) for its in shapes]
        forward, y = counted(layer(x, weights, rank, ranks))
        backward, _ = counted(lambda: y.backward(torch.ones_like(y)))
        return forward, backward, weights

    forward, backward, weights = ops(learning=True)
    _, of_inputs, _ = ops(learning=False)
    added, _ = counted(accumulated(weights))
    assert (forward, of_inputs, backward - of_inputs + added) == NANOTRON_OPS[ranks > 1]


def test_the_weights_of_a_gpt_layer_add_so_many_ops_to_its_backward():
    """Products, sums of biases and additions to what is there; views launch nothing."""
    views = {"detach", "t", "view"}
    nn = torch.nn
    parts = [
        nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, 3 * HIDDEN), nn.Linear(3 * HIDDEN, HIDDEN),
        nn.LayerNorm(HIDDEN), nn.Linear(HIDDEN, FFN), nn.GELU(), nn.Linear(FFN, HIDDEN),
    ]  # fmt: skip
    its = nn.Sequential(*parts)
    x = torch.zeros(SEQ, HIDDEN, requires_grad=True)

    def backward(learning):
        its.requires_grad_(learning)
        for parameter in its.parameters():
            parameter.grad = torch.zeros_like(parameter) if learning else None
        y = its(x)
        return counted(lambda: y.sum().backward(), views)[0]

    backward(learning=False)  # x has a gradient from here on
    added = backward(learning=True) - backward(learning=False)
    assert {added} == {of_weights for _, _, of_weights in RUNTIME_OPS.values()}

"""The ops of a layer of nanotron's form and of a layer's experts, counted with torch's dispatcher
on stand-ins of our own, and those that the weights of a GPT layer add to its backward."""

import math
from dataclasses import replace

import pytest

from simlab.cost.stage_times import HOST_COLLECTIVE_OPS, StageCost
from simlab.libraries.nanotron import NANOTRON
from simlab.lowering.kernels.host import (
    EXPERT_OPS,
    RECORDED_EXPERT_OPS,
    RUNTIME_OPS,
    SHARED_EXPERT_OPS,
    runtime_ops,
)
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan

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
    assert (forward, of_inputs, backward - of_inputs + added) == NANOTRON.layer_ops[ranks > 1]


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


# experts
# ------------------------------------------------------------------------------------------------

CHOSEN = 2
LOSS_SCALE = torch.ones(())
IN_DENSE_LAYERS = {"empty_like"}
"""What stands for products and activation here: a dense layer has as many."""


def gating():
    """The product with the router's weight, in fp32 of numbers in 16 bits."""

    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        logits = torch.mm(flat(x).float(), weight.float().t())
        return logits.view(*x.shape[:-1], -1)

    def backward(ctx, grad):
        x, weight = ctx.saved_tensors
        rows, grad = flat(x), flat(grad)
        made = torch.mm(grad, weight.float()).to(x.dtype)
        learns = ctx.needs_input_grad[1]
        of_weight = torch.mm(grad.t(), rows.float()).to(weight.dtype) if learns else None
        return made.view(x.shape), of_weight

    return function(forward, backward)


def with_loss():
    """The probabilities as they are; their backward is also that of the loss beside them."""

    def forward(ctx, probabilities, loss):
        ctx.save_for_backward(loss)
        return probabilities

    def backward(ctx, grad):
        (loss,) = ctx.saved_tensors
        return grad, torch.ones_like(loss) * LOSS_SCALE

    return function(forward, backward)


def all_to_all(received, ranks):
    """So many rows for those that are sent, without the collective itself."""

    def forward(ctx, x):
        ctx.rows = x.shape[0]
        return x if ranks == 1 else x.contiguous().new_empty((received, *x.shape[1:]))

    def backward(ctx, grad):
        if ranks == 1:
            return grad.view_as(grad)
        return grad.contiguous().new_empty((ctx.rows, *grad.shape[1:]))

    return function(forward, backward)


def experts():
    def forward(ctx, x, probabilities):
        ctx.save_for_backward(x, probabilities)
        return torch.empty_like(x)

    def backward(ctx, grad):
        return tuple(torch.empty_like(its) for its in ctx.saved_tensors)

    return function(forward, backward)


def router(x, weight, losses):
    """(the probability of each expert for each token, which experts are chosen)"""
    logits = gating()(x, weight).view(-1, weight.shape[0])
    largest, indices = torch.topk(logits, CHOSEN, dim=1)
    probabilities = torch.softmax(largest, dim=-1, dtype=torch.float32)
    probabilities = torch.zeros_like(logits).scatter(1, indices, probabilities)
    chosen = marked(logits, indices)

    scores = torch.softmax(logits, dim=-1, dtype=torch.float32)
    counts = marked(logits, torch.topk(scores, CHOSEN, dim=1)[1]).sum(dim=0)
    counts = all_to_all(len(counts), 1)(counts)  # summed over one rank
    loss = (scores.sum(dim=0) * counts).sum() * 1e-2
    losses[0] += (loss / 1e-2).detach()
    return with_loss()(probabilities, loss), chosen


def marked(logits, indices):
    return torch.zeros_like(logits).int().scatter(1, indices, 1).bool()


def to_host(counts):
    """A copy to the host's memory, and a note of its stream (here `detach`)."""
    counts.detach()
    return counts.clone()


def chunk_sizes(chosen, ranks):
    """The rows that come from each rank (a row) for each of the experts of this one (a column)."""
    counts = chosen.sum(dim=0).long()
    own = len(counts) // ranks
    if ranks == 1:
        to_host(counts)
        return to_host(counts.reshape(-1).view(-1, own))
    to_ranks = counts.reshape(ranks, own).sum(dim=1)
    gathered = torch.cat([counts] * ranks)  # for what is gathered
    sizes = gathered.reshape(ranks, 1, -1).transpose(0, 1)[:, :, 0:own].contiguous()
    from_ranks = sizes.sum(dim=2)
    for copied in (to_ranks, from_ranks[0], from_ranks.sum(dim=1)):
        to_host(copied).numpy()
    to_host(sizes.sum(dim=(0, 1)))
    return to_host(sizes.view(-1, own))


def in_order(x, sizes, order):
    chunks = torch.split(x, sizes, dim=0)
    return torch.cat([chunks[i] for i in order], dim=0)


def layer_of_experts(x, weight, ranks):
    losses = torch.zeros(1)

    def of():
        probabilities, chosen = router(x, weight, losses)
        rows = flat(x)
        sizes = chunk_sizes(chosen, ranks)
        by_expert = chosen.bool().T.contiguous().reshape(-1)
        places = by_expert.argsort(descending=True, stable=True)[: len(rows) * CHOSEN]
        tokens = places % len(rows)
        weights = probabilities.T.contiguous().reshape(-1)[places]
        routed = rows.index_select(0, tokens)

        there, back = sizes.ravel().tolist(), sizes.T.ravel().tolist()
        order = sorted(range(len(there)), key=lambda chunk: chunk % sizes.shape[1])
        routed, weights = (all_to_all(sum(there), ranks)(its) for its in (routed, weights))
        routed, weights = (in_order(its, there, order) for its in (routed, weights))
        made = experts()(routed, weights.unsqueeze(-1))
        made = in_order(made, back, sorted(range(len(back)), key=order.__getitem__))
        made = all_to_all(len(tokens), ranks)(made)

        result = torch.zeros(rows.shape, dtype=made.dtype)
        result.scatter_add_(0, tokens.unsqueeze(1).expand(-1, HIDDEN), made)
        return result.view(x.shape)

    return of


@pytest.mark.parametrize("number", [4, 8])
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_layer_of_experts_has_so_many_ops_more(ranks, number):
    """Without the slices of the backward, one for each chunk. The sizes are gathered and the
    probabilities sent beside the tokens, which is two collectives more, and one in the backward."""
    places = torch.arange(SEQ * BATCH) % number
    one_hot = torch.eye(number, HIDDEN, dtype=torch.bfloat16)
    x = (one_hot[places] + one_hot[places - 1]).view(SEQ, BATCH, HIDDEN).requires_grad_()

    def ops(learning):
        weight = one_hot.clone().requires_grad_(learning)
        forward, y = counted(layer_of_experts(x, weight, ranks), IN_DENSE_LAYERS)
        grad, x.grad = torch.ones_like(y), None
        backward, _ = counted(lambda: y.backward(grad), {*IN_DENSE_LAYERS, "slice"})
        return forward, backward - 1, weight  # a layer hands x's gradient on and does not keep it

    forward, backward, weight = ops(learning=True)
    _, of_inputs, _ = ops(learning=False)
    total = torch.zeros(weight.shape)
    added, _ = counted(lambda: total.add_(weight.grad.data))
    calls = HOST_COLLECTIVE_OPS * (ranks > 1)
    found = forward + 2 * calls, of_inputs + calls, backward - of_inputs + added
    assert found == EXPERT_OPS[ranks > 1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_graph_of_the_router_has_so_many_of_them(ranks, monkeypatch):
    """The router's, the sizes' without copies to the host, and the collective that gathers these."""
    monkeypatch.setitem(globals(), "to_host", lambda counts: counts)
    x = torch.zeros(SEQ, BATCH, HIDDEN, dtype=torch.bfloat16, requires_grad=True)
    weight, losses = torch.zeros(4, HIDDEN, dtype=torch.bfloat16), torch.zeros(1)
    forward, (probabilities, chosen) = counted(lambda: router(x, weight, losses), IN_DENSE_LAYERS)
    sizes, _ = counted(lambda: chunk_sizes(chosen, ranks))
    grad = torch.ones_like(probabilities)
    backward, _ = counted(lambda: probabilities.backward(grad), IN_DENSE_LAYERS)
    collective = HOST_COLLECTIVE_OPS * (ranks > 1)
    of_weight = EXPERT_OPS[ranks > 1][2]  # all of them are the router's
    found = forward + sizes + collective, backward, of_weight
    assert found == RECORDED_EXPERT_OPS[ranks > 1]


def test_shared_experts_have_so_many_ops_more():
    """Their MLP, the sum with the routed experts' result, and that of the input's two gradients."""
    up = torch.nn.Linear(HIDDEN, FFN, bias=False)
    down = torch.nn.Linear(FFN, HIDDEN, bias=False)
    x, routed = torch.zeros(SEQ, BATCH, HIDDEN, requires_grad=True), torch.zeros(HIDDEN)

    def ops(learning):
        x.grad = torch.zeros_like(x)
        for weight in (up.weight, down.weight):
            weight.requires_grad_(learning)
            weight.grad = torch.zeros_like(weight) if learning else None
        forward, y = counted(lambda: routed + down(F.gelu(up(x))))
        grad = torch.ones_like(y)
        return forward, counted(lambda: y.backward(grad))[0]

    forward, backward = ops(learning=True)
    _, of_inputs = ops(learning=False)
    assert (forward, of_inputs, backward - of_inputs) == SHARED_EXPERT_OPS


@pytest.mark.parametrize(("precision", "forward", "of_inputs", "of_weights"), [
    ("bf16", 2 * 15, 2 * 15, 2 * 15), ("fp8", 2 * 15 + 2 * 16, 2 * 15 + 2 * 16, 2 * 15),
])  # fmt: skip
def test_each_expert_of_a_rank_is_launched_by_itself(precision, forward, of_inputs, of_weights):
    """As Transformer Engine's two GroupedLinear of 16 experts: a product of each, and in 8 bits a cast of
    each one's input and of its result's gradient. The host then needs so much longer."""
    model, cluster = load_model("qwen3-30b-a3b"), load_cluster("dgx-h100")
    plan = Plan(dp=8, ep=8, precision=precision, dispatcher="once-a-node")
    alone = replace(model, experts=8)  # one on each rank
    found, one = (runtime_ops(its, plan) for its in (model, alone))
    casts = 2 * (precision == "fp8")
    more = [a - b for a, b in zip(found, one)]
    assert more == [forward - casts, of_inputs - casts, of_weights]
    cost = StageCost(model, plan, replace(cluster, host_op_s=1e-3))  # the host decides
    fewer = StageCost(alone, plan, replace(cluster, host_op_s=1e-3))
    parts = [its.unit_parts("layer", "F") for its in (cost, fewer)]
    assert parts[0].total - parts[1].total == pytest.approx(1e-3 * more[0], rel=1e-9)
    torchs = replace(plan, library="torch", precision="bf16", dispatcher="all-to-all")
    assert runtime_ops(model, torchs) == runtime_ops(alone, torchs)

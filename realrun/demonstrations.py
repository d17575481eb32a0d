"""Small experiments that need several ranks and are no plan: what a `Pool`'s processes can be asked for by name, see `Pool.demonstrate`.

Each function gets this rank's `Mesh` of the plan that was given, and plain values; so is what it answers. All ranks call it together.
Lessons show the text of these functions (`realrun.lesson.source`): they are short, and naive where the point is what the naive form does.
"""

import time
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import combinations, product

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from realrun.channels import Channels
from realrun.fsdp_trace import Fsdp2Recorder
from realrun.machine_links import collective_s, message_s
from realrun.model import Block, Stage, loss
from realrun.parallel.block import ParallelBlock
from realrun.parallel.clipping import clip
from realrun.parallel.collectives import all_reduce, run_rounds
from realrun.parallel.data import DataParallel, average_gradients
from realrun.parallel.precision import LossScaler, MasterWeights
from realrun.parallel.tensor import (
    ColumnLinear,
    GatheredLinear,
    RowLinear,
    VocabEmbedding,
    gathered_cross_entropy,
    own_rows,
    reduce_from,
    vocab_cross_entropy,
)
from realrun.text import batch
from realrun.torch_engine.model import TorchStage
from realrun.torch_engine.traffic import Counted
from simlab.collectives import Transfer, all_reduce_rounds

BUDGET_S = 0.5  # for a collective that is timed over and over

# collectives ------------------------------------------------------------------------------------------------


@contextmanager
def links(mesh, pace=None):
    """`Channels` between all ranks, connected. pace: (seconds that a message takes before its first byte, bytes per second) or None."""
    groups = {direction: dist.new_group() for direction in (1, -1)}
    channels = Channels(mesh.rank, torch.device("cpu"), groups, pace=pace)
    channels.connect(list(combinations(range(dist.get_world_size()), 2)))
    yield channels
    for group in groups.values():
        dist.destroy_process_group(group)


def messages(mesh, sizes, pace=None, at_once=False, tries=5):
    """[seconds of a message of each of `sizes`] from rank 0 to rank 1, or with at_once of one from each rank to the next."""
    taken, ring = [], [[Transfer(r, (r + 1) % mesh["dp"].size, 0, (0,)) for r in mesh["dp"].ranks]]
    with links(mesh, pace) as channels:
        for size in sizes:
            run = partial(run_rounds, ring, {0: torch.zeros(size // 4)}, channels)
            taken.append(collective_s(run, channels.device, BUDGET_S, tries) if at_once else message_s(channels, size, 4 * tries))
    return taken


def all_reduces(mesh, sizes, algorithms, pace=None, tries=5):
    """{algorithm: [seconds of an all-reduce of each of `sizes`]}, "gloo" being torch's own; and how far results are from gloo's."""
    taken, wrong = {name: [] for name in algorithms}, 0.0
    with links(mesh, pace) as channels:
        for name, size in product(algorithms, sizes):
            rounds = None if name == "gloo" else all_reduce_rounds(name, mesh["dp"].ranks, size)
            run = dist.all_reduce if rounds is None else partial(all_reduce, rounds=rounds, channels=channels)
            own = torch.randn(size // 4, generator=torch.Generator().manual_seed(mesh.rank))
            right = mesh["dp"].all_reduce(own.clone()).wait()
            run(own)
            wrong = max(wrong, ((own - right).norm() / right.norm()).item())
            taken[name].append(collective_s(partial(run, own.zero_()), channels.device, BUDGET_S, tries))
    return {"seconds": taken, "wrong": wrong}


# data parallelism -------------------------------------------------------------------------------------------


def averaged(mesh, sizes, weighted=False, batch_norm=False):
    """How far the mean of the ranks' gradients is from the whole batch's, relative. sizes: samples of each rank."""
    group, first, total = mesh["dp"], sum(sizes[: mesh.rank]), sum(sizes)
    torch.manual_seed(0)
    x, y = torch.randn(total, 8).double(), torch.randn(total, 1).double()
    norm = nn.BatchNorm1d(16) if batch_norm else nn.Identity()
    model = nn.Sequential(nn.Linear(8, 16), norm, nn.Tanh(), nn.Linear(16, 1)).double()

    def gradient(part):
        loss = functional.mse_loss(model(x[part]), y[part])  # a mean over these samples
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))])

    own, whole = gradient(slice(first, first + sizes[mesh.rank])), gradient(slice(None))
    if weighted:
        own *= group.size * sizes[mesh.rank] / total
    mean = group.all_reduce(own).wait() / group.size
    return ((mean - whole).norm() / whole.norm()).item()


def accumulated(mesh, loop, steps=12, m=4):
    """[after each step: how far apart the ranks' weights are], and the bytes that this rank reduced in a step, by torch's DDP.

    loop: which of a step's m backwards are inside no_sync; see `local`.
    """
    local = {
        "never": lambda i: (False, False),  # (is the forward inside no_sync, is the backward)
        "all but the last": lambda i: (i < m - 1, i < m - 1),
        "all": lambda i: (True, True),
        "last backward outside": lambda i: (True, i < m - 1),
    }[loop]
    torch.manual_seed(0)  # the same weights on all ranks
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
    model = DistributedDataParallel(model, process_group=mesh["dp"].process_group)
    sent, apart = [], []
    model.register_comm_hook(sent, count_and_reduce)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = torch.Generator().manual_seed(1 + mesh.rank)  # other data on each
    for _ in range(steps):
        for i in range(m):
            x = torch.randn(8, 16, generator=data)
            forward_local, backward_local = local(i)
            with model.no_sync() if forward_local else nullcontext():
                loss = functional.mse_loss(model(x), x.prod(1, keepdim=True).sign()) / m
            with model.no_sync() if backward_local else nullcontext():
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        apart.append(spread(model.parameters(), mesh["dp"]))
    return {"apart": apart, "reduced_bytes": sum(sent) / steps}


def count_and_reduce(sent, bucket):
    """DDP's own reduction of a bucket, counted."""
    sent.append(bucket.buffer().nbytes)
    return allreduce_hook(None, bucket)


def spread(parameters, group):
    """The largest distance of a rank's weights from the mean of all ranks', relative to that mean."""
    own = torch.cat([p.detach().flatten() for p in parameters])
    mean = group.all_reduce(own.clone()).wait() / group.size
    far = group.all_reduce((own - mean).norm() / mean.norm(), "max").wait()
    return far.item()


def buckets(mesh, bucket_bytes, layers=8, width=256):
    """{"calls", "early": of them begun before the backward ended, "sent_bytes"}; bucket_bytes None: each gradient by itself, at the end."""
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(width, width) for _ in range(layers)])
    parallel = None if bucket_bytes is None else DataParallel(model, mesh["dp"], bucket_bytes=bucket_bytes)
    model(torch.randn(16, width)).square().mean().backward()
    early = len(parallel.issued) if parallel else 0
    if parallel:
        parallel.finish()
    else:
        average_gradients(model, mesh["dp"])
    return {"calls": len(mesh.traffic), "early": early, "sent_bytes": sum(entry.sent_bytes for entry in mesh.traffic)}


def worked(mesh, kind, amount, tries):
    """Seconds until all ranks have done `python_work` or `device_work`, begun together: the best of so many tries."""
    taken = []
    for _ in range(tries):
        mesh["dp"].all_reduce(torch.zeros(1)).wait()
        start_s = time.perf_counter()
        WORK[kind](amount)
        mesh["dp"].all_reduce(torch.zeros(1)).wait()
        taken.append(time.perf_counter() - start_s)
    return min(taken)


def python_work(count):
    """Plain Python: holds the interpreter's lock."""
    total = 0
    for i in range(count):
        total += i * i
    return total


def device_work(seconds):
    """A stand-in for kernels on a device: the interpreter only waits, without its lock."""
    time.sleep(seconds)


WORK = {"python": python_work, "device": device_work}


def fully_sharded(mesh, sizes, wrapping, microbatches=1, warmup=2):
    """A step by torch's FSDP2: this rank's `Trace`, as JSON, and the bytes that it sent in the first; wrapping: see `WRAPPINGS`."""
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    ranks, model = mesh["dp"].size, TorchStage(Stage(sizes, 0, 1))
    flat = DeviceMesh.from_group(mesh["dp"].process_group, "cpu")
    for unit, options in WRAPPINGS[wrapping](model):
        fully_shard(unit, mesh=flat, **options)
    recorder, counted = Fsdp2Recorder(mesh.rank), Counted({"dp": mesh["dp"].ranks})
    for step in range(warmup + 1):
        tokens, targets = batch(step, ranks * microbatches, 1, sizes["seq"])
        for i in range(microbatches):
            own = mesh.rank * microbatches + i
            with counted if step == 0 else recorder if step == warmup else nullcontext():
                recorder.op = f"0F{i}"
                value = loss(model(tokens[own]), targets[own]) / microbatches
                recorder.op = f"0B{i}"
                value.backward()
    return {"trace": recorder.trace(ranks).to_json(), "sent_bytes": counted.sent["dp"]}


def simulators_units(model, **options):
    """Embedding, layers and head by themselves; the root has nothing left."""
    units = [model.embed, model.position], *model.blocks, [model.norm, model.head], model
    return [(unit, {"reshard_after_forward": True} | options) for unit in units]


def layers_and_root(model):
    """As torch's tutorial has it, with torch's defaults: what is in no layer is the root's."""
    return [(unit, {}) for unit in (*model.blocks, model)]


WRAPPINGS = {
    "simulator's units": simulators_units, "layers and root": layers_and_root,
    "never freed": partial(simulators_units, reshard_after_forward=False),
}  # fmt: skip


# inside a layer ---------------------------------------------------------------------------------------------


def split_mlp(mesh, form):
    """Two linear layers cut over tp, as `FORMS` has it: how far they are from the whole ones, and what travels in each pass."""
    group = mesh["tp"]
    torch.manual_seed(0)
    up, down = nn.Linear(32, 128).double(), nn.Linear(128, 32).double()
    x, dy = torch.randn(6, 32).double().requires_grad_(), torch.randn(6, 32).double()
    y = down(functional.gelu(up(x)))
    wanted = y, *torch.autograd.grad(y, [x, up.weight], dy)

    first, second, own = FORMS[form](up, down, group)
    x = x.detach().requires_grad_()
    y = second(functional.gelu(first(x)))
    forward = [(sent.kind, sent.sent_bytes) for sent in mesh.traffic]
    y.backward(dy)
    backward = [(sent.kind, sent.sent_bytes) for sent in mesh.traffic[len(forward) :]]
    got, wanted = (y, x.grad, own.grad), (*wanted[:2], own_rows(wanted[2], group))
    errors = [((a - b).norm() / b.norm()).item() for a, b in zip(got, wanted)]
    return {"errors": dict(zip(("output", "input gradient", "weight gradient"), errors)), "forward": forward, "backward": backward}


def common_answer(up, down, group):
    """Each rank multiplies by its part, and that is all."""
    a, b = part_of(up.weight, group, 0), part_of(down.weight, group, 1)
    return lambda x: x @ a.t() + part_of(up.bias, group, 0), lambda x: x @ b.t() + down.bias, a


def row_reduced(up, down, group):
    """The row layer sums its partial outputs; the column layer is as before."""
    first, _, a = common_answer(up, down, group)
    return first, RowLinear.of(down, group), a


def bias_everywhere(up, down, group):
    """Each rank adds the row layer's bias before the sum."""
    first, b = ColumnLinear.of(up, group), part_of(down.weight, group, 1)
    return first, lambda x: reduce_from(x @ b.t() + down.bias, group), first.weight


def column_then_row(up, down, group):
    """As Megatron-LM does."""
    first = ColumnLinear.of(up, group)
    return first, RowLinear.of(down, group), first.weight


def gathered(up, down, group):
    """By columns both, each output gathered at once."""
    first = GatheredLinear.of(up, group)
    return first, GatheredLinear.of(down, group), first.weight


def part_of(tensor, group, dim):
    """This rank's part of a weight, as a parameter of its own."""
    return nn.Parameter(group.own(tensor.detach(), dim).clone())


FORMS = {
    "common answer": common_answer, "row layer reduces": row_reduced, "bias on every rank": bias_everywhere,
    "column, then row": column_then_row, "gathered": gathered,
}  # fmt: skip


def split_heads(mesh):
    """A transformer block with its heads and its MLP cut over tp: how far output and input gradient are from the whole block's."""
    torch.manual_seed(0)
    block = Block(64, 8).double()
    mine = ParallelBlock(block, mesh["tp"])
    x, dy = torch.randn(2, 16, 64).double(), torch.randn(2, 16, 64).double()
    results = []
    for layer in (mine, block):
        own = x.clone().requires_grad_()
        y = layer(own)
        results.append((y, torch.autograd.grad(y, own, dy)[0]))
    return [((a - b).norm() / b.norm()).item() for a, b in zip(*results)]


def vocabulary(mesh, size, tokens=64):
    """An embedding of `size` rows, and the loss of as many logits, cut over tp: errors against the whole, and bytes sent for the loss."""
    group, padded = mesh["tp"], -(-size // mesh["tp"].size) * mesh["tp"].size
    torch.manual_seed(0)
    table = nn.Embedding(padded, 32).double()
    ids, dy = torch.randint(size, (tokens,)), torch.randn(tokens, 32).double()
    whole, mine = table(ids), VocabEmbedding.of(table, group)
    got = mine(ids)
    (wanted,) = torch.autograd.grad(whole, table.weight, dy)
    (gradient,) = torch.autograd.grad(got, mine.weight, dy)
    errors = {"output": (got - whole).norm() / whole.norm(), "gradient": (gradient - group.own(wanted, 0)).norm() / wanted.norm()}

    logits = torch.randn(tokens, padded).double()
    logits[:, size:] = float("-inf")  # no token is a row of the padding
    losses, sent = {}, {}
    for name, function in {"reduced": vocab_cross_entropy, "gathered": gathered_cross_entropy}.items():
        mesh.traffic.clear()
        losses[name] = function(group.own(logits, 1), ids, group)
        sent[name] = sum(entry.sent_bytes for entry in mesh.traffic)
    right = functional.cross_entropy(logits, ids, reduction="none")
    errors |= {f"loss, {name}": (its - right).norm() / right.norm() for name, its in losses.items()}
    return {"errors": {name: error.item() for name, error in errors.items()}, "sent_bytes": sent, "rows": padded // group.size}


def reached(mesh, groups):
    """{dimension: the ranks that this rank's group really reaches}: each puts a 1 at its own place, and the sum tells who took part."""
    found = {}
    for dimension, its in groups.items():
        for ranks in its:
            made = dist.new_group(ranks)  # by all ranks, also those that are not in it
            if mesh.rank in ranks:
                places = torch.zeros(dist.get_world_size())
                places[mesh.rank] = 1
                dist.all_reduce(places, group=made)
                found[dimension] = places.nonzero().flatten().tolist()
    return found


def clipped(mesh, rule, steps=10, limit=0.05):
    """Train a block cut over tp, clipping by the norm that `rule` says: this rank's factor in the first step, and after each step how far
    the replicas of what all ranks hold whole (norms, biases) are apart."""
    group = mesh["tp"]
    torch.manual_seed(0)
    block = ParallelBlock(Block(64, 8), group)
    whole = block.whole_on_tp()
    cut = [p for p in block.parameters() if not any(p is one for one in whole)]
    optimizer, apart, factor = torch.optim.SGD(block.parameters(), lr=0.5), [], None
    for _ in range(steps):
        block(torch.randn(4, 16, 64)).square().mean().backward()
        if rule == "of what it holds":
            norm = nn.utils.clip_grad_norm_(block.parameters(), limit)
        else:
            norm = clip([([p.grad for p in cut], [group]), ([p.grad for p in whole], [])], limit)
        factor = factor or min(1.0, limit / norm.item())
        optimizer.step()
        optimizer.zero_grad()
        apart.append(spread(whole, group))
    return {"factor": factor, "apart": apart}


# mixed precision --------------------------------------------------------------------------------------------


def overflowed(mesh, over, precision="fp16", scale=2.0**18, steps=12):
    """Train blocks, a pipeline stage each, cut over tp, in 16 bits: whether this rank updated its weights in each step, its loss scale at
    the end, and how far the copies of what its tp ranks hold whole (norms, biases) are apart.

    over: the groups over which a found infinity is reduced; scale: at first, None for no scaling. The last unit of the first stage's MLP
    is large, so that the gradient of its weights is the first to overflow: it is on one rank only.
    """
    torch.manual_seed(0)
    blocks = [Block(64, 8) for _ in mesh["pp"].ranks]
    blocks[0].up.bias.data[-1] = 40.0
    block = ParallelBlock(blocks[mesh["pp"].place], mesh["tp"])
    weights = MasterWeights(block, precision, lambda masters: torch.optim.Adam(masters, lr=1e-3))
    scaler = None if scale is None else LossScaler([mesh[name] for name in over], scale=scale)
    updated = []
    for _ in range(steps):
        x = torch.randn(4, 16, 64, dtype=block.up.weight.dtype)
        through_stages(mesh["pp"], block, x, scaler.scale if scaler else 1.0)
        updated.append(weights.step(scaler=scaler))
    whole = [p.detach().float() for p in block.whole_on_tp()]
    return {"updated": updated, "scale": scaler and scaler.scale, "apart": spread(whole, mesh["tp"])}


def through_stages(pp, block, x, scale):
    """One forward and backward of this rank's stage, the one message of each awaited; the loss is the mean square of the last output."""
    before, after = pp.ranks[pp.place - 1], pp.ranks[(pp.place + 1) % pp.size]
    if pp.place:
        dist.recv(x, before)
    y = block(x.requires_grad_())
    if pp.place == pp.size - 1:
        (y.float().square().mean() * scale).backward()
    else:
        dist.send(y.detach(), after)
        gradient = torch.empty_like(y)
        dist.recv(gradient, after)
        y.backward(gradient)
    if pp.place:
        dist.send(x.grad, before)


DEMONSTRATIONS = {
    function.__name__: function
    for function in (
        messages, all_reduces, averaged, accumulated, buckets, worked, fully_sharded, split_mlp, split_heads, vocabulary, reached, clipped,
        overflowed,
    )
}  # fmt: skip

"""Tensor and sequence parallelism on four processes: values and gradients of one process, torch's
own modules, simlab's bytes."""

import pytest
from realrun_ranks import ERROR, Ranks, error

from simlab.errors import InputError
from simlab.lowering.kernels import Communication, embedding_kernels, head_kernels, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

WORLD = 4
BATCH, SEQ, HIDDEN, FFN, HEADS, VOCAB = 2, 8, 16, 32, 4, 24
FORMS = ("naive", "megatron", "sequence")


@pytest.fixture(scope="module")
def ranks():
    four = Ranks(WORLD)
    yield four
    four.close()


def tensor_group(rank, rounds=False):
    """A group of all ranks; with `rounds`, one whose collectives are simlab's rounds."""
    import torch
    from realrun_processes import both_directions

    from realrun.comm.channels import Channels
    from realrun.comm.group import Group
    from realrun.comm.rounds_group import RoundsGroup

    if rounds:
        return RoundsGroup(
            "tp", range(WORLD), rank, Channels(rank, torch.device("cpu"), both_directions())
        )
    return Group("tp", range(WORLD), rank)


def numbers(*shape, seed=0):
    """Random ones, the same on all ranks."""
    import torch

    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# two matrices
# ---------------------------------------------------------------------------------------------


def whole_mlp(seed=0):
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(HIDDEN, FFN), nn.GELU(), nn.Linear(FFN, HIDDEN)).double()


def cut_mlp(whole, form, group):
    """The layers of `whole` cut over `group` in one of the FORMS; and whether its input and output
    are cut by tokens."""
    from torch import nn

    from realrun.parallel.layers.sequence import SequenceColumnLinear, SequenceRowLinear
    from realrun.parallel.layers.tensor import ColumnLinear, RowLinear
    from realrun.parallel.naive.tensor import GatheredLinear

    first, second = {
        "naive": (GatheredLinear, GatheredLinear), "megatron": (ColumnLinear, RowLinear),
        "sequence": (SequenceColumnLinear, SequenceRowLinear),
    }[form]  # fmt: skip
    return nn.Sequential(
        first.of(whole[0], group), nn.GELU(), second.of(whole[2], group)
    ), "sequence" in form


def mlp(rank, form, rounds):
    """({what: error against one process}, ledger) of two matrices, forward and backward."""
    from realrun.parallel.layers.sequence import sum_gradients

    group, whole = tensor_group(rank, rounds), whole_mlp()
    ours, by_tokens = cut_mlp(whole, form, group)
    x, dy = (numbers(BATCH, SEQ, HIDDEN, seed=seed) for seed in (1, 2))
    mine = group.own(x, 1).clone() if by_tokens else x.clone()
    x.requires_grad_(), mine.requires_grad_()
    expected, actual = whole(x), ours(mine)
    expected.backward(dy)
    actual.backward(group.own(dy, 1) if by_tokens else dy)
    ledger = [sent[:4] for sent in group.traffic]
    if by_tokens:
        sum_gradients([ours[2].bias], group)
    part = (lambda tensor: group.own(tensor, 1)) if by_tokens else (lambda tensor: tensor)
    second = (
        (lambda tensor: group.own(tensor, 0))
        if form == "naive"
        else (lambda tensor: group.own(tensor, 1))
    )
    errors = {
        "output": error(actual, part(expected)),
        "input gradient": error(mine.grad, part(x.grad)),
        "first weight": error(ours[0].weight.grad, group.own(whole[0].weight.grad, 0)),
        "first bias": error(ours[0].bias.grad, group.own(whole[0].bias.grad, 0)),
        "second weight": error(ours[2].weight.grad, second(whole[2].weight.grad)),
        "second bias": error(
            ours[2].bias.grad,
            group.own(whole[2].bias.grad, 0) if form == "naive" else whole[2].bias.grad,
        ),
    }
    return errors, ledger


@pytest.mark.parametrize("form", FORMS)
def test_two_matrices_cut_over_four_ranks_are_those_of_one_process(ranks, form):
    ledgers = []
    for rounds in (False, True):
        for errors, ledger in ranks(mlp, form, rounds):
            assert max(errors.values()) < ERROR, errors
            ledgers.append(ledger)
    # what each rank sends, by torch's collectives and by rounds
    assert all(ledger == ledgers[0] for ledger in ledgers)


def test_the_naive_form_moves_several_times_the_bytes(ranks):
    sent = {form: sum(entry[3] for entry in ranks(mlp, form, False)[0][1]) for form in FORMS}
    tokens, n = 8 * BATCH * SEQ, WORLD
    assert sent["megatron"] == 2 * 2 * (n - 1) / n * tokens * HIDDEN  # an all-reduce each way
    assert sent["sequence"] == 1.25 * sent["megatron"]  # the input is gathered again, not kept
    gathers, sums = tokens * (FFN + HIDDEN), tokens * (HIDDEN + FFN)
    assert sent["naive"] == (n - 1) / n * (gathers + 2 * sums) == 2.25 * sent["megatron"]


def torchs_mlp(rank, by_tokens):
    """Error of our two matrices against torch's parallelize_module: output, input gradient, weight
    gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh, group = init_device_mesh("cpu", (WORLD,)), tensor_group(rank)
    ours, _ = cut_mlp(whole_mlp(), "sequence" if by_tokens else "megatron", group)
    layouts = ({"input_layouts": Shard(1)}, {"output_layouts": Shard(1)}) if by_tokens else ({}, {})
    theirs = parallelize_module(
        whole_mlp(), mesh, {"0": ColwiseParallel(**layouts[0]), "2": RowwiseParallel(**layouts[1])}
    )
    x, dy = numbers(BATCH, SEQ, HIDDEN, seed=1), numbers(BATCH, SEQ, HIDDEN, seed=2)
    x, dy = (group.own(tensor, 1).clone() if by_tokens else tensor for tensor in (x, dy))
    inputs, outputs = [x.clone().requires_grad_() for _ in range(2)], []
    for module, x in zip((ours, theirs), inputs):
        outputs.append(module(x))
        outputs[-1].backward(dy)
    whole = [
        outputs[1].to_local() if isinstance(outputs[1], DTensor) else outputs[1],
        inputs[1].grad,
    ]
    gradients = [theirs[index].weight.grad.to_local() for index in (0, 2)]
    actual = [outputs[0], inputs[0].grad, ours[0].weight.grad, ours[2].weight.grad]
    return [error(a, b) for a, b in zip(actual, whole + gradients)]


@pytest.mark.parametrize("by_tokens", [False, True])
def test_two_matrices_are_those_of_torchs_parallelize_module(ranks, by_tokens):
    assert max(max(errors) for errors in ranks(torchs_mlp, by_tokens)) < ERROR


def adjoints(rank):
    """{map: <A x, y> - <x, A^T y>} summed over all ranks, with A^T what autograd makes of it."""
    import torch

    from realrun.parallel.layers.context import exchange
    from realrun.parallel.layers.sequence import gather_sequence, scatter_sequence

    group, differences = tensor_group(rank), {}
    maps = {
        "gather": lambda x: gather_sequence(x, group),
        "scatter": lambda x: scatter_sequence(x, group),
        "exchange": lambda x: exchange(x, group, 1, 2),
    }
    for name, map_of in maps.items():
        x = numbers(2, 8, 3, seed=rank).requires_grad_()
        ax = map_of(x)
        y = numbers(*ax.shape, seed=10 + rank)
        ax.backward(y)
        difference = torch.stack([(ax * y).sum() - (x * x.grad).sum(), (ax * y).sum()]).detach()
        group.all_reduce(difference).wait()
        differences[name] = (difference[0] / difference[1]).abs().item()
    return differences


def test_conjugates_are_each_others_transposes(ranks):
    assert max(max(of_rank.values()) for of_rank in ranks(adjoints)) < 1e-12


# the vocabulary
# -------------------------------------------------------------------------------------------


def ends(rank):
    """({what: error}, {what: ledger}) of embedding and loss cut over the vocabulary, the naive
    forms and torch's loss_parallel."""
    from torch import nn
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import loss_parallel

    from realrun.parallel.layers import tensor
    from realrun.parallel.naive import tensor as naive_tensor

    group = tensor_group(rank)
    table = nn.Embedding(VOCAB, HIDDEN).double()
    table.weight.data = numbers(VOCAB, HIDDEN, seed=3)
    tokens, dy = (
        (numbers(BATCH, SEQ, seed=4) * 1000).long().remainder(VOCAB),
        numbers(BATCH, SEQ, HIDDEN, seed=5),
    )
    ours = tensor.VocabEmbedding.of(table, group)
    embedded, expected = ours(tokens), table(tokens)
    for output in (embedded, expected):
        output.backward(dy)
    rows = group.own(table.weight.grad, 0)
    errors = {"embedding": error(embedded, expected), "its gradient": error(ours.weight.grad, rows)}

    whole = numbers(BATCH, SEQ, VOCAB, seed=6) * 300 + 1000  # exp of them would overflow
    targets, weights = (
        (numbers(BATCH, SEQ, seed=7) * 1000).long().remainder(VOCAB),
        numbers(BATCH, SEQ, seed=8),
    )
    whole.requires_grad_()
    expected = nn.functional.cross_entropy(
        whole.flatten(0, 1), targets.flatten(), reduction="none"
    ).view(BATCH, SEQ)
    expected.backward(weights)
    ledgers = {}
    for name, loss_of in (
        ("loss", tensor.vocab_cross_entropy),
        ("naive loss", naive_tensor.gathered_cross_entropy),
    ):
        group.traffic.clear()
        logits = group.own(whole.detach(), -1).clone().requires_grad_()
        loss = loss_of(logits, targets, group)
        loss.backward(weights)
        ledgers[name] = [sent[:3] for sent in group.traffic]
        errors[name], errors[f"gradient of {name}"] = (
            error(loss, expected),
            error(logits.grad, group.own(whole.grad, -1)),
        )

    logits = group.own(whole.detach(), -1).clone().requires_grad_()
    mine = tensor.vocab_cross_entropy(logits, targets, group).mean()
    mine.backward()
    local = group.own(whole.detach(), -1).clone().requires_grad_()
    with loss_parallel():
        cut = DTensor.from_local(
            local.flatten(0, 1), init_device_mesh("cpu", (WORLD,)), [Shard(-1)]
        )
        theirs = nn.functional.cross_entropy(cut, targets.flatten())
        theirs.backward()
    errors["torch's loss"], errors["torch's gradient"] = (
        error(mine, theirs.full_tensor()),
        error(logits.grad, local.grad),
    )
    return errors, ledgers


def test_embedding_and_loss_cut_over_the_vocabulary_are_those_of_one_process_and_never_gather_logits(
    ranks,
):
    number = 8 * BATCH * SEQ
    for errors, ledgers in ranks(ends):
        assert max(errors.values()) < ERROR, errors
        # maximum; sum and target
        assert ledgers["loss"] == [("all_reduce", "tp", number), ("all_reduce", "tp", 2 * number)]
        assert ledgers["naive loss"] == [("all_gather", "tp", VOCAB * number)]


# a block and its bytes
# ---------------------------------------------------------------


def whole_block():
    import torch

    from realrun.model.gpt import Block

    torch.manual_seed(11)
    block = Block(HIDDEN, HEADS).double()
    for norm in (block.norm1, block.norm2):
        torch.nn.init.normal_(norm.weight)
        torch.nn.init.normal_(norm.bias)
    return block


def traffic(rank, sequence_parallel):
    """{part of a model: (kind, bytes) forward, (kind, bytes) backward}, in float32."""
    import torch
    from torch import nn

    from realrun.parallel.layers import sequence, tensor
    from realrun.parallel.layers.block import ParallelBlock

    group, results = tensor_group(rank), {}
    table, head = nn.Embedding(VOCAB, HIDDEN), nn.Linear(HIDDEN, VOCAB, bias=False)
    embedding, column = tensor.VocabEmbedding, tensor.ColumnLinear
    if sequence_parallel:
        embedding, column = sequence.SequenceVocabEmbedding, sequence.SequenceColumnLinear
    parts = {
        "embedding": embedding.of(table, group),
        "layer": ParallelBlock(whole_block().float(), group, sequence_parallel=sequence_parallel),
        "head": column.of(head, group),
    }
    x = torch.zeros(BATCH, SEQ, dtype=torch.int64)
    for name, module in parts.items():
        y = module(x)
        if name == "head":
            y = tensor.vocab_cross_entropy(y, torch.zeros(BATCH, SEQ, dtype=torch.int64), group)
        forward = [sent[::2][:2] for sent in group.traffic]
        group.traffic.clear()
        y.sum().backward()
        results[name] = forward, [sent[::2][:2] for sent in group.traffic]
        group.traffic.clear()
        x = y.detach().requires_grad_()
    return results


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_every_collective_has_the_kind_and_bytes_that_the_simulator_charges(
    ranks, sequence_parallel
):
    model = Model(layers=1, hidden=HIDDEN, heads=HEADS, vocab=VOCAB, positions=SEQ, seq=SEQ)
    plan = Plan(
        tp=WORLD, microbatch_size=BATCH, precision="fp32", sequence_parallel=sequence_parallel
    )

    def simulated(kernels):
        return [
            (kernel.kind, kernel.size_bytes)
            for kernel in kernels
            if isinstance(kernel, Communication)
        ]

    expected = {
        name: (simulated(kernels.forward), simulated([*kernels.input_grad, *kernels.weight_grad]))
        for name, kernels in (
            ("embedding", embedding_kernels(model, plan)), ("layer", layer_kernels(model, plan)), ("head", head_kernels(model, plan)),
        )
    }  # fmt: skip
    for results in ranks(traffic, sequence_parallel):
        for name, (forward, backward) in results.items():
            entries = [[(kind, size) for kind, size in part] for part in (forward, backward)]
            assert entries[0] == expected[name][0] and sorted(entries[1]) == sorted(
                expected[name][1]
            ), name


def test_what_cannot_be_cut_evenly_is_refused_with_its_name():
    from torch import nn

    from realrun.comm.group import Group
    from realrun.parallel.layers.block import ParallelBlock
    from realrun.parallel.layers.tensor import ColumnLinear, RowLinear, VocabEmbedding

    three = Group("tp", range(3), 0)
    with pytest.raises(InputError, match="outputs = 32 cannot be cut evenly over 3 tp ranks"):
        ColumnLinear.of(nn.Linear(16, 32), three)
    with pytest.raises(InputError, match="inputs = 16 cannot be cut evenly over 3 tp ranks"):
        RowLinear.of(nn.Linear(16, 32), three)
    with pytest.raises(
        InputError, match=r"vocabulary \(pad it\) = 256 cannot be cut evenly over 3 tp ranks"
    ):
        VocabEmbedding(256, 8, three)
    with pytest.raises(InputError, match="heads = 4 cannot be cut evenly over 3 tp ranks"):
        ParallelBlock(whole_block(), three)
    with pytest.raises(InputError, match="attention 'rings', did you mean 'ring'"):
        ParallelBlock(whole_block(), Group("tp", range(2), 0), attention="rings")

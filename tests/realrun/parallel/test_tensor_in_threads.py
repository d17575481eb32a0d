"""Tensor, sequence and context parallelism of whole stages on ranks that are threads, against the
same model in one process: loss, every gradient, and the bytes of both ways."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from threaded_ranks import on_mesh, on_threads
from torch import nn
from torch.nn import functional

from realrun.comm.group import Group
from realrun.model.gpt import Stage, loss
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.layers.context import exchange, positions
from realrun.parallel.layers.sequence import (
    SequenceColumnLinear,
    SequenceRowLinear,
    scatter_sequence,
    sum_gradients,
)
from realrun.parallel.layers.tensor import (
    ColumnLinear,
    RowLinear,
    VocabEmbedding,
    vocab_cross_entropy,
)
from realrun.parallel.naive.tensor import (
    GatheredLinear,
    gathered_cross_entropy,
)
from realrun.parallel.stage import ParallelStage
from simlab.errors import InputError

SIZES = {"layers": 2, "hidden": 24, "heads": 4, "seq": 16}
TOKENS, TARGETS = torch.randint(256, (2, 2, 16), generator=torch.Generator().manual_seed(5))
FIELDS = {
    "sequence_parallel": False, "cp": 1, "cp_kind": "ring", "cp_layout": "zigzag",
    "attention": "flash", "recompute": "none",
}  # fmt: skip


def whole(stages):
    """The stages of the model in float64, with norms and biases that are no zeros and ones."""
    made = [Stage(SIZES, stage, stages).double() for stage in range(stages)]
    generator = torch.Generator().manual_seed(3)
    for stage in made:
        for parameter in stage.parameters():
            if parameter.dim() == 1:
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.data += 0.3 * noise
    return made


def alone(stages):
    """(loss, {name: gradient} of each stage) in one process."""
    made = whole(stages)
    x = TOKENS
    for stage in made:
        x = stage(x)
    value = loss(x, TARGETS)
    value.backward()
    return value.item(), [{n: p.grad for n, p in s.named_parameters()} for s in made]


NAMES = {
    "embedding.rows.weight": "embed.weight", "embedding.position.weight": "position.weight",
    "head.norm.weight": "norm.weight", "head.norm.bias": "norm.bias",
    "head.column.weight": "head.weight",
}  # fmt: skip


def own(name, gradient, tp):
    """This rank's part of the whole gradient, by Megatron's rules."""

    def rows(tensor):
        return tensor.chunk(tp.size, 0)[tp.place]

    layer = name.rpartition(".")[0].rpartition(".")[2]
    if layer == "qkv":
        return torch.cat([rows(piece) for piece in gradient.chunk(3, 0)])
    if layer in ("up", "embed", "head"):
        return rows(gradient)
    if layer in ("out", "down") and name.endswith("weight"):
        return gradient.chunk(tp.size, 1)[tp.place]
    return gradient


def trained(mesh, made, plan):
    """(loss, [{the whole model's name: this rank's gradient} of each stage], what passed between
    units) of this rank's tokens."""
    tp, cp = mesh["tp"], mesh["cp"]
    layers = SIZES["layers"] // len(made)
    stages = [ParallelStage(s, at * layers, mesh, plan) for at, s in enumerate(made)]
    where = positions(SIZES["seq"] // cp.size, cp, plan.cp_layout)
    passed, x, boundary = [], TOKENS[:, where], []

    def between(x, before, after):
        passed.append((before, after))
        x.register_hook(lambda gradient: passed.append((after, before)))

    for at, stage in enumerate(stages):
        y = stage(x, TARGETS[:, where], between)
        if at + 1 < len(stages):
            sent = stage.outgoing(y.detach())
            assert tuple(sent.shape) == stages[at].message_shape(2, SIZES["seq"])
            x = stages[at + 1].incoming(sent).requires_grad_()
            boundary.append((y, x, stage))
    y.backward()
    for y_sent, x, stage in reversed(boundary):
        y_sent.backward(stage.incoming(stages[-1].outgoing(x.grad)))
    gradients = []
    for stage in stages:
        for unit in stage.units.values():
            for parameter in unit.parameters():
                parameter.grad_dtype = torch.float64
            sum_gradients(unit.partial_over_tp(), tp)
            sum_gradients(list(unit.parameters()), cp)
        found = {}
        for name, unit in stage.units.items():
            for inner, parameter in unit.named_parameters():
                place = f"blocks.{int(name.split()[1]) % layers}.{inner}" if " " in name else ""
                found[place or NAMES[f"{name}.{inner}"]] = parameter.grad / cp.size
        gradients.append(found)
    return y.item(), gradients, passed


CASES = [
    ({"tp": 1}, {}),
    ({"tp": 2}, {}),
    ({"tp": 4}, {}),
    ({"tp": 2}, {"sequence_parallel": True}),
    ({"tp": 4}, {"sequence_parallel": True, "recompute": "full"}),
    ({"tp": 2}, {"attention": "unfused", "recompute": "selective"}),
    ({"tp": 2}, {"attention": "unfused", "sequence_parallel": True}),
    ({"cp": 2}, {}),
    ({"cp": 4}, {"cp_layout": "contiguous"}),
    ({"cp": 2}, {"cp_kind": "all-to-all", "recompute": "full"}),
    ({"cp": 2}, {"cp_kind": "all-gather"}),
    ({"cp": 2, "tp": 2}, {"sequence_parallel": True}),
    ({"cp": 2, "tp": 2}, {"sequence_parallel": True, "cp_kind": "all-to-all"}),
]


@pytest.mark.parametrize("stages", [1, 2])
@pytest.mark.parametrize("sizes, fields", CASES, ids=lambda its: " ".join(map(str, its.values())))
def test_a_cut_model_has_the_loss_and_gradients_of_the_whole_one(stages, sizes, fields):
    sizes = {"cp": 1, "tp": 1} | sizes
    plan = SimpleNamespace(**FIELDS | fields | {"cp": sizes["cp"]})
    expected_loss, expected = alone(stages)
    made = whole(stages)
    answers = on_mesh(sizes, lambda mesh: (mesh["tp"], trained(mesh, made, plan)))
    means = [value for _, (value, _, _) in answers]
    assert sum(means) / len(means) == pytest.approx(expected_loss, rel=1e-12)
    for tp, (_, gradients, _) in answers:
        for ours, theirs in zip(gradients, expected, strict=True):
            assert set(ours) == set(theirs)
            for name, gradient in ours.items():
                part = own(name, theirs[name], tp)
                torch.testing.assert_close(gradient, part, rtol=1e-9, atol=1e-12, msg=name)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_units_are_passed_in_order_and_the_other_way_round_backward(recompute):
    plan = SimpleNamespace(**FIELDS | {"recompute": recompute})
    made = whole(1)
    ((_, _, passed),) = on_mesh({"cp": 1, "tp": 1}, lambda mesh: trained(mesh, made, plan))
    units = ["embedding", "layer 0", "layer 1", "head"]
    there = list(pairwise(units))
    assert passed == there + [(b, a) for a, b in reversed(there)]


# two matrices
# ------------------------------------------------------------------------------------------

FORMS = {
    "naive": (GatheredLinear, GatheredLinear),
    "megatron": (ColumnLinear, RowLinear),
    "sequence": (SequenceColumnLinear, SequenceRowLinear),
}
BATCH, SEQ, HIDDEN, FFN = 2, 8, 16, 32


def numbers(*shape, seed=0):
    """Random ones, the same on all ranks."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def matrices(group, form, whole):
    """The bytes that this rank sends, of two matrices cut over the group in one of the forms, whose
    output and gradients are its parts of those of `whole`. With sequence parallelism input and
    output are cut by tokens."""
    first, second = FORMS[form]
    ours = nn.Sequential(first.of(whole[0], group), nn.GELU(), second.of(whole[2], group))
    x, dy = numbers(BATCH, SEQ, HIDDEN, seed=1), numbers(BATCH, SEQ, HIDDEN, seed=2)
    x.requires_grad_()
    expected = whole(x)
    dx, up, up_bias, down, down_bias = torch.autograd.grad(expected, [x, *whole.parameters()], dy)

    def tokens(tensor):
        return group.own(tensor, 1) if form == "sequence" else tensor

    mine = tokens(x.detach()).clone().requires_grad_()
    actual = ours(mine)
    actual.backward(tokens(dy))
    sent = sum(one.sent_bytes for one in group.traffic)
    if form == "sequence":
        sum_gradients([ours[2].bias], group)
    if form == "naive":
        down, down_bias = group.own(down, 0), group.own(down_bias, 0)
    else:
        down = group.own(down, 1)
    found = [actual, mine.grad, *(parameter.grad for parameter in ours.parameters())]
    parts = [tokens(expected), tokens(dx), group.own(up, 0), group.own(up_bias, 0), down, down_bias]
    for one, other in zip(found, parts, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    return sent


def test_two_matrices_cut_over_four_ranks_are_those_of_one_process_and_naive_ones_send_more():
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(HIDDEN, FFN), nn.GELU(), nn.Linear(FFN, HIDDEN)).double()
    sent, n, tokens = {}, 4, 8 * BATCH * SEQ
    for form in FORMS:
        (sent[form],) = {*on_threads(n, matrices, form, whole, dimension="tp")}
    assert sent["megatron"] == 2 * 2 * (n - 1) / n * tokens * HIDDEN  # an all-reduce each way
    assert sent["sequence"] == 1.25 * sent["megatron"]  # the input is gathered again, not kept
    gathers, sums = tokens * (FFN + HIDDEN), tokens * (HIDDEN + FFN)
    assert sent["naive"] == (n - 1) / n * (gathers + 2 * sums) == 2.25 * sent["megatron"]


@pytest.mark.parametrize(
    "maps",
    [scatter_sequence, lambda x, group: exchange(x, group, 1, 2)],
    ids=["scatter", "exchange"],
)
def test_a_backward_is_the_transpose_of_its_forward(maps):
    """<A x, y> = <x, A^T y>, added up over the ranks, with A^T what autograd makes of A."""

    def products(group):
        x = numbers(2, 8, 3, seed=group.place).requires_grad_()
        ax = maps(x, group)
        y = numbers(*ax.shape, seed=10 + group.place)
        ax.backward(y)
        return (ax * y).sum().item(), (x * x.grad).sum().item()

    there, back = map(sum, zip(*on_threads(4, products, dimension="tp")))
    assert there == pytest.approx(back, rel=1e-12)


def test_a_layer_cut_by_rows_needs_no_bias():
    whole = torch.nn.Linear(6, 4, bias=False, dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def product(group):
        layer = RowLinear.of(whole, group)
        return layer(x.chunk(2, -1)[group.place])

    for y in on_threads(2, product):
        assert torch.allclose(y, whole(x))


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_loss_over_a_cut_vocabulary_is_torchs_each_token_with_a_weight_of_its_own(ranks):
    generator = torch.Generator().manual_seed(2)
    logits = 300 * torch.randn(3, 5, 8, dtype=torch.float64, generator=generator) + 1000
    targets = torch.randint(8, (3, 5), generator=generator)
    weights = torch.randn(3, 5, dtype=torch.float64, generator=generator)
    theirs = logits.clone().requires_grad_()
    expected = functional.cross_entropy(theirs.flatten(0, 1), targets.flatten(), reduction="none")
    expected.view(3, 5).backward(weights)

    def ours(group):
        found = []
        for loss_of in (vocab_cross_entropy, gathered_cross_entropy):
            mine = group.own(logits, -1).clone().requires_grad_()
            value = loss_of(mine, targets, group)
            value.backward(weights)
            torch.testing.assert_close(value, expected.detach().view(3, 5), rtol=1e-9, atol=1e-9)
            torch.testing.assert_close(mine.grad, group.own(theirs.grad, -1), rtol=1e-9, atol=1e-9)
            found.append([(one.kind, one.size_bytes) for one in group.traffic])
            group.traffic.clear()
        return found

    number = 8 * 3 * 5  # of one number for each token
    reduced = [("all_reduce", number), ("all_reduce", 2 * number)]  # maximum; sum and target
    gathered = [("all_gather", 8 * number)]
    assert on_threads(ranks, ours, dimension="tp") == [[reduced, gathered]] * ranks


def test_the_loss_of_16_bit_logits_is_of_32_bits_and_their_gradient_of_16():
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(6)).bfloat16()
    targets = torch.tensor([[0, 3, 7], [1, 1, 4]])
    exact = functional.cross_entropy(
        logits.double().flatten(0, 1), targets.flatten(), reduction="none"
    )

    def ours(group):
        mine = group.own(logits, -1).clone().requires_grad_()
        value = vocab_cross_entropy(mine, targets, group)
        value.sum().backward()
        assert value.dtype == torch.float32 and mine.grad.dtype == torch.bfloat16
        torch.testing.assert_close(value.double(), exact.view(2, 3), rtol=1e-6, atol=1e-6)

    on_threads(2, ours, dimension="tp")


def test_what_cannot_be_cut_evenly_is_refused_with_its_name():
    three, block = Group("tp", range(3), 0), whole(1)[0].blocks[0]
    cut = "cannot be cut evenly over 3 tp ranks"
    with pytest.raises(InputError, match=f"outputs = 32 {cut}"):
        ColumnLinear.of(nn.Linear(16, 32), three)
    with pytest.raises(InputError, match=f"inputs = 16 {cut}"):
        RowLinear.of(nn.Linear(16, 32), three)
    with pytest.raises(InputError, match=rf"vocabulary \(pad it\) = 256 {cut}"):
        VocabEmbedding(256, 8, three)
    with pytest.raises(InputError, match=f"heads = 4 {cut}"):
        ParallelBlock(block, three)
    with pytest.raises(InputError, match="attention 'rings', did you mean 'ring'"):
        ParallelBlock(block, Group("tp", range(2), 0), attention="rings")


def test_a_stage_has_the_parameters_of_all_its_units_once():
    """As `nn.Module` says them: copies of a stage add up these gradients."""

    def parameters(group):
        plan = SimpleNamespace(**FIELDS)
        mesh = {"tp": group, "cp": on_threads(1, lambda alone: alone)[0]}
        stage = ParallelStage(made, 0, mesh, plan)
        of_units = [p for unit in stage.units.values() for p in unit.parameters()]
        assert [id(p) for p in stage.parameters()] == [id(p) for p in of_units]
        return sum(p.numel() for p in of_units)

    (made,) = whole(1)
    assert on_threads(1, parameters, dimension="tp") == [sum(p.numel() for p in made.parameters())]


def test_without_more_words_a_block_computes_ring_attention_on_zigzag_tokens():
    block = whole(1)[0].blocks[0]
    x = torch.randn(1, 16, 24, generator=torch.Generator().manual_seed(7)).double()
    expected = block(x)

    def rows(mesh):
        mine = ParallelBlock(block, mesh["tp"], mesh["cp"])
        where = positions(8, mesh["cp"], "zigzag")
        torch.testing.assert_close(mine(x[:, where]), expected[:, where])
        return Counter(one.kind for one in mesh["cp"].traffic)

    assert on_mesh({"tp": 1, "cp": 2}, rows) == [{"ring": 1}] * 2

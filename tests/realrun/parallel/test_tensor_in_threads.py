"""Tensor, sequence and context parallelism of whole stages on ranks that are threads, against the
same model in one process: loss, every gradient, and the bytes of both ways."""

from collections import Counter
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from threaded_ranks import on_mesh, on_threads
from torch.nn import functional

from realrun.model.gpt import Stage, loss
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.layers.context import positions
from realrun.parallel.layers.sequence import SequenceVocabEmbedding, sum_gradients
from realrun.parallel.layers.tensor import RowLinear, vocab_cross_entropy
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


# naive forms, and what they send more
# ------------------------------------------------------------------------------------------


def test_a_layer_cut_by_rows_needs_no_bias():
    whole = torch.nn.Linear(6, 4, bias=False, dtype=torch.float64)
    x = torch.randn(3, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(2))

    def product(group):
        layer = RowLinear.of(whole, group)
        return layer(x.chunk(2, -1)[group.place])

    for y in on_threads(2, product):
        assert torch.allclose(y, whole(x))


def test_naive_matrices_give_the_same_and_send_what_they_gather():
    linear = torch.nn.Linear(6, 8).double()
    x = torch.randn(2, 4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    theirs = x.clone().requires_grad_()
    y = linear(theirs)
    y.backward(y.detach())

    def ours(group):
        layer, mine = GatheredLinear.of(linear, group), x.clone().requires_grad_()
        out = layer(mine)
        out.backward(y.detach())
        torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(out, y.detach(), rtol=1e-10, atol=1e-12)
        torch.testing.assert_close(layer.weight.grad, group.own(linear.weight.grad, 0))
        torch.testing.assert_close(layer.bias.grad, group.own(linear.bias.grad, 0))
        return [(one.kind, one.size_bytes) for one in group.traffic]

    for gathered in on_threads(2, ours, dimension="tp"):
        assert gathered == [("all_gather", 8 * 2 * 4 * 8), ("all_reduce", 8 * 2 * 4 * 6)]


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
            found.append(len(group.traffic))
        return found

    assert on_threads(ranks, ours, dimension="tp") == [[2, 3]] * ranks


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


def test_an_embedding_cut_by_vocabulary_gives_each_rank_the_rows_of_its_tokens():
    table = torch.nn.Embedding(8, 3).double()
    tokens = torch.tensor([[1, 7, 1, 4]])
    expected = table(tokens).detach()

    def ours(group):
        layer = SequenceVocabEmbedding.of(table, group)
        out = layer(tokens)
        out.backward(10 * group.own(expected, 1))
        gradient = torch.zeros(8, 3, dtype=torch.float64)
        gradient.index_add_(0, tokens[0], 10 * expected[0])
        assert layer.weight.grad.equal(group.own(gradient, 0))
        return out.equal(group.own(expected, 1))

    assert all(on_threads(2, ours, dimension="tp"))


def test_heads_that_ranks_do_not_divide_are_refused_by_name():
    def refused(group):
        with pytest.raises(InputError, match="heads = 4 cannot be cut evenly over 3 tp ranks"):
            ParallelBlock(whole(1)[0].blocks[0], group)

    on_threads(3, refused, dimension="tp")


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

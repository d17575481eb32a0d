"""The model and its one-process reference, held against the same mathematics written down a second
time."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from realrun.model.gpt import VOCAB, Block, Stage, layer_range, loss
from realrun.model.reference import gradient_error, single_process
from realrun.model.text import batch, corpus
from simlab.errors import InputError
from simlab.spec.plan import Plan

SIZES = {"layers": 5, "hidden": 24, "heads": 3, "seq": 11, "microbatch_size": 2}


def stages_of(count, sizes=SIZES):
    return [Stage(sizes, stage, count).double() for stage in range(count)]


def norm(x, part):
    centred = x - x.mean(-1, keepdim=True)
    return (
        centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + 1e-5) * part.weight + part.bias
    )


def linear(x, part):
    return x @ part.weight.T + part.bias


def block_by_hand(x, block, heads):
    """One transformer block in plain arithmetic: softmax(q k' / sqrt(d)) v under the causal mask,
    then the MLP."""
    batch_size, seq, hidden = x.shape
    qkv = linear(norm(x, block.norm1), block.qkv)
    q, k, v = (
        part.reshape(batch_size, seq, heads, hidden // heads).transpose(1, 2)
        for part in qkv.split(hidden, dim=-1)
    )
    scores = q @ k.transpose(-1, -2) / math.sqrt(hidden // heads)
    scores = scores.masked_fill(torch.ones(seq, seq).triu(1).bool(), -math.inf)
    mixed = (torch.exp(scores) / torch.exp(scores).sum(-1, keepdim=True)) @ v
    x = x + linear(mixed.transpose(1, 2).reshape(batch_size, seq, hidden), block.out)
    up = linear(norm(x, block.norm2), block.up)
    return x + linear(up * 0.5 * (1 + torch.erf(up / math.sqrt(2))), block.down)


def logits_by_hand(tokens, stages, heads):
    """The uncut model, from the stages' parameters."""
    x = stages[0].embed.weight[tokens] + stages[0].position.weight[: tokens.shape[1]]
    for block in (block for stage in stages for block in stage.blocks):
        x = block_by_hand(x, block, heads)
    return norm(x, stages[-1].norm) @ stages[-1].head.weight.T


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_stages_put_together_equal_the_uncut_model_written_by_hand(count):
    stages = stages_of(count)
    tokens = torch.randint(VOCAB, (2, SIZES["seq"]), generator=torch.Generator().manual_seed(1))
    assert sum(len(stage.blocks) for stage in stages) == SIZES["layers"]
    together = nn.Sequential(*stages)(tokens)
    torch.testing.assert_close(
        together, logits_by_hand(tokens, stages, SIZES["heads"]), rtol=1e-11, atol=1e-11
    )


def test_a_position_sees_nothing_that_comes_later():
    model = nn.Sequential(*stages_of(2))
    tokens = torch.randint(VOCAB, (1, SIZES["seq"]))
    changed = tokens.clone()
    changed[0, 6] = (changed[0, 6] + 1) % VOCAB
    before, after = model(tokens), model(changed)
    assert torch.equal(before[:, :6], after[:, :6])
    assert (before[:, 6:] != after[:, 6:]).any(-1).all()


def test_the_same_stage_has_the_same_weights_wherever_it_is_built_and_no_other_stage_has_them():
    torch.manual_seed(1)
    first = Stage(SIZES, 1, 3).state_dict()
    torch.manual_seed(2)
    again, other = Stage(SIZES, 1, 3).state_dict(), Stage(SIZES, 2, 3).state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["blocks.0.qkv.weight"], other["blocks.0.qkv.weight"])


def test_loss_is_the_mean_negative_log_probability_of_the_next_byte_in_nats():
    logits = torch.randn(2, 3, VOCAB, dtype=torch.float64)
    targets = torch.randint(VOCAB, (2, 3))
    by_hand = [
        -math.log(math.exp(logits[i, j, targets[i, j]]) / logits[i, j].exp().sum())
        for i in range(2)
        for j in range(3)
    ]
    assert loss(logits, targets).item() == pytest.approx(sum(by_hand) / 6, rel=1e-12)
    assert loss(
        torch.zeros(1, 4, VOCAB), torch.zeros(1, 4, dtype=torch.int64)
    ).item() == pytest.approx(math.log(256))


@given(layers=st.integers(1, 500), data=st.data())
@settings(deadline=None, database=None)
def test_layer_ranges_cut_the_layers_exactly_contiguously_and_evenly(layers, data):
    stages = data.draw(st.integers(1, layers))
    ranges = [layer_range(layers, stage, stages) for stage in range(stages)]
    assert [layer for first, end in ranges for layer in range(first, end)] == list(range(layers))
    sizes = [end - first for first, end in ranges]
    assert sizes == Plan(pp=stages, stage_layers="uneven").layers_of_stages(layers)
    assert sizes[0] == min(sizes) >= 1 and max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("stage_layers", [(0, 4, 0), (0, 1, 3), (4, 0), (1, 2, 1, 0)])
def test_stages_of_the_embedding_or_the_head_only_have_the_gradients_of_one_stage(stage_layers):
    """Cut in any way, the model is the same: same weights, same loss, same gradients."""
    sizes, count = SIZES | {"layers": 4}, len(stage_layers)
    tokens, targets = batch(0, 2, 2, sizes["seq"])
    whole_loss, (whole,) = single_process(sizes, 1, tokens, targets, torch.float64)
    cut_loss, cut = single_process(sizes, count, tokens, targets, torch.float64, stage_layers)
    assert cut_loss == pytest.approx(whole_loss, rel=1e-13)
    found, first = {}, 0
    for held, gradients in zip(stage_layers, cut, strict=True):
        for name, gradient in gradients.items():
            kind, *rest = name.split(".")
            if kind == "blocks":
                rest = [str(first + int(rest[0])), *rest[1:]]
            found[".".join([kind, *rest])] = gradient
        first += held
    assert set(found) == set(whole)
    assert all(torch.allclose(found[name], whole[name], rtol=1e-12) for name in whole)
    only_embeds = Stage(sizes, 0, count, stage_layers)
    if not stage_layers[0]:
        assert {name for name, _ in only_embeds.named_parameters()} == {
            "embed.weight",
            "position.weight",
        }


def test_layers_of_stages_that_do_not_add_up_are_refused():
    with pytest.raises(InputError, match="3 layers on 2 stages, but there are 4 layers"):
        layer_range(4, 0, 2, (1, 2))


@pytest.mark.parametrize("count, microbatches", [(1, 1), (2, 3), (4, 4)])
def test_the_reference_equals_autograd_on_the_whole_batch_at_once(count, microbatches):
    tokens, targets = batch(3, microbatches, SIZES["microbatch_size"], SIZES["seq"])
    expected_loss, expected = single_process(SIZES, count, tokens, targets, torch.float64)
    whole = nn.Sequential(*stages_of(count))
    whole_loss = nn.functional.cross_entropy(
        whole(tokens.flatten(0, 1)).flatten(0, 1), targets.flatten()
    )
    whole_loss.backward()
    assert expected_loss == pytest.approx(whole_loss.item(), rel=1e-13)
    for stage, gradients in zip(whole, expected):
        assert set(gradients) == {name for name, _ in stage.named_parameters()}
        for name, parameter in stage.named_parameters():
            torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-9, atol=1e-14)


# the measure itself
# -----------------------------------------------------------------------------------------


def module_with_gradients():
    module = Block(8, 2).double()
    for parameter in module.parameters():
        parameter.grad = torch.randn_like(parameter)
    return module, {name: parameter.grad.clone() for name, parameter in module.named_parameters()}


def test_gradient_error_is_zero_for_equal_gradients_and_relative_to_the_gradient_otherwise():
    module, expected = module_with_gradients()
    assert gradient_error(module, expected) == 0
    module.down.weight.grad *= 1 + 3e-7
    assert gradient_error(module, expected) == pytest.approx(3e-7, rel=1e-6)
    for parameter in module.parameters():
        parameter.grad *= 1e-20  # small gradients are no excuse
    assert gradient_error(module, expected) == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_gradient_error_of_a_missing_or_broken_gradient_is_infinite(value):
    module, expected = module_with_gradients()
    if value is None:
        module.norm2.bias.grad = None
    else:
        module.norm2.bias.grad[0] = value
    assert gradient_error(module, expected) == math.inf


@pytest.mark.parametrize(
    "what", ["weights of another stage", "one microbatch missing", "other data"]
)
def test_gradient_error_finds_a_gradient_that_is_wrong_by_a_whole_mistake(what):
    tokens, targets = batch(0, 4, 2, SIZES["seq"])
    _, expected = single_process(SIZES, 2, tokens, targets, torch.float64)
    wrong_tokens, wrong_targets = (
        batch(1, 4, 2, SIZES["seq"]) if what == "other data" else (tokens, targets)
    )
    stages = stages_of(2)
    if what == "weights of another stage":
        stages[0].blocks.load_state_dict(
            Stage(SIZES | {"layers": 2}, 0, 1).blocks.state_dict() | {"0.down.bias": torch.ones(24)}
        )
    for x, target in list(zip(wrong_tokens, wrong_targets))[what == "one microbatch missing" :]:
        (loss(stages[1](stages[0](x)), target) / 4).backward()
    assert (
        min(gradient_error(stage, gradients) for stage, gradients in zip(stages, expected)) > 1e-3
    )


# the text
# ---------------------------------------------------------------------------------------------------


def test_a_batch_is_real_text_whose_targets_are_the_bytes_that_follow():
    tokens, targets = batch(5, 3, 2, 40)
    assert tokens.shape == targets.shape == (3, 2, 40) and tokens.dtype == torch.int64
    text = bytes(corpus().tolist())
    for window, following in zip(tokens.flatten(0, 1).tolist(), targets.flatten(0, 1).tolist()):
        assert window[1:] == following[:-1]
        assert bytes([*window, following[-1]]) in text
    assert b"statement" in text


def test_batches_are_the_same_for_the_same_step_and_others_for_another():
    assert torch.equal(batch(2, 2, 1, 16)[0], batch(2, 2, 1, 16)[0])
    assert not torch.equal(batch(2, 2, 1, 16)[0], batch(3, 2, 1, 16)[0])

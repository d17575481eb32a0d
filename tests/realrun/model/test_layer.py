"""A layer that does what its model's operations say: its numbers, what it keeps, what it computes, and
its gradients."""

import math

import pytest
import torch
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

import simlab as sl
from realrun.model.fused import RMSNorm, gated, rotary
from realrun.model.gpt import Block, Stage, loss
from realrun.model.scan import Scan
from realrun.model.sizes import model_of, refusal, sizes_like
from realrun.record.activations import SavedActivations
from simlab.errors import InputError
from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations
from simlab.spec.model.catalogue import catalogue

SMALL = {"layers": 6, "hidden": 64, "seq": 32}
BATCH = 2
REFUSED = {
    "deepseek-v2": "operation 'q down'",
    "deepseek-v3": "operation 'q down'",
    "gpt-oss-120b": "a score of each head's own",
    "gpt-oss-20b": "a score of each head's own",
    "kimi-k2": "operation 'q down'",
    "nemotron-3-super-120b-a12b": "operation 'to experts'",
}
"""{model: what of its layers is not executed}"""
MODELS = sorted(set(catalogue()) - REFUSED.keys())


def small(name):
    """The sizes of a narrow model with the layers of the model `name`."""
    sizes = sizes_like(sl.load_model(name), SMALL)
    model = model_of(sizes)
    if model.experts:
        sizes["capacity"] = BATCH * SMALL["seq"]  # nothing is dropped
    return sizes


def test_all_models_of_the_catalogue_are_executed_but_these():
    refused = {
        name: refusal(model_of(sizes_like(sl.load_model(name), SMALL))) for name in catalogue()
    }
    found = {name: why for name, why in refused.items() if why}
    assert found.keys() == REFUSED.keys()
    assert all(REFUSED[name] in why for name, why in found.items())


@pytest.mark.parametrize("name", catalogue())
def test_layers_that_are_not_made_narrower_have_the_operations_of_the_models(name):
    """All that a model says of its layers is kept, whatever the field that says it."""
    model = sl.load_model(name)
    same = model_of(sizes_like(model, {"layers": model.layers, "seq": model.seq}))
    assert [layer_operations(same.of_kind(kind)) for kind in model.layer_kinds[: model.layers]] == [
        layer_operations(model.of_kind(kind)) for kind in model.layer_kinds[: model.layers]
    ]


@pytest.mark.parametrize("name", MODELS)
def test_it_has_as_many_parameters_as_the_model_and_each_has_a_gradient(name):
    sizes = small(name)
    stage = Stage(sizes, 0, 1).double()
    assert sum(p.numel() for p in stage.parameters()) == model_of(sizes).parameters
    tokens = torch.randint(256, (BATCH, SMALL["seq"]))
    loss(stage(tokens), tokens).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in stage.parameters())


@pytest.mark.parametrize("field", ["clamped", "parallel", "sinks", "scaled_rotary"])
def test_a_kind_of_layer_that_is_not_executed_is_refused(field):
    sizes = {"layers": 1, "hidden": 16, "heads": 2, "seq": 8}
    its = model_of(sizes | {"layer": {"gated_mlp": True, "positions": 0, field: True}})
    with pytest.raises(InputError, match="is simulated, but not executed"):
        Block(16, 2, None, its)


def kinds(name):
    """[(kind, its model)] of the kinds of layers without experts."""
    model = model_of(small(name))
    every = [(kind, model.of_kind(kind)) for kind in model.counts]
    return [(kind, its) for kind, its in every if not its.experts]


@pytest.mark.parametrize("name", MODELS)
def test_it_keeps_what_its_operations_save_and_the_norms_statistics(name):
    tokens = BATCH * SMALL["seq"]
    for _, its in kinds(name):
        block = Block(its.hidden, its.heads, None, its)
        saved = SavedActivations(block.parameters())
        with saved.saving((0, 0)):
            made = block(torch.randn(BATCH, SMALL["seq"], its.hidden, requires_grad=True))
        plan = sl.Plan(seq=SMALL["seq"], microbatch_size=BATCH, precision="fp32", dropout=False)
        operations = [op for op in layer_operations(its) if op.kind is OperationKind.NORM]
        # of each vector a root and, of a LayerNorm, a mean; vectors are tokens, or tokens' heads
        heads = 1 if its.qk_norm == "whole" else its.heads + its.kv_heads
        vectors = sum(
            heads if len(op.reads) > 1 and heads > 1 else len(op.reads) for op in operations
        )
        statistics = 4 * tokens * vectors * (1 + its.has_bias("norm"))
        mask = 4 * SMALL["seq"] ** 2 * (its.keys_met(SMALL["seq"]) < SMALL["seq"])
        table = sl.layer_table(its, plan)
        assert saved.bytes == table.kept_bytes + statistics + mask
        del made


@pytest.mark.parametrize("name", MODELS)
def test_it_computes_the_products_that_its_operations_say(name):
    for _, its in kinds(name):
        block = Block(its.hidden, its.heads, None, its)
        x = torch.randn(BATCH, SMALL["seq"], its.hidden)
        with FlopCounterMode(display=False) as counter:
            block(x)
        counted = counter.get_flop_counts()["Global"]
        others = "attention", "bmm", "convolution"  # a scan's are the latter two
        products = sum(n for kind, n in counted.items() if not any(o in str(kind) for o in others))
        wanted = (
            2
            * BATCH
            * SMALL["seq"]
            * sum(
                weight.numbers
                for operation in layer_operations(its)
                if operation.is_product
                for weight in operation.weights
                if weight.columns > 1
            )
        )
        assert products == wanted


# against plain arithmetic
# --------------------------------------------------------------------------------------------------


def norm(x, weight):
    return x / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight


def turned(x):
    """Each pair of a head as a complex number, turned."""
    half = x.shape[-1] // 2
    angles = torch.outer(
        torch.arange(x.shape[-2], dtype=torch.float64),
        10_000.0 ** (-torch.arange(half, dtype=torch.float64) / half),
    )
    numbers = torch.complex(x[..., :half], x[..., half:]) * torch.polar(
        torch.ones_like(angles), angles
    )
    return torch.cat([numbers.real, numbers.imag], -1)


def by_hand(x, block):
    """A Llama's layer, written down once more; its matrices taken out of those that are joined."""
    its, d = block.model, block.model.head_size
    shared = its.heads // its.kv_heads
    rows = block.qkv.weight.unflatten(0, (its.kv_heads, shared + 2, d))
    wq, wk, wv = (
        rows[:, :shared].flatten(0, 2),
        rows[:, -2].flatten(0, 1),
        rows[:, -1].flatten(0, 1),
    )
    normed = norm(x, block.norm1.weight)
    q, k, v = ((normed @ w.T).unflatten(-1, (-1, d)).transpose(1, 2) for w in (wq, wk, wv))
    q, k = turned(q), turned(k)
    k, v = (t.repeat_interleave(shared, 1) for t in (k, v))
    scores = q @ k.transpose(-1, -2) / math.sqrt(d)
    later = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
    weights = scores.masked_fill(later, -math.inf).softmax(-1)
    x = x + (weights @ v).transpose(1, 2).flatten(-2) @ block.out.weight.T
    gate, up = (norm(x, block.norm2.weight) @ block.up.weight.T).chunk(2, -1)
    return x + (gate * gate.sigmoid() * up) @ block.down.weight.T


def test_a_llamas_layer_is_what_one_writes_by_hand_and_so_are_its_gradients():
    its = model_of(small("llama-3-8b"))
    torch.manual_seed(1)
    block = Block(its.hidden, its.heads, None, its).double()
    x = torch.randn(BATCH, 16, its.hidden, dtype=torch.float64, requires_grad=True)
    parameters = [x, *block.parameters()]
    ours, theirs = block(x), by_hand(x, block)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    dy = torch.randn_like(ours)
    for one, other in zip(
        torch.autograd.grad(ours, parameters, dy), torch.autograd.grad(theirs, parameters, dy)
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("slides", [True, False])
def test_a_query_meets_the_keys_of_its_window_only(slides):
    its = sl.Model(
        layers=1, hidden=16, heads=2, vocab=256, bias=False, window=4, window_slides=slides
    )
    block = Block(16, 2, None, its).double()
    x = torch.randn(1, 12, 16, dtype=torch.float64, requires_grad=True)
    for at in range(12):
        (gradient,) = torch.autograd.grad(block(x)[0, at].sum(), x)
        met = gradient[0].abs().sum(-1).nonzero().flatten().tolist()
        first = max(0, at - 3) if slides else at // 4 * 4
        assert met == list(range(first, at + 1))


def test_functions_that_keep_little_have_the_gradients_of_torchs():
    x, y = (torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    ours = RMSNorm(8).double()
    torch.nn.init.normal_(ours.weight)
    torch.testing.assert_close(ours(x), functional.rms_norm(x, (8,), ours.weight, 1e-5))
    torch.testing.assert_close(gated(x, y), functional.silu(x) * y)
    where = torch.tensor([0, 5, 1000])
    for function in (ours, RMSNorm(0), lambda t: rotary(t, where, 6)):
        assert torch.autograd.gradcheck(function, (x,))
    assert torch.autograd.gradcheck(gated, (x, y))
    assert torch.equal(rotary(x, where, 6)[..., 6:], x[..., 6:])


def test_a_scan_is_the_recurrence_of_its_heads_states_token_by_token():
    """Each head's state fades, gets its step times x B', and is read along C; results and gradients."""
    model = sl.Model(
        layers=1, hidden=8, heads=1, vocab=8, bias=False, mixer="mamba", has_mlp=False,
        state_heads=4, state_head_size=3, state_groups=2, state_size=5, conv_size=4,
    )  # fmt: skip
    torch.manual_seed(1)
    scan, tokens = Scan(model).double(), 100
    for parameter in scan.parameters():
        torch.nn.init.normal_(parameter)
    read = [torch.randn(2, tokens, width).double().requires_grad_() for width in (12, 12 + 20, 4)]
    gate, mixed, steps = read
    padded = torch.cat([torch.zeros(2, 3, 32).double(), mixed], 1)
    taps = sum(scan.taps[:, n] * padded[:, n : n + tokens] for n in range(4)) + scan.tap_bias
    convolved = taps * taps.sigmoid()
    step = (1 + (steps + scan.step_bias).exp()).log()
    state, made = torch.zeros(2, 4, 3, 5).double(), []
    for t in range(tokens):
        x = convolved[:, t, :12].unflatten(-1, (4, 3))
        b, c = (convolved[:, t, at : at + 10].unflatten(-1, (2, 5)) for at in (12, 22))
        b, c = (its[:, [0, 0, 1, 1]] for its in (b, c))  # of each head's group
        fades = (-scan.decay.exp() * step[:, t]).exp()[..., None, None]
        state = fades * state + (step[:, t, :, None] * x).unsqueeze(-1) * b.unsqueeze(-2)
        made.append((state * c.unsqueeze(-2)).sum(-1) + scan.skip[:, None] * x)
    before = torch.stack(made, 1).flatten(-2) * gate * gate.sigmoid()
    parts = before.unflatten(-1, (2, 6))
    wanted = (parts / (parts.square().mean(-1, keepdim=True) + 1e-5).sqrt()).flatten(-2) * scan.norm
    found = scan(*read)
    torch.testing.assert_close(found, wanted)
    of = [*read, *scan.parameters()]
    dy = torch.randn_like(found)
    for ours, theirs in zip(*(torch.autograd.grad(y, of, dy) for y in (found, wanted))):
        torch.testing.assert_close(ours, theirs)

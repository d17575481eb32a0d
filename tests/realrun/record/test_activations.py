"""What autograd holds, counted: against sums of tensors known beforehand."""

import gc

import pytest
import torch
from torch import nn

from realrun.model.gpt import Stage, loss
from realrun.record.activations import SavedActivations, block_activations
from realrun.run.job import Job
from simlab.analysis import peak_memory
from simlab.schedules import generate
from simlab.spec.model import Model
from simlab.trace import ACTIVATIONS, Trace


def test_an_elementwise_product_saves_its_two_factors_until_the_backward():
    ledger = SavedActivations([])
    a, b = (torch.randn(10, dtype=torch.float64, requires_grad=True) for _ in range(2))
    with ledger.saving((0, 0)):
        product = a * b
    assert (ledger.live, ledger.bytes) == (1, 2 * 10 * 8)
    product.sum().backward()
    del product
    assert (ledger.live, ledger.bytes) == (0, 0)


def test_tensors_that_share_storage_are_counted_once_and_until_the_last_of_them_goes():
    ledger = SavedActivations([])
    base = torch.randn(4, 6, requires_grad=True)
    with ledger.saving((0, 0)):
        first = base[0] * base[1]  # saves two views of one storage
    with ledger.saving((0, 1)):
        second = base.view(-1) * 2.0 * base.t().reshape(-1).detach()
    assert first.grad_fn is not None and ledger.live == 2
    held = ledger.bytes
    assert held == 4 * 6 * 4 + 4 * 6 * 4  # base once, the transposed copy once
    del first
    gc.collect()
    assert (ledger.live, ledger.bytes) == (1, 4 * 6 * 4)
    del second
    gc.collect()
    assert (ledger.live, ledger.bytes) == (0, 0)


def test_parameters_and_the_steps_data_are_not_counted():
    layer = nn.Linear(5, 5, bias=False)
    ledger = SavedActivations(layer.parameters())
    tokens = torch.zeros(100, dtype=torch.int64)
    ledger.leave_out([tokens])
    x = torch.randn(3, 5, requires_grad=True)
    table = nn.Embedding(7, 5)
    with ledger.saving((0, 0)):
        layer(x).sum()  # saves x, since the weight needs a gradient, and the weight, since x does
        y = layer(x) + table(tokens[:3])
    assert ledger.bytes == 3 * 5 * 4
    del y


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stage_holds_what_its_formula_says_and_nothing_after_its_backward(dtype):
    """Per token a block saves inputs of two norms and four linears (4 h for the last), q, k and v,
    the gelu's input: 16 h.

    A few values per token more: the norms' mean and deviation, the attention's log-sum.
    """
    hidden, heads, seq, size, layers = 48, 4, 20, 3, 2
    stage = Stage({"layers": 2 * layers, "hidden": hidden, "heads": heads, "seq": seq}, 1, 3).to(
        dtype
    )
    layers = len(stage.blocks)
    ledger = SavedActivations(stage.parameters())
    x = torch.randn(size, seq, hidden, dtype=dtype, requires_grad=True)
    with ledger.saving((1, 7)):
        y = stage(x)
    values = ledger.bytes / (size * seq * dtype.itemsize)
    assert 16 * hidden * layers <= values <= (16 * hidden + 4 + heads) * layers
    y.backward(torch.ones_like(y))
    assert (ledger.live, ledger.bytes) == (0, 0)


def test_microbatches_are_told_apart_by_stage_and_number():
    stage = Stage({"layers": 1, "hidden": 8, "heads": 2, "seq": 4}, 0, 1)
    ledger = SavedActivations(stage.parameters())
    ledger.leave_out([tokens := torch.zeros(1, 4, dtype=torch.int64)])
    outputs = []
    for microbatch in range(3):
        with ledger.saving((0, microbatch)):
            outputs.append(loss(stage(tokens), tokens))
        assert ledger.live == microbatch + 1
    three = ledger.bytes
    outputs.pop(1).backward()
    assert ledger.live == 2 and 3 * ledger.bytes == 2 * three


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
def test_the_memory_estimate_of_a_job_grows_with_microbatches_as_what_autograd_holds_does(
    pools, tmp_path, schedule
):
    """The estimate that refuses a run before it starts, against bytes counted in runs (in fp32; the
    estimate is for fp64)."""
    model = {"layers": 4, "hidden": 64, "heads": 4, "seq": 32, "microbatch_size": 8}
    estimated, held = [], []
    for microbatches in (2, 8):
        text = str(generate(schedule, 2, microbatches))
        job = Job(
            programs={schedule: text},
            compute="real",
            sizes=model,
            steps=1,
            warmup=0,
            out=str(tmp_path),
        )
        estimated.append(job.model_bytes())
        held.append(2 * sum(peak_bytes(pools(2).run(job))))
    assert held[1] < estimated[1]
    assert estimated[1] - estimated[0] == pytest.approx(
        held[1] - held[0], rel=0.05, abs=0.01 * estimated[0]
    )


def peak_bytes(result):
    """[per rank] the most bytes of activations in the only step of the only program."""
    return peak_memory(
        Trace.load(f"{result['runs'][0]['folder']}/measured-step-0.json"), ACTIVATIONS
    )


@pytest.mark.parametrize(
    ("hidden", "heads", "batch", "seq"), [(64, 4, 1, 32), (96, 3, 2, 64), (128, 8, 4, 128)]
)
def test_one_block_holds_what_the_closed_form_says_and_the_norms_statistics(
    hidden, heads, batch, seq
):
    tensors = Model(layers=1, hidden=hidden, heads=heads, vocab=256).layer_activations(
        batch, seq, flash=True, dropout=False
    )
    statistics = tensors.pop("softmax statistics")  # fp32 anyway; the rest is given in 16 bits
    norms = 2 * 2 * 4 * batch * seq
    assert (
        block_activations(hidden, heads, batch=batch, seq=seq)
        == 2 * sum(tensors.values()) + statistics + norms
    )

"""Data parallelism and loss scaling on four processes: against one process and against DDP."""

from itertools import pairwise

import pytest
import torch
from realrun_ranks import on_ranks
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.comm.group import Group
from realrun.model.gpt import Stage, loss
from realrun.model.text import batch
from realrun.parallel.precision import LossScaler, MasterWeights
from simlab import Model, Plan
from simlab.collectives import ring_all_reduce
from simlab.errors import InputError

LIMIT = 1e-9
RANKS, STEPS, MICROBATCHES = 4, 20, 2  # microbatches of each rank in a step
SIZES = {"layers": 2, "hidden": 16, "heads": 2, "seq": 8}
BUCKETS = {"a bucket each": 1, "a few buckets": 20_000, "one bucket": 10**9}
PARAMETERS = Model(
    hidden=16, heads=2, layers=SIZES["layers"], seq=8, vocab=256, positions=8
).parameters
TENSORS = 12 * SIZES["layers"] + 5


# on every rank
# ----------------------------------------------------------------------------------------------


def gpt(dtype=torch.float64):
    """The whole model; the same weights on every rank."""
    return Stage(SIZES, 0, 1).to(dtype)


def samples(step, rank=None):
    """[(tokens, targets)] of the microbatches of `rank` in a step; of None: all ranks' at once, as
    one batch."""
    tokens, targets = batch(step, RANKS * MICROBATCHES, 2, SIZES["seq"])
    if rank is None:
        return [(tokens.flatten(0, 1), targets.flatten(0, 1))]
    return list(zip(tokens, targets))[rank * MICROBATCHES : (rank + 1) * MICROBATCHES]


def backwards(model, samples, scale=1.0):
    """The mean loss of `samples`, of which each has had its backward."""
    total = 0.0
    for tokens, targets in samples:
        part = loss(model(tokens), targets) / len(samples)
        (part * scale).backward()
        total += part.item()
    return total


def everyone(rank):
    """The group of all ranks."""
    return Group("dp", range(RANKS), rank)


class Seen(TorchDispatchMode):
    """Inside: [bytes] of the all-reduces that torch's dispatcher sees, ours and torch's own
    alike."""

    def __init__(self):
        super().__init__()
        self.sizes = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function._schema.name == "c10d::allreduce_":
            self.sizes.append(max(tensor.nbytes for tensor in args[0]))
        return function(*args, **(kwargs or {}))


def everything(rank):
    """{what: plain values} of this rank."""
    from realrun.comm.mesh import Mesh

    mesh = Mesh(Plan(dp=2, tp=2).layout, rank)
    groups = {name: mesh[name] for name in ("dp", "tp")}
    return {
        "one step": one_step(rank),
        "overlap": overlap(rank),
        "scaler": scaling(rank, groups),
        "mixed": {dtype: mixed_precision(rank, dtype) for dtype in ("fp16", "bf16", "fp32")},
    }


def parallel_forms(rank, *buckets):
    """(name, (model, what to call after the last backward, the context of the backwards before, its
    group) of each form"""
    from contextlib import nullcontext

    from torch.nn.parallel import DistributedDataParallel

    from realrun.parallel.naive.data import DataParallel, average_gradients

    model, group = gpt(), everyone(rank)
    yield "naive", model, lambda: average_gradients(model, group), nullcontext, group
    for name in buckets:
        parallel = DataParallel(bucketed := gpt(), everyone(rank), bucket_bytes=BUCKETS[name])
        yield name, bucketed, parallel.finish, parallel.no_sync, parallel.group
    ddp = DistributedDataParallel(gpt())
    yield "DDP", ddp, lambda: None, ddp.no_sync, None


def one_step(rank):
    """{form: gradient error and traffic of one step of two microbatches}"""
    from realrun.model.reference import gradient_error

    expected = gpt()
    backwards(expected, samples(0))
    expected = {name: p.grad for name, p in expected.named_parameters()}
    found = {}
    for name, model, finish, no_sync, group in parallel_forms(rank, *BUCKETS):
        ours = samples(0, rank)
        with Seen() as sent:
            with no_sync():
                backwards(model, ours[:1], scale=0.5)
            before = len(sent.sizes)
            backwards(model, ours[1:], scale=0.5)
            finish()
        found[name] = {
            "error": gradient_error(getattr(model, "module", model), expected),
            "sent": sent.sizes,
            "sent before the last": before,
            "counted": group and [(one.size_bytes, one.sent_bytes) for one in group.traffic],
        }
    return found


def overlap(rank):
    """What is on its way when a backward reaches the first block, and a second backward's
    message."""
    from realrun.parallel.naive.data import DataParallel

    model = gpt()
    parallel = DataParallel(model, everyone(rank), bucket_bytes=20_000)
    seen = []
    for block in model.blocks:
        block.register_full_backward_pre_hook(lambda *_: seen.append(len(parallel.issued)))
    backwards(model, samples(0, rank)[:1])
    answer = {
        "buckets": len(parallel.buckets),
        "at each block": list(seen),
        "issued": list(parallel.issued),
    }
    answer["sizes"] = [sum(p.nbytes for p in bucket) for bucket in parallel.buckets]
    order = {p: number for number, p in enumerate(model.parameters())}
    answer["order"] = [order[p] for bucket in parallel.buckets for p in bucket]
    try:
        backwards(model, samples(0, rank)[:1])
    except InputError as error:
        answer["message"] = str(error)
    parallel.finish()
    parallel.close()
    backwards(model, samples(0, rank)[:1])
    answer["after close"] = len(parallel.issued)
    return answer


def scaling(rank, groups):
    """Which ranks step when one of them overflows: [with both groups, with one, with none], and the
    scale after it."""
    found = []
    for of in (groups.values(), [groups["tp"]], []):
        scaler = LossScaler(of, scale=8.0)
        finite = scaler.unscale([torch.full((3,), float("inf") if rank == 3 else 16.0), None])
        found.append([finite, scaler.scale])
    return found


def mixed_precision(rank, dtype):
    """(mean losses, which steps were made, bytes reduced, sum of a master weight) of training in
    `dtype`."""
    from realrun.parallel.naive.data import DataParallel

    weights = MasterWeights(
        gpt(torch.float32),
        dtype,
        lambda parameters: torch.optim.Adam(parameters, lr=3e-3, fused=True),
    )
    parallel = DataParallel(weights.module, group := everyone(rank))
    scaler = LossScaler([group], scale=2.0**20) if dtype == "fp16" else None
    stepped, losses = [], []
    for number in range(STEPS):
        losses.append(
            backwards(
                weights.module, samples(number, rank)[:1], scale=scaler.scale if scaler else 1.0
            )
        )
        parallel.finish()
        stepped.append(weights.step(scaler=scaler))
    mean = everyone(rank).all_reduce(torch.tensor(losses, dtype=torch.float64)).wait() / RANKS
    return (
        mean.tolist(),
        stepped,
        sum(one.size_bytes for one in group.traffic),
        weights.masters[0].sum().item(),
    )


@pytest.fixture(scope="module")
def answers():
    return on_ranks(RANKS, everything)


# data parallelism
# -------------------------------------------------------------------------------------------

FORMS = ["naive", *BUCKETS]


@pytest.mark.parametrize("form", [*FORMS, "DDP"])
def test_gradients_of_four_ranks_are_those_of_one_process_with_the_whole_batch(answers, form):
    assert max(answer["one step"][form]["error"] for answer in answers) <= LIMIT


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_those_of_ddp_and_of_the_closed_form_however_they_are_cut(answers, form):
    """2(n-1)/n of the gradients per rank, as a ring; and as the rounds of simlab's ring add up
    to."""
    step = answers[1]["one step"]
    buffers, sent = zip(*step[form]["counted"])
    assert sum(buffers) == sum(step[form]["sent"]) == sum(step["DDP"]["sent"]) == 8 * PARAMETERS
    assert sum(sent) == pytest.approx(2 * (RANKS - 1) / RANKS * 8 * PARAMETERS, rel=1e-12)
    rounds = ring_all_reduce(range(RANKS), 8 * PARAMETERS)
    by_rank = [
        sum(t.size_bytes for transfers in rounds for t in transfers if t.source == rank)
        for rank in range(RANKS)
    ]
    assert by_rank == pytest.approx([sum(sent)] * RANKS, rel=1e-12)
    assert len(buffers) == len(step[form]["sent"])


def test_the_naive_form_makes_a_call_for_each_parameter_and_buckets_fewer(answers):
    calls = {form: len(answers[0]["one step"][form]["sent"]) for form in FORMS}
    assert calls["naive"] == calls["a bucket each"] == TENSORS
    assert calls["one bucket"] == 1
    assert 1 < calls["a few buckets"] < TENSORS


@pytest.mark.parametrize("form", [*BUCKETS, "DDP"])
def test_microbatches_but_the_last_send_nothing(answers, form):
    assert {answer["one step"][form]["sent before the last"] for answer in answers} == {0}


def test_buckets_go_out_in_reverse_order_while_the_backward_runs(answers):
    for answer in answers:
        overlap = answer["overlap"]
        assert overlap["order"] == list(range(TENSORS))[::-1]
        assert overlap["issued"] == list(range(overlap["buckets"]))  # all of them, before `finish`
        assert overlap["at each block"][0] >= 1  # the head's, before the last block's backward
        assert all(a < b for a, b in pairwise(overlap["at each block"]))
        assert all(size <= 20_000 for size in overlap["sizes"] if size != 256 * 16 * 8)


def test_a_second_backward_without_no_sync_is_refused(answers):
    assert all(
        answer["overlap"]["message"].startswith("a second backward before finish()")
        for answer in answers
    )


def test_after_close_a_backward_sends_nothing(answers):
    assert all(answer["overlap"]["after close"] == 0 for answer in answers)


@pytest.mark.parametrize("size", [0, -1, float("nan")])
def test_a_bucket_of_no_size_is_refused(size):
    from realrun.parallel.naive.data import DataParallel

    with pytest.raises(InputError, match="bucket_bytes = "):
        DataParallel(gpt(), None, bucket_bytes=size)


# mixed precision
# --------------------------------------------------------------------------------------------


def test_an_overflow_on_one_rank_is_known_on_all_ranks_of_the_groups_given(answers):
    both, one, none = zip(*(answer["scaler"] for answer in answers))
    assert both == ([False, 4.0],) * 4
    # rank 3 and its tp neighbour
    assert one == ([True, 8.0], [True, 8.0], [False, 4.0], [False, 4.0])
    assert none == ([True, 8.0],) * 3 + ([False, 4.0],)  # the others would step without it


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_sixteen_bits_with_fp32_masters_train_as_fp32_does_on_half_the_bytes(answers, dtype):
    for answer in answers:
        losses, stepped, size, _ = answer["mixed"][dtype]
        full, _, full_size, _ = answer["mixed"]["fp32"]
        made = stepped.count(True)
        if dtype == "bf16":  # its steps see the same data
            assert losses == pytest.approx(full, rel=0.01)
        assert losses[0] - losses[-1] > 0.7 * (full[0] - full[made - 1])
        flags = 4 * STEPS if dtype == "fp16" else 0
        assert 2 * (size - flags) == full_size == 4 * PARAMETERS * STEPS
    assert len({answer["mixed"][dtype][3] for answer in answers}) == 1

"""Data parallelism, clipping and loss scaling on four processes: against one process, against DDP
and against torch's own arithmetic."""

from itertools import pairwise

import pytest
import torch
from realrun_processes import on_ranks
from realrun_training import (
    MICROBATCHES,
    RANKS,
    SIZES,
    STEPS,
    Seen,
    adam,
    backwards,
    counted,
    distance,
    everyone,
    gpt,
    mean_over_ranks,
    samples,
    train_alone,
)  # fmt: skip

from realrun.parallel.clipping import clip
from realrun.parallel.precision import LossScaler, MasterWeights
from simlab import Model, Plan
from simlab.collectives import ring_all_reduce
from simlab.errors import InputError

LIMIT = 1e-9
BUCKETS = {"a bucket each": 1, "a few buckets": 20_000, "one bucket": 10**9}
PARAMETERS = Model(
    hidden=16, heads=2, layers=SIZES["layers"], seq=8, vocab=256, positions=8
).parameters
TENSORS = 12 * SIZES["layers"] + 5


# on every rank
# ----------------------------------------------------------------------------------------------


def everything(rank):
    """{what: plain values} of this rank."""
    from realrun.comm.mesh import Mesh

    mesh = Mesh(Plan(dp=2, tp=2).layout, rank)
    groups = {name: mesh[name] for name in ("dp", "tp")}
    return {
        "one step": one_step(rank),
        "training": training(rank),
        "overlap": overlap(rank),
        "clipping": clipping(rank, groups),
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
            before = len(sent.collectives)
            backwards(model, ours[1:], scale=0.5)
            finish()
        found[name] = {
            "error": gradient_error(getattr(model, "module", model), expected),
            "sent": [pair for pair in sent.collectives if pair[0] == "all_reduce"],
            "sent before the last": before,
            "counted": group and counted(group),
        }
    return found


def training(rank):
    """{form: (error of losses, error of weights)} after STEPS steps, against one process."""
    expected_losses, expected = train_alone()
    found = {}
    for name, model, finish, no_sync, _ in parallel_forms(rank, "a few buckets"):
        optimizer = adam(model.parameters())
        losses = []
        for number in range(STEPS):
            *most, last = samples(number, rank)
            with no_sync():
                value = backwards(model, most, scale=1 / MICROBATCHES)
            value += backwards(model, [last], scale=1 / MICROBATCHES)
            finish()
            losses.append(value / MICROBATCHES)
            optimizer.step()
            optimizer.zero_grad()
        losses = mean_over_ranks(losses)
        of_losses = max(abs(a / b - 1) for a, b in zip(losses, expected_losses))
        found[name] = of_losses, distance(model.parameters(), expected.parameters()), losses
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
    model.zero_grad()
    # the only one: as of a model of which a part is not used
    model.head.weight.grad = torch.full_like(model.head.weight, rank)
    parallel.finish()
    answer["unused"] = [
        model.head.weight.grad.mean().item(),
        model.embed.weight.grad.abs().max().item(),
    ]
    parallel.close()
    backwards(model, samples(0, rank)[:1])
    answer["after close"] = len(parallel.issued)
    return answer


def clipping(rank, groups):
    """A 2 x 2 mesh, each of whose ranks holds gradients in four ways, against torch's clipping of
    the whole in one process."""
    generator = torch.Generator().manual_seed(7)
    whole = {
        name: torch.randn(8, generator=generator, dtype=torch.float64)
        for name in ("both", "tp", "dp", "neither")
    }
    d, t = rank // 2, rank % 2
    held = {
        "both": whole["both"][2 * rank :][:2],
        "tp": whole["tp"][4 * t :][:4],
        "dp": whole["dp"][4 * d :][:4],
        "neither": whole["neither"],
    }
    held = {name: part.clone() for name, part in held.items()}
    sharded = {"both": ("dp", "tp"), "tp": ("tp",), "dp": ("dp",), "neither": ()}
    oracle = [torch.nn.Parameter(torch.zeros(8, dtype=torch.float64)) for _ in whole]
    for parameter, gradient in zip(oracle, whole.values()):
        parameter.grad = gradient.clone()
    expected = torch.nn.utils.clip_grad_norm_(oracle, 1.5)
    alone = torch.cat(list(held.values())).norm().item()
    parts = [
        ([None, held[name]] if rank else [held[name]], [groups[one] for one in sharded[name]])
        for name in whole
    ]
    for group in groups.values():
        group.traffic.clear()
    norm = clip(parts, 1.5)
    clipped = dict(zip(whole, (parameter.grad for parameter in oracle)))
    want = {
        "both": clipped["both"][2 * rank :][:2],
        "tp": clipped["tp"][4 * t :][:4],
        "dp": clipped["dp"][4 * d :][:4],
    }
    return {
        "error": abs(norm / expected - 1).item(),
        "gradients": distance(held.values(), [*want.values(), clipped["neither"]]),
        "alone": alone,
        "calls": [
            [sent.dimension for sent in group.traffic].count(name) for name, group in groups.items()
        ],
        "small": clip([([torch.ones(4)], [])], 3.0).item(),
        "nothing here": clip(
            [([torch.full((4,), 3.0)] if rank == 0 else [], groups.values())], 1.0
        ).item(),
    }


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

    weights = MasterWeights(gpt(torch.float32), dtype, adam)
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
    return (
        mean_over_ranks(losses),
        stepped,
        counted(group)[1]["all_reduce"],
        weights.masters[0].sum().item(),
    )


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    return on_ranks(RANKS, everything, folder=tmp_path_factory.mktemp("data"))


# data parallelism
# -------------------------------------------------------------------------------------------

FORMS = ["naive", *BUCKETS]


@pytest.mark.parametrize("form", [*FORMS, "DDP"])
def test_gradients_of_four_ranks_are_those_of_one_process_with_the_whole_batch(answers, form):
    assert max(answer["one step"][form]["error"] for answer in answers) <= LIMIT


@pytest.mark.parametrize("form", ["naive", "a few buckets", "DDP"])
def test_twenty_steps_stay_together_with_one_process(answers, form):
    for answer in answers:
        of_losses, of_weights, losses = answer["training"][form]
        assert of_losses <= LIMIT and of_weights <= LIMIT
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("form", FORMS)
def test_the_bytes_are_those_of_ddp_and_of_the_closed_form_however_they_are_cut(answers, form):
    """2(n-1)/n of the gradients per rank, as a ring; and as the rounds of simlab's ring add up
    to."""
    step = answers[1]["one step"]
    calls, buffers, volumes = step[form]["counted"]
    assert buffers == {"all_reduce": 8 * PARAMETERS}
    assert (
        sum(size for _, size in step[form]["sent"])
        == sum(size for _, size in step["DDP"]["sent"])
        == 8 * PARAMETERS
    )
    assert volumes["all_reduce"] == pytest.approx(
        2 * (RANKS - 1) / RANKS * 8 * PARAMETERS, rel=1e-12
    )
    rounds = ring_all_reduce(range(RANKS), 8 * PARAMETERS)
    by_rank = [
        sum(t.size_bytes for transfers in rounds for t in transfers if t.source == rank)
        for rank in range(RANKS)
    ]
    assert by_rank == pytest.approx([volumes["all_reduce"]] * RANKS, rel=1e-12)
    assert calls["all_reduce"] == len(step[form]["sent"])


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


def test_a_parameter_that_no_rank_used_counts_as_zero(answers):
    assert all(answer["overlap"]["unused"] == [1.5, 0.0] for answer in answers)


def test_after_close_a_backward_sends_nothing(answers):
    assert all(answer["overlap"]["after close"] == 0 for answer in answers)


@pytest.mark.parametrize("size", [0, -1, float("nan")])
def test_a_bucket_of_no_size_is_refused(size):
    from realrun.parallel.naive.data import DataParallel

    with pytest.raises(InputError, match="bucket_bytes = "):
        DataParallel(gpt(), None, bucket_bytes=size)


# clipping
# ---------------------------------------------------------------------------------------------------


def test_the_global_norm_counts_each_gradient_once_however_it_is_sharded_or_replicated(answers):
    for answer in answers:
        assert answer["clipping"]["error"] <= 1e-12
        assert answer["clipping"]["gradients"] <= 1e-12


def test_norms_of_what_each_rank_holds_differ(answers):
    """The naive form would scale each rank's gradients by another factor."""
    assert len({answer["clipping"]["alone"] for answer in answers}) == RANKS


def test_a_norm_takes_one_call_for_each_group(answers):
    assert all(answer["clipping"]["calls"] == [1, 1] for answer in answers)


def test_gradients_below_the_limit_stay_and_a_rank_may_hold_none(answers):
    assert all(answer["clipping"]["small"] == 2 for answer in answers)
    assert all(answer["clipping"]["nothing here"] == 6 for answer in answers)


@pytest.mark.parametrize("limit", [0, -1.0, float("nan")])
def test_a_limit_that_is_no_norm_is_refused(limit):
    with pytest.raises(InputError, match="clipping at "):
        clip([([torch.ones(1)], [])], limit)


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


def test_a_scale_that_is_too_large_is_halved_until_it_fits(answers):
    """All ranks skip the same steps, the first ones."""
    (stepped,) = {tuple(answer["mixed"]["fp16"][1]) for answer in answers}
    skipped = stepped.count(False)
    assert 1 <= skipped <= 12
    assert stepped == (False,) * skipped + (True,) * (STEPS - skipped)


def test_the_scale_moves_as_torchs_grad_scaler_does():
    options = {"growth_factor": 3.0, "backoff_factor": 0.25, "growth_interval": 3}
    theirs = torch.amp.GradScaler("cpu", init_scale=64.0, **options)
    ours = LossScaler(scale=64.0, growth=3.0, backoff=0.25, interval=3)
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.0)
    for broken in [0, 0, 0, 1, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1]:
        gradient = torch.tensor([float("nan") if broken else 5.0, 1.0])
        theirs.scale(torch.ones(()))  # it wants to have been used
        parameter.grad = gradient.clone()
        theirs.step(optimizer)
        theirs.update()
        scale = ours.scale
        assert ours.unscale([gradient]) == (not broken)
        assert broken or gradient[0] == 5.0 / scale
        assert ours.scale == theirs.get_scale()

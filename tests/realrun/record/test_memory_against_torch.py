"""Predicted memory against what torch's MemTracker reads in the step itself: DDP and FSDP2, no GPU,
up to 64 ranks."""

from dataclasses import replace

import pytest
import torch
from realrun_memory import measured, measured_first_stage, measured_loss
from torch.distributed._tools.mem_tracker import MemTracker

import simlab as sl
from realrun.model.gpt import VOCAB, Stage, loss
from realrun.record.activations import SavedActivations
from simlab import Model, data_parallel_memory
from simlab.lowering.build import program_of
from simlab.memory.schemes import NumberBytes, Resident
from simlab.memory.step import StepWalk
from simlab.memory.units.backward import UnitBackward
from simlab.memory.units.sizes import UnitSizes

WORLDS = (1, 2, 4, 8, 16, 32, 64)
SIZES = {"hidden": 48, "heads": 4, "layers": 3, "seq": 32}  # 48 rows on 32 ranks and 64: padding
SCHEMES = {
    "ddp": {"sharding": "ddp"},
    "ddp-view": {"sharding": "ddp", "as_view": True},
    "fsdp": {"sharding": "fsdp", "reshard": True},
    "fsdp-keep": {"sharding": "fsdp", "reshard": False},
    "fsdp-default": {"sharding": "fsdp", "reshard": None},
}
SCALARS = 16  # bytes: the loss, its weight, its gradient


def predicted(ranks, batch, sharding, as_view=False, reshard=True, tied=False, sums_in_place=False):
    """Of the same step as `measured`; sums of gradients as under MemTracker, which is a dispatch
    mode."""
    model = Model(**SIZES, vocab=VOCAB, positions=SIZES["seq"], tied_head=tied)
    return data_parallel_memory(
        model, ranks, microbatch_size=batch, sharding=sharding, gradient_as_bucket_view=as_view, reshard_after_forward=reshard,
        sums_in_place=sums_in_place,
    )  # fmt: skip


def within(prediction, measurement, *, rel):
    """The categories that are further off than that: {category: (predicted, measured)}."""
    pairs = {
        category: (size, measurement.get(category, 0)) for category, size in prediction.items()
    }
    return {
        category: pair
        for category, pair in pairs.items()
        if pair[0] != pytest.approx(pair[1], rel=rel, abs=SCALARS)
    }


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("scheme", ["ddp", "ddp-view", "fsdp", "fsdp-keep"])
def test_each_category_is_within_two_percent_at_the_peak_and_at_its_own(scheme, ranks):
    ours = predicted(ranks, 2, **SCHEMES[scheme])
    torchs = measured(SIZES, ranks, 2, **SCHEMES[scheme])
    assert not within(ours.peak.held, torchs.peak, rel=0.02)
    assert not within(ours.largest, torchs.largest, rel=0.02)
    assert ours.peak.total == pytest.approx(sum(torchs.peak.values()), rel=0.002)
    assert ours.peak.op.split()[0] == torchs.phase


@pytest.mark.parametrize("batch", [1, 16])
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("tied", [False, True])
def test_all_but_the_optimizers_counters_is_right_to_the_byte(scheme, batch, tied):
    """Whether states make the peak or activations do."""
    ours = predicted(4, batch, tied=tied, **SCHEMES[scheme])
    torchs = measured(SIZES, 4, batch, tied=tied, **SCHEMES[scheme])
    counters = 4 * (12 * SIZES["layers"] + 5 - tied)  # Adam's steps: one number per tensor
    for prediction, measurement in ((ours.peak.held, torchs.peak), (ours.largest, torchs.largest)):
        assert not within(
            prediction | {"optimizer": prediction["optimizer"] + counters}, measurement, rel=0
        )


def plan_memory(sizes, ranks, batch, **fields):
    """{category: bytes} at the peak of a predicted step of the same GPT under a `Plan`."""
    model = Model(**sizes, vocab=VOCAB, positions=sizes["seq"])
    plan = sl.Plan(dp=ranks, microbatch_size=batch, seq=sizes["seq"], library="torch", **fields)
    node = replace(sl.load_cluster("dgx-h100"), gpus_per_node=min(8, ranks))
    return sl.predict(model, plan, replace(node, nodes=max(1, ranks // 8))).memory_bytes


def assert_within_three_percent(prediction, tracker):
    """In all, and each state that is held at the peak."""
    total = sum(tracker.peak.values())
    assert sum(prediction.values()) == pytest.approx(total, rel=0.03)
    for state in ("parameters", "gradients", "optimizer"):
        torchs = tracker.peak.get(state, 0)
        assert prediction[state] == pytest.approx(torchs, rel=0.03, abs=0.03 * total)
    activations = tracker.peak["activations"] + tracker.peak["inputs"]
    assert prediction["activations"] == pytest.approx(activations, rel=0.03, abs=0.03 * total)


@pytest.mark.parametrize("ranks", WORLDS)
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_predicted_plan_holds_what_fsdp2_holds(precision, reshard, ranks):
    ours = plan_memory(SIZES, ranks, 2, zero=3, reshard=reshard, precision=precision)
    torchs = measured(SIZES, ranks, 2, "fsdp", reshard=reshard, bf16=precision == "bf16")
    assert_within_three_percent(ours, torchs)


@pytest.mark.parametrize("ranks", WORLDS[1:])
def test_a_predicted_plan_holds_what_ddp_holds(ranks):
    """On one rank a plan has nobody to reduce gradients with, so no buckets."""
    ours = plan_memory(SIZES, ranks, 2, precision="fp32")
    assert_within_three_percent(ours, measured(SIZES, ranks, 2, "ddp"))
    whole = 4 * Model(**SIZES, vocab=VOCAB, positions=SIZES["seq"]).parameters
    alone = plan_memory(SIZES, 1, 2, precision="fp32")
    assert sum(ours.values()) - sum(alone.values()) == pytest.approx(whole)


@pytest.mark.parametrize("ranks", [8, 64])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_predicted_plan_holds_what_fsdp2_holds_of_layers_as_wide_as_a_7b_models(
    precision, reshard, ranks
):
    wide = {"hidden": 4096, "heads": 32, "layers": 4, "seq": 1024}
    ours = plan_memory(wide, ranks, 1, zero=3, reshard=reshard, precision=precision)
    bf16 = precision == "bf16"
    torchs = measured(wide, ranks, 1, "fsdp", reshard=reshard, bf16=bf16, fake=True)
    assert_within_three_percent(ours, torchs)


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("reshard", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_stage_of_torchs_pipelines_keeps_whole_gradients_until_its_last_backward(
    precision, reshard, ranks
):
    wide = {"hidden": 512, "heads": 8, "layers": 6, "seq": 256}
    model = Model(**wide, vocab=VOCAB, positions=wide["seq"])
    plan = sl.Plan(
        dp=ranks,
        pp=2,
        microbatches=4,
        zero=3,
        reshard=reshard,
        precision=precision,
        library="torch",
    )
    program = program_of(plan)
    ours = StepWalk(model, plan, program, plan.layers_of_stages(model.layers)).peak(0)
    ops = [(op.kind, op.microbatch) for op in program.ranks[0]]
    torchs = measured_first_stage(wide, ranks, ops, reshard=reshard, bf16=precision == "bf16")
    assert sum(ours.values()) == pytest.approx(sum(torchs.peak.values()), rel=0.02)
    assert ours["unsharded_gradients"] >= 4 * 3 * 12 * wide["hidden"] ** 2  # fp32, three layers


@pytest.mark.parametrize("tp", [1, 2])
def test_a_loss_over_a_cut_vocabulary_takes_one_more_copy_of_the_logits(tp):
    """In numbers of the logits in fp32: those that are kept, and what its backward makes beside."""
    sizes = {"hidden": 8, "heads": 2, "layers": 1, "seq": 512}
    plan = sl.Plan(tp=tp, seq=sizes["seq"], library="torch", precision="fp32")
    of = UnitSizes(Model(**sizes, vocab=8192, positions=sizes["seq"]), plan, 4, 4)
    phase = UnitBackward(of=of, scheme=Resident(NumberBytes(*[4.0] * 5)), kind="B").phase("loss")
    assert of.loss + phase.peak == pytest.approx(measured_loss(sizes["seq"], 8192, tp), rel=0.01)


@pytest.mark.parametrize("ranks", [1, 64])
def test_fake_tensors_read_the_same(ranks):
    fake, real = (measured(SIZES, ranks, 2, "fsdp", fake=fake) for fake in (True, False))
    assert (fake.peak, fake.largest, fake.phase) == (real.peak, real.largest, real.phase)


def test_what_the_tracker_itself_adds_is_never_at_the_peak():
    """Autograd adds gradients in place, yet not while a dispatch mode looks on; the comparisons
    above are with the latter."""

    def sums():
        model, tokens = Stage(SIZES, 0, 1), torch.zeros(1, SIZES["seq"], dtype=torch.int64)
        value = loss(model(tokens), tokens)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            value.backward()
        return {event.name for event in profile.events()} & {"aten::add", "aten::add_"}

    alone = sums()
    with MemTracker():
        watched = sums()
    assert (alone, watched) == ({"aten::add_"}, {"aten::add"})
    for scheme in SCHEMES.values():
        assert predicted(4, 2, **scheme).peak == predicted(4, 2, sums_in_place=True, **scheme).peak


def test_peaks_are_reached_in_different_parts_of_the_step():
    """Or the comparisons above would say little: the walk has to be right everywhere."""
    peaks = [
        predicted(ranks, batch, **scheme).peak
        for ranks in (1, 4)
        for batch in (1, 16)
        for scheme in SCHEMES.values()
    ]
    parts = {peak.op.split()[0] for peak in peaks}
    assert parts == {"forward", "backward", "optimizer"}


def test_activations_are_what_autograd_saves():
    """Another oracle: sizes of the tensors that autograd keeps, when the forward is over."""
    model = Stage(SIZES, 0, 1)
    tokens, targets = torch.zeros(2, 3, SIZES["seq"], dtype=torch.int64)
    ledger = SavedActivations(model.parameters())
    ledger.leave_out([tokens, targets])
    with ledger.saving((0, 0)):
        value = loss(model(tokens), targets)
    assert value.requires_grad
    (begin,) = (moment for moment in predicted(1, 3, "ddp").moments if moment.op == "backward head")
    assert begin.held["activations"] == pytest.approx(ledger.bytes, abs=SCALARS)

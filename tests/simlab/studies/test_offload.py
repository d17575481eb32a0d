"""Offloaded optimizer states: the simulated step against what can be added up by hand."""

from dataclasses import replace

import pytest
from plan_oracles import nothing_is_slowed

import simlab as sl
from simlab.errors import InputError
from simlab.studies.offload import OVERLAPS, offload_step
from simlab.training import HOST_ADAM_S

MODEL = sl.load_model("llama-7b")
ONE = replace(sl.load_cluster("dgx-h100"), gpus_per_node=1, nics_per_node=1)
P = MODEL.parameters


def plan(microbatches=1, **options):
    return sl.Plan(microbatches=microbatches, microbatch_size=4, recompute="full", **options)


@pytest.mark.parametrize("microbatches", [1, 3, 16])
def test_without_overlap_it_is_the_sum_of_its_parts_and_what_predict_says(microbatches):
    step = offload_step(MODEL, plan(microbatches), ONE, overlap="none")
    moved_s = P * (4 + 2) / ONE.pcie_bytes_per_s
    assert step.step_s == pytest.approx(step.busy_s.compute + moved_s + P * HOST_ADAM_S)
    assert step.exposed_s == pytest.approx(moved_s + P * HOST_ADAM_S)
    predicted = sl.predict(MODEL, plan(microbatches, offload="optimizer"), ONE)
    assert step.step_s == pytest.approx(predicted.step_s, rel=0.001)


@pytest.mark.parametrize("to", ["host", "nvme"])
@pytest.mark.parametrize("microbatches", [1, 4, 8, 32])
def test_more_overlap_is_never_slower_and_no_stream_does_more_than_a_step(to, microbatches):
    steps = [
        offload_step(MODEL, plan(microbatches), ONE, to=to, overlap=overlap) for overlap in OVERLAPS
    ]
    assert [step.step_s for step in steps] == sorted((step.step_s for step in steps), reverse=True)
    for step in steps:
        assert max(step.busy_s) <= step.step_s * (1 + 1e-9)
        assert step.busy_s == pytest.approx(steps[0].busy_s)


def test_delayed_the_slowest_stream_sets_the_step_until_the_update_fits_beside_the_computing():
    small, large = (offload_step(MODEL, plan(m), ONE, overlap="delayed") for m in (1, 32))
    assert small.step_s == pytest.approx(small.busy_s.host, rel=1e-6)
    assert large.step_s == pytest.approx(large.busy_s.compute, rel=1e-6)
    drive = offload_step(MODEL, plan(1), ONE, to="nvme", overlap="delayed")
    assert drive.step_s == pytest.approx(drive.busy_s.nvme, rel=0.01)
    # states read and written
    assert drive.busy_s.nvme == pytest.approx(2 * 12 * P / ONE.nvme_bytes_per_s)


def test_a_faster_link_helps_only_as_far_as_the_link_is_what_waits():
    fast = replace(ONE, pcie_bytes_per_s=1e15)
    assert offload_step(MODEL, plan(), fast, overlap="none").exposed_s == pytest.approx(
        P * HOST_ADAM_S, rel=1e-3
    )
    slow = offload_step(MODEL, plan(), replace(ONE, pcie_bytes_per_s=1e9))
    assert slow.exposed_s > P * 4 / 1e9


def test_zero_1_shares_the_update_and_the_moving_out():
    cluster = sl.load_cluster("dgx-h100")
    alone = offload_step(MODEL, plan(dp=8), cluster)
    shared = offload_step(MODEL, plan(dp=8, zero=1), cluster)
    for stream in ("pcie_out", "host", "pcie_in"):
        assert getattr(alone.busy_s, stream) == pytest.approx(8 * getattr(shared.busy_s, stream))
    assert shared.busy_s.dp > 0


@pytest.mark.parametrize(("zero", "parts"), [(0, 8), (1, 1)])
def test_a_nodes_gpus_share_its_host_and_its_drives(zero, parts):
    cluster, shared = sl.load_cluster("dgx-h100"), plan(dp=8, zero=zero)
    step = offload_step(MODEL, shared, cluster, to="nvme", overlap="none")
    # each GPU has an eighth of the parameters to update, or all
    assert step.busy_s.host == pytest.approx(parts * P * HOST_ADAM_S)
    assert step.busy_s.nvme == pytest.approx(parts * 2 * 12 * P / cluster.nvme_bytes_per_s)
    shared = replace(shared, offload="optimizer")
    predicted = sl.predict(MODEL, shared, cluster)
    spans = sl.layer_trace(MODEL, shared, cluster).spans
    norm_s = sum(span.end_s - span.start_s for span in spans if span.op.startswith("norm"))
    assert predicted.optimizer_s == pytest.approx(step.busy_s.host + norm_s)


@nothing_is_slowed()  # `offload_step` says that its reductions slow nothing
def test_of_eight_gpus_that_update_everything_the_host_is_what_waits_in_a_prediction_too():
    cluster = sl.load_cluster("dgx-h100")
    step = offload_step(MODEL, plan(dp=8), cluster, overlap="none")
    predicted = sl.predict(MODEL, plan(dp=8, offload="optimizer"), cluster)
    assert step.step_s == pytest.approx(predicted.step_s, rel=0.001)


@pytest.mark.parametrize(("precision", "state_bytes"), [("bf16", 12), ("fp32", 8)])
def test_states_on_a_drive_are_as_large_as_the_precision_makes_them(precision, state_bytes):
    host, drive = (
        sl.predict(
            MODEL, plan(offload="optimizer", offload_to=to, precision=precision), ONE
        ).offload_s
        for to in ("host", "nvme")
    )
    assert drive - host == pytest.approx(2 * state_bytes * P / ONE.nvme_bytes_per_s)
    step = offload_step(MODEL, plan(precision=precision), ONE, to="nvme")
    assert step.busy_s.nvme == pytest.approx(drive - host)


def test_every_byte_that_goes_out_is_a_gradient_and_comes_back_as_a_parameter():
    trace = offload_step(MODEL, plan(), ONE, overlap="none").trace
    moved = {
        stream: sum(span.bytes for span in trace.spans if span.stream == stream)
        for stream in ("pcie out", "pcie in")
    }
    # two steps
    assert moved["pcie out"] == pytest.approx(2 * 4 * P) and moved["pcie in"] == pytest.approx(
        2 * 2 * P
    )
    assert all(0 <= span.start_s <= span.end_s for span in trace.spans)


@pytest.mark.parametrize(
    ("change", "options", "words"),
    [({}, {"to": "tape"}, "host, nvme"), ({}, {"overlap": "all"}, "delayed"), ({"dp": 8, "zero": 3}, {}, "zero = 3"),
     ({"tp": 2}, {}, "dp alone"), ({"offload": "optimizer"}, {}, "leave it out")],
)  # fmt: skip
def test_what_cannot_be_is_said(change, options, words):
    with pytest.raises(InputError, match=words):
        offload_step(MODEL, replace(plan(), **change), ONE, **options)

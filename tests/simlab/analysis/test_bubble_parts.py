"""Why a pipeline idles: warm-up and drain, unequal stages, transfers; and the sentence that says it."""

import re

import pytest

import simlab as sl
from simlab.analysis import bubble_parts, busy_s, idle_s, warm_up_form
from simlab.cli.main import main

TIMES = sl.OpTimes(forward_s=1.0, backward_s=2.0)


def parts(program, times=TIMES, link=None):
    trace = sl.simulate(program, times, link=link)
    free_s = sl.simulate(program, times).step_s
    return bubble_parts(busy_s(trace), trace.step_s, free_s), trace


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_equal_stages_idle_for_warm_up_and_drain_by_the_closed_form(schedule):
    found, _ = parts(sl.generate(schedule, 4, 16))
    assert found[:3] == pytest.approx((3 * (1 + 2), 0, 0))
    assert found.warm_up_s / (16 * 3) == pytest.approx(3 / 16)


def test_a_slow_stage_is_named_with_how_much_longer_it_takes():
    """Three stages of 1 and one of 2: all wait for it, 16 x 3 s x (2 - 1.25)."""
    found, trace = parts(sl.generate("1f1b", 4, 16), TIMES.weighted([1.0, 1.0, 2.0, 1.0]))
    assert (found.slowest, found.longer) == (2, pytest.approx(2 / 1.25 - 1))
    assert found.unequal_s == pytest.approx(16 * (found.longer * sum(busy_s(trace)) / 4 / 16))
    assert "unequal stages" in found.text(trace.step_s)
    assert "pipeline rank 2 takes 60.0% longer than the mean" in found.text(trace.step_s)


def test_transfers_are_what_the_step_would_be_shorter_without_them():
    found, trace = parts(sl.generate("1f1b", 4, 16), link=sl.Link(latency_s=0.5))
    free, _ = parts(sl.generate("1f1b", 4, 16))
    assert found.messages_s == pytest.approx(trace.step_s - 16 * 3 - 3 * 3)
    assert found.warm_up_s == pytest.approx(free.warm_up_s)


@pytest.mark.parametrize("link", [None, sl.Link(latency_s=0.3)])
@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "interleaved-1f1b", "dualpipe", "zb-v"])
def test_the_parts_add_up_to_the_idle_time(schedule, link):
    times = sl.OpTimes(forward_s=1.0, backward_s=2.0, input_grad_s=1.2, weight_grad_s=0.8)
    program = sl.generate(schedule, 4, 8)
    work = [1.0 + stage % 3 for stage in range(program.stages)]
    found, trace = parts(program, times.weighted(work), link)
    assert sum(found[:3]) == pytest.approx(sum(idle_s(trace)) / 4)


@pytest.mark.parametrize(("schedule", "options", "form"), [
    ("1f1b", {}, "(p - 1) / m = 3 / 16"), ("gpipe", {}, "(p - 1) / m = 3 / 16"),
    ("interleaved-1f1b", {"chunks": 3}, "(p - 1) / (m v) = 3 / 48"), ("zb-h1", {}, ""), ("zb-v", {}, ""),
])  # fmt: skip
def test_the_closed_form_is_said_where_it_holds(schedule, options, form):
    assert warm_up_form(sl.generate(schedule, 4, 16, **options)) == form


def test_a_prediction_says_why_its_pipeline_idles(capsys):
    model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100", nodes=1)
    its = sl.predict(model, sl.Plan(dp=2, pp=4, microbatches=16), cluster)
    spent = its.waterfall_s
    assert sum(its.bubble_parts[:2]) == pytest.approx(spent.bubble)
    assert its.bubble_parts.slowest == 3 and its.to_dict()["bubble_parts"]["slowest"] == 3
    text = " ".join(its.summary().split())
    found = re.search(r"pipeline idle ([\d.]+)% of the step: ([^\n]*?) the step's time", text)
    assert float(found[1]) == pytest.approx(100 * (spent.bubble + spent.pp) / its.step_s, abs=0.06)
    assert "(p - 1) / m = 3 / 16" in found[2] and "pipeline rank 3 takes" in found[2]
    assert "pipeline idle" not in sl.predict(model, sl.Plan(dp=8), cluster).summary()
    given = "--forward-ms 10 --backward-ms 20 --pp 4 --microbatches 8 --schedule 1f1b"
    assert main(["simulate", *given.split()]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "idle time 27.3% of the step: warm-up and drain 27.3% (for equal stages" in said

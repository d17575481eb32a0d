"""A step layer by layer: one rank for many against all of them, against the step op by op, and what must hold of any trace."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracles import cluster_of, steps

from simlab.engine import run_tasks
from simlab.errors import DeadlockError
from simlab.model import Model
from simlab.plan import Plan
from simlab.refinement import REPLICAS, Refinement, Task
from simlab.training import layer_trace, predict

FEW = settings(max_examples=15)
GPT = Model(name="GPT", layers=8, hidden=2048, heads=16, vocab=32000, positions=1024, seq=1024)


def refined(model, plan, cluster, collapsed=True):
    """(`Refinement`, its `TaskTimes`, the `Prediction` of the same step)"""
    found = predict(model, plan, cluster)
    whole = Refinement(model, plan, cluster, found.program, collapsed=collapsed)
    return whole, run_tasks(whole.tasks), found


def ends_of_ranks(whole, times):
    """{rank: [(op, name, stream, end) of each of its tasks]}"""
    its = defaultdict(list)
    for task, end_s in zip(whole.tasks, times.ends):
        for rank in task.ranks:
            its[rank].append((task.op, task.name, task.stream.split()[0], end_s))
    return {rank: sorted(tasks) for rank, tasks in its.items()}


def until_the_optimizer(prediction):
    """Seconds of the part of a step that is refined."""
    return prediction.step_s - prediction.before_s - prediction.optimizer_s - prediction.offload_s


# one for many ---------------------------------------------------------------------------------------------


@FEW
@given(steps(widths=(64, 512)))
def test_one_rank_of_each_stage_stands_for_all(step):
    """Every task of a representative ends when the same task ends on each rank that it stands for."""
    model, plan, cluster = step
    few, few_times, found = refined(*step)
    every = Refinement(model, plan, cluster, found.program, collapsed=False)
    every_times = run_tasks(every.tasks)
    assert few.ranks == plan.pp and every.ranks == plan.gpus
    of_few, of_every = ends_of_ranks(few, few_times), ends_of_ranks(every, every_times)
    for (_, _, p, _), rank in every.number.items():
        assert of_every[rank] == of_few[p]
    assert every_times.end_s == pytest.approx(few_times.end_s, rel=1e-12)


# layer by layer, op by op ---------------------------------------------------------------------------------


@FEW
@given(steps(zeros=(0, 1, 2), dp_overlap=False))
def test_without_overlap_of_gradients_layers_take_exactly_what_their_ops_take(step):
    _, times, found = refined(*step)
    assert times.end_s == pytest.approx(until_the_optimizer(found), rel=1e-9)


@FEW
@given(steps(zeros=(0, 1), seqs=(1024, 4096), dp_overlap=True, microbatch_size=4, microbatches=12))
def test_with_it_they_differ_by_when_gradients_are_ready(step):
    """Op by op, a stage's gradients become ready evenly and are reduced in buckets; layer by layer, each layer's at once, when it ends."""
    _, times, found = refined(*step)
    assert times.end_s == pytest.approx(until_the_optimizer(found), rel=0.03)


@FEW
@given(steps(zeros=(0, 1), dp_overlap=True))
def test_and_never_by_more_than_a_layer_and_its_reduction(step):
    whole, times, found = refined(*step)
    pieces = [t.seconds for t in whole.tasks if t.stream == "dp"]
    layer_s = whole.cost.layer.backward.total + whole.cost.head.backward.total + whole.cost.embedding.backward.total
    latencies_s = whole.cost.reduce_s(1) * len([t for t in whole.tasks if t.stream == "dp" and 0 in t.ranks])
    slack_s = layer_s + 2 * max(pieces, default=0.0) + latencies_s
    assert abs(times.end_s - until_the_optimizer(found)) <= slack_s * (1 + 1e-9)


@FEW
@given(steps(zeros=(2, 3)))
def test_sharded_parameters_are_gathered_before_each_unit_and_gradients_scattered_after_it(step):
    """The embedding and the head are units as layers are. Op by op, what is exposed is an estimate: the two may differ by a quarter."""
    _, plan, _ = step
    whole, times, found = refined(*step)
    assert times.end_s == pytest.approx(until_the_optimizer(found), rel=0.25)
    kinds = Counter(task.name.split()[-1] for task in whole.tasks if task.stream == "dp" and task.op)
    ends = whole.program.stages - 1
    forwards = [op.stage for ops in whole.program.ranks for op in ops if op.kind == "F"]
    units_run = sum(whole.layers[stage] + (stage == 0) + (stage == ends) for stage in forwards)
    assert kinds["gather"] == (2 * units_run if plan.zero == 3 and plan.dp * plan.cp > 1 else 0)
    assert kinds["scatter"] == (units_run if plan.dp * plan.cp > 1 else 0)


def test_replicas_of_shards_reduce_every_layers_gradients():
    plan = Plan(dp=8, zero=3, hybrid=4, microbatches=2)
    for overlap in (True, False):
        for hybrid in (1, 4):
            whole, times, found = refined(GPT, replace(plan, dp_overlap=overlap, hybrid=hybrid), cluster_of(8))
            reduced = sum(t.size_bytes for t in whole.tasks if t.name.endswith("gradients") and t.stream in ("dp", REPLICAS))
            assert reduced == pytest.approx(GPT.parameters * plan.gradient_bytes)
            if hybrid == 1:
                assert times.end_s == pytest.approx(until_the_optimizer(found), rel=0.05)


def test_the_heads_gradients_are_reduced_first_and_the_embeddings_last():
    model = replace(GPT, tied_head=False)
    whole = Refinement(model, Plan(dp=2), cluster_of(2), predict(model, Plan(dp=2), cluster_of(2)).program)
    assert [task.name for task in whole.tasks if task.stream == "dp"] == [
        "head gradients", *(f"layer {layer} gradients" for layer in range(7, -1, -1)), "embedding gradients"
    ]  # fmt: skip


@pytest.mark.parametrize("schedule, times_summed", [("1f1b", 2), ("interleaved-1f1b", 2), ("zb-v", 0)])
def test_a_tied_heads_gradient_is_added_to_the_embeddings_where_they_are_apart(schedule, times_summed):
    model, plan = replace(GPT, tied_head=True), Plan(dp=2, pp=2, microbatches=4, schedule=schedule)
    whole, times, found = refined(model, plan, cluster_of(4), collapsed=False)
    assert sum(task.name == "tied head" for task in whole.tasks) == times_summed
    assert times.end_s == pytest.approx(until_the_optimizer(found), rel=0.05)


# what must hold of any step -------------------------------------------------------------------------------


@FEW
@given(steps(widths=(64, 512)), st.booleans())
def test_every_task_runs_once_after_what_it_needs_and_streams_never_overlap_themselves(step, collapsed):
    whole, times, _ = refined(*step, collapsed)
    assert len(times.starts) == len(times.ends) == len(whole.tasks)
    streams = defaultdict(list)
    for task, start_s, end_s in zip(whole.tasks, times.starts, times.ends):
        assert end_s == pytest.approx(start_s + task.seconds, rel=1e-12) and task.seconds >= 0
        assert all(times.ends[need] <= start_s for need in task.needs)
        for rank in task.ranks:
            streams[rank, task.stream].append((start_s, end_s))
    for its in streams.values():
        assert all(before[1] <= after[0] for before, after in pairwise(its))
    for rank in range(whole.ranks):
        spans = streams[rank, "compute"]
        busy_s = sum(end_s - start_s for start_s, end_s in spans)
        idle_s = sum(after[0] - before[1] for before, after in pairwise([(0.0, 0.0), *spans, (times.end_s,) * 2]))
        assert busy_s + idle_s == pytest.approx(times.end_s, rel=1e-9) and idle_s >= 0


@FEW
@given(steps(widths=(64,)))
def test_each_op_has_all_its_layers_in_order(step):
    whole, _, found = refined(*step)
    layers = defaultdict(list)
    for task in whole.tasks:
        if task.stream == "compute" and task.name.startswith("layer") and int(task.name.split()[1]) not in layers[task.op]:
            layers[task.op].append(int(task.name.split()[1]))
    ops = {str(op): op for row in found.program.ranks for op in row}
    assert set(layers) == set(ops)
    for text, op in ops.items():
        assert layers[text] == sorted(range(whole.layers[op.stage]), reverse=op.kind != "F")


@FEW
@given(steps(widths=(64,), seqs=(256,)), st.booleans())
def test_what_is_sent_is_received(step, collapsed):
    model, plan, cluster = step
    trace = layer_trace(model, plan, cluster, collapsed=collapsed)
    sent, received = Counter(), Counter()
    for span in trace.messages():
        sent[span.rank] += span.bytes
        received[span.peer] += span.bytes
    assert sum(sent.values()) == sum(received.values()) and not set(sent) ^ set(received)
    stages = plan.stages
    copies = 1 if collapsed else plan.dp * plan.tp * plan.cp
    turns = 1 if plan.schedule == "zb-v" else 0  # the bottom of the V stays on its rank
    crossings = (stages - 1 - turns) if plan.pp > 1 else 0
    size = plan.microbatch_size * model.seq // plan.cp * model.hidden * 2 // plan.tp
    assert sum(sent.values()) == 2 * crossings * plan.microbatches * copies * size
    members = Counter((span.stream, span.op, span.start_s, span.end_s, span.bytes) for span in trace.spans if span.stream in ("tp", "cp"))
    if not collapsed:
        assert all(count % {"tp": plan.tp, "cp": plan.cp}[stream] == 0 for (stream, *_), count in members.items())


@FEW
@given(steps(widths=(64,)))
def test_one_step_has_one_trace(step):
    assert layer_trace(*step) == layer_trace(*step)


# tasks ----------------------------------------------------------------------------------------------------


def test_tasks_hold_a_stream_of_all_their_ranks_and_wait_for_what_they_need():
    tasks = [
        Task("a", "", "compute", (0,), 2.0, ()), Task("b", "", "compute", (1,), 3.0, ()), Task("sum", "", "tp", (0, 1), 1.0, (0, 1)),
        Task("c", "", "compute", (0,), 5.0, ()), Task("d", "", "compute", (1,), 1.0, (2,)), Task("other", "", "tp", (0,), 1.0, ()),
    ]  # fmt: skip
    times = run_tasks(tasks)
    assert list(times.starts) == [0, 0, 3, 2, 4, 4] and list(times.ends) == [2, 3, 4, 7, 5, 5]
    assert times.end_s == 7 and run_tasks([]).end_s == 0


def test_tasks_that_wait_for_each_other_are_named():
    tasks = [Task("first", "0F0", "compute", (0,), 1.0, (1,)), Task("second", "0F0", "compute", (0,), 1.0, ())]
    with pytest.raises(DeadlockError, match="2 of 2 tasks never start, first 0F0 'first' on compute"):
        run_tasks(tasks)

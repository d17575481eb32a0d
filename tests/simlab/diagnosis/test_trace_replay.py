"""A replay with other times of ops is what a new simulation with those times gives."""

from dataclasses import replace
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.diagnosis import diagnose, straggler, time_spent, trace_graph
from simlab.diagnosis.graph import Graph, Need, Work
from simlab.schedules import SCHEDULES
from simlab.trace import MESSAGE

TIMES = st.floats(0.001, 0.1)
NAMES = sorted(set(SCHEDULES) - {"dualpipe", "dualpipe-v", "zb-auto", "afab"})


class Given:
    """The times of one rank's ops, op by op."""

    def __init__(self, seconds):
        self.seconds = seconds

    def op_s(self, op, ready_s, start_s):
        return self.seconds[op]


@st.composite
def steps(draw):
    """(program, {op: seconds}, the link)."""
    ranks = 2 * draw(st.integers(1, 2))
    name = draw(st.sampled_from(NAMES))
    program = sl.generate(name, ranks, 2 * ranks)
    seconds = {op: draw(TIMES) for ops in program.ranks for op in ops}
    link = sl.Link(
        latency_s=draw(st.sampled_from([0.0, 0.004])),
        bandwidth_bytes_per_s=draw(st.sampled_from([float("inf"), 100.0])),
        overhead_s=draw(st.sampled_from([0.0, 0.002])),
    )
    return program, seconds, link


def simulated(program, seconds, link, gap_s=0.0):
    clocks = [Given(seconds) for _ in program.ranks]
    return sl.simulate(program, clocks, link=link, message_bytes=1, op_gap_s=gap_s)


def op_number(graph, op):
    (number,) = (
        at for at, work in enumerate(graph.works) if work.part == "compute" and work.name == str(op)
    )
    return number


@given(steps(), st.data(), st.sampled_from([0.0, 0.5, 1.5]), st.sampled_from([0.0, 0.001]))
def test_a_replay_with_one_op_changed_is_a_new_simulation(step, data, scale, gap_s):
    program, seconds, link = step
    op = data.draw(st.sampled_from(sorted(seconds)))
    graph = trace_graph(simulated(program, seconds, link, gap_s))
    again = simulated(program, seconds | {op: scale * seconds[op]}, link, gap_s)
    replay = graph.replay({op_number(graph, op): scale * seconds[op]})
    assert replay.step_s == pytest.approx(again.step_s, rel=1e-9)
    for span in again.compute():
        assert replay.starts_s[op_number(graph, span.op_text)] - min(
            replay.starts_s
        ) == pytest.approx(span.start_s, abs=1e-9)


@given(steps())
def test_the_parts_of_each_rank_and_of_the_critical_path_add_up_to_the_step(step):
    trace = simulated(*step)
    graph = trace_graph(trace)
    assert graph.step_s == pytest.approx(trace.step_s)
    busy = sl.busy_s(trace)
    for rank, spent in enumerate(time_spent(graph)):
        assert spent.total == pytest.approx(trace.step_s)
        assert spent.compute == pytest.approx(busy[rank])
    links = graph.critical_path()
    assert sum(link.seconds + link.lag_s for link in links) == pytest.approx(trace.step_s)


@given(steps())
def test_a_faster_op_saves_at_most_its_own_time_and_nothing_off_the_critical_path(step):
    program, seconds, link = step
    trace = simulated(program, seconds, link)
    graph = trace_graph(trace)
    on_path = {link.number for link in graph.critical_path()}
    slack = [at for at, work in enumerate(graph.works) if at not in on_path and work.own_s]
    for at, work in enumerate(graph.works):
        if not work.own_s:
            continue
        saved_s = graph.saved_s(lambda one, it=work: one is it, 0.0)
        assert -1e-9 <= saved_s <= work.own_s + 1e-9
        if at in slack:
            assert saved_s == pytest.approx(0, abs=1e-9)


def test_a_chain_by_hand():
    """Two ops of 1 s on a rank; the second also needs a message of 3 s: the step is 1 + 3 + 1."""
    works = [
        Work(0, "compute", "a", "F", 0, 1, 1),
        Work(0, "pp", "a", "message", 1, 4, 3, (Need(0),)),
        Work(0, "compute", "b", "F", 4, 5, 1, (Need(0), Need(1))),
    ]
    graph = Graph.of(works, 1)
    assert graph.replay().step_s == 5
    assert graph.replay({1: 0.5}).step_s == 2.5
    assert [link.seconds for link in graph.critical_path()] == [1, 3, 1]
    assert list(accumulate(link.lag_s for link in graph.critical_path()))[-1] == 0


def test_needs_in_a_circle_are_refused():
    works = [
        Work(0, "compute", name, "F", 0, 1, 1, (Need(1 - at),)) for at, name in enumerate("ab")
    ]
    with pytest.raises(sl.InputError, match="circle"):
        Graph.of(works, 1)


def slow(rank, times, ranks=4):
    program = sl.generate("1f1b", ranks, 8)
    seconds = {
        op: 0.01 * (1 if op.kind == "F" else 2) * (times if at == rank else 1)
        for at, ops in enumerate(program.ranks)
        for op in ops
    }
    return trace_graph(simulated(program, seconds, sl.Link()))


@pytest.mark.parametrize("rank", range(3))
def test_a_slow_rank_is_the_straggler(rank):
    found = straggler(slow(rank, 1.5))
    assert (found.rank, found.cause) == (rank, "gpu")
    assert found.slower == pytest.approx(1.5)
    assert found.saved_s == pytest.approx(slow(rank, 1.5).step_s - slow(rank, 1.0).step_s)


def test_equal_ranks_have_no_straggler():
    assert straggler(slow(0, 1.0)) is None


def test_whole_ops_do_not_tell_a_slow_last_gpu_from_the_loss():
    found = straggler(slow(3, 1.5))
    assert (found.rank, found.cause) == (3, "unknown")


def test_layers_tell_that_the_last_stage_is_slow_by_its_loss_alone():
    model, cluster = sl.load_model("gpt2"), sl.load_cluster("dgx-a100", nodes=1)
    plan = sl.Plan(dp=2, pp=4, microbatches=8, stage_layers="even")
    trace = sl.layer_trace(model, plan, cluster)
    found = straggler(trace_graph(trace))
    assert (found.rank, found.cause) == (3, "loss")
    assert diagnose(trace_graph(trace)).spent.compute > 0


@pytest.mark.parametrize("chunks", [1, 3])
def test_a_message_that_a_busy_receiver_took_late_is_not_what_made_the_step_long(chunks):
    schedule = "1f1b" if chunks == 1 else "interleaved-1f1b"
    plan = sl.Plan(pp=2, microbatches=6, microbatch_size=8, schedule=schedule, chunks=chunks)
    simulated = sl.layer_trace("gpt2", plan, "dgx-a100")
    starts_s = {}
    for span in simulated.compute():
        key = span.rank, span.stage, span.microbatch, span.op_kind
        starts_s[key] = min(span.start_s, starts_s.get(key, span.start_s))

    def taken(span):
        if span.kind != MESSAGE:
            return span
        to = span.stage + (1 if span.op_kind == "F" else -1)
        return span._replace(end_s=starts_s[span.peer, to, span.microbatch, span.op_kind])

    spans = [taken(span) for span in simulated.spans]
    metadata = simulated.metadata | {"source": "measured"}
    measured = sl.Trace(spans, simulated.memory, metadata)
    assert max(a.end_s - b.end_s for a, b in zip(spans, simulated.spans)) > 0.1 * measured.step_s
    known, found = (diagnose(trace_graph(trace)) for trace in (simulated, measured))
    ours, theirs = ({one.part: one.seconds for one in its.critical_path} for its in (known, found))
    assert found.savings[0].what == known.savings[0].what == "compute B"
    for part in ("compute", "pp"):
        assert theirs[part] == pytest.approx(ours[part], abs=0.02 * found.step_s)


def test_communication_within_the_ops_of_a_prediction_is_no_compute():
    cluster = sl.load_cluster("dgx-h100", nodes=2)
    slow = replace(cluster.inter, bandwidth_bytes_per_s=1e9)
    cluster = replace(cluster, inter=slow)
    plan = sl.Plan(tp=16, microbatches=2, sequence_parallel=True)
    step = sl.predict(replace(sl.load_model("llama-3-8b"), heads=32, kv_heads=32), plan, cluster)
    told = diagnose(trace_graph(sl.Trace.from_json(step.trace.to_json())))
    (parts,) = step.spent
    assert told.spent.exposed["tp"] == pytest.approx(parts.tp)
    assert told.spent.compute == pytest.approx(parts.compute + parts.host)
    assert told.spent.total == pytest.approx(step.step_s)
    assert told.bottleneck == "communication" and parts.tp > parts.compute
    assert "--perfetto" in str(told)

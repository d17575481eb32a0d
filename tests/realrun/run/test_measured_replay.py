"""Measured steps are replayed, with nothing changed, with faster backwards and op by op.

Nothing here depends on how fast or how busy the machine is. That a replay predicts the gain that is
measured with faster ops is what `make bench-replay` holds."""

import pytest

from benchmarks.bench_replay import measured
from simlab.diagnosis import diagnose, trace_graph
from simlab.diagnosis.graph import Graph


@pytest.fixture(scope="module")
def steps(pools, tmp_path_factory):
    """The traces of three steps, on whatever else the machine does."""
    return measured(pools(4), tmp_path_factory.mktemp("steps"), 0.004, forward_s=0.002, steps=3)


def is_backward(work):
    return work.kind == "B" and work.part == "compute"


def test_a_replay_with_nothing_changed_is_the_measured_step(steps):
    for trace in steps:
        graph = trace_graph(trace)
        assert graph.replay().step_s == pytest.approx(trace.step_s)
        assert diagnose(graph).spent.total == pytest.approx(trace.step_s)


def test_an_op_saves_at_most_what_it_is_shortened_by_and_nothing_off_the_critical_path(steps):
    graph = trace_graph(steps[-1])
    path = {link.number for link in graph.critical_path()}
    ops = [number for number, work in enumerate(graph.works) if work.part == "compute"]
    assert len(ops) == 4 * 2 * 8 and 11 <= len(path.intersection(ops)) < len(ops)
    for number in ops:
        work = graph.works[number]
        saved_s = graph.saved_s(lambda one, it=work: one is it, 0.5)
        assert -1e-9 <= saved_s <= 0.5 * work.own_s + 1e-9
        if number not in path:
            assert saved_s == pytest.approx(0, abs=1e-9)


def test_faster_backwards_save_their_part_of_the_critical_path_or_less_and_slower_ones_take_it_back(
    steps,
):
    for trace in steps:
        graph = trace_graph(trace)
        saved_s = graph.saved_s(is_backward)
        on_path_s = sum(
            graph.works[link.number].own_s
            for link in graph.critical_path()
            if is_backward(graph.works[link.number])
        )
        assert 0 < saved_s <= 0.5 * on_path_s + 1e-9
        faster = replayed(graph, is_backward, 0.5)
        assert faster.step_s == pytest.approx(trace.step_s - saved_s)
        assert faster.saved_s(is_backward, 2.0) == pytest.approx(-saved_s)


def replayed(graph, chosen, scale):
    """The graph of the step that a replay gives, as if that step had been measured."""
    own_s = [scale * work.own_s if chosen(work) else work.own_s for work in graph.works]
    replay = graph.replay(dict(enumerate(own_s)))
    works = [
        work._replace(start_s=start_s, end_s=end_s, own_s=its_s)
        for work, start_s, end_s, its_s in zip(graph.works, replay.starts_s, replay.ends_s, own_s)
    ]
    return Graph.of(works, graph.ranks)

"""A measured step is replayed with faster ops: what that predicts is what is measured with them."""

from statistics import median

import pytest

from realrun.run.job import Job
from realrun.run.job.pipelines import program_texts
from simlab.diagnosis import diagnose, trace_graph
from simlab.schedules import generate
from simlab.trace import Trace

pytestmark = pytest.mark.alone
STEPS = 10
SIZES = {"hidden": 32, "heads": 2, "seq": 16, "microbatch_size": 1}
CLOSE = 0.03


def measured(pool, folder, backward_s):
    """The traces of ten steps of 1F1B on four ranks, whose backwards are padded to `backward_s`."""
    job = Job(
        programs=program_texts([generate("1f1b", 4, 8)]),
        compute="padded",
        forward_s=0.02,
        backward_s=backward_s,
        steps=STEPS,
        sizes=SIZES,
        check=False,
        out=str(folder),
    )
    (result,) = pool.run(job)["runs"]
    return [Trace.load(f"{result['folder']}/measured-step-{step}.json") for step in range(STEPS)]


def test_a_replay_with_faster_backwards_predicts_the_measured_gain(pools, tmp_path):
    slow = measured(pools(4), tmp_path / "slow", 0.06)
    fast = measured(pools(4), tmp_path / "fast", 0.03)
    took_s = {
        name: median(span.end_s - span.start_s for trace in traces for span in trace.compute() if span.kind == "B")
        for name, traces in (("slow", slow), ("fast", fast))
    }  # fmt: skip
    predicted_s = []
    for trace in slow:
        graph = trace_graph(trace)
        scale = took_s["fast"] / took_s["slow"]
        predicted_s.append(graph.saved_s(lambda work: work.kind == "B", scale))
        assert graph.replay().step_s == pytest.approx(trace.step_s)
        assert diagnose(graph).spent.total == pytest.approx(trace.step_s)
    gained_s = median(trace.step_s for trace in slow) - median(trace.step_s for trace in fast)
    assert gained_s > 0
    assert median(predicted_s) == pytest.approx(gained_s, rel=CLOSE)

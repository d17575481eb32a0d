"""What lesson 4 asks about collectives and data parallelism: predictions, exercises, figures."""

from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lessons.subjects.collectives import rounds, scaling

REMEDIES = Choice("overlap", "buckets", "topology", "inside")
PREDICTIONS = [
    Prediction("b03", {"size": Number("KiB")}),
    Prediction("b03.change", {"size": Number("KiB")}),
    Prediction("w03", {"factor": Number("x")}),
    Prediction("w03.change", {"gib": Number("GiB")}),
    Prediction("t1", {"times": Number("x")}),
    Prediction("t1.change", {"times": Number("x")}),
    Prediction("w06", {"left": Number("ms")}),
    Prediction("w06.change", {"times": Number("x")}),
    Prediction("d08", {"least": REMEDIES}),
    Prediction("d08.change", {"best": REMEDIES}),
    Prediction("d10", {"strong": Number("%")}),
    Prediction("d10.change", {"strong": Number("%")}),
    Prediction("d23", {"times": Number("x")}),
    Prediction("d23.change", {"times": Number("x")}),
]

EXERCISES = [*rounds.EXERCISES, *scaling.EXERCISES]

FIGURES = {
    "b03": {"crossing_kib": Figure(448, 0.05)},
    "b03.change": {"size_kib": Figure(1392, 0.05)},
    "w03": {"growth_8_to_256": Figure(1.1384, 0.001)},
    "t1": {"star_over_ring": Figure(64, 0.01)},
    "w06": {"zero3_over_dp": Figure(1.5, 1e-6)},
    "w06.change": {"times": Figure(4.0, 0.05)},
    "d08": {"placement_saved_ms": Figure(15.5, 0.02)},
    "d10": {"strong": Figure(0.570), "weak": Figure(0.930)},
    "d10.change": {"strong": Figure(0.841)},
    "d23": {"less_with_a_cube": Figure(7.0, 1e-6)},
}

TRIES = {
    "b03.follow_ups.1": """\
import simlab as sl
from simlab.engine.fabric import network_of
from simlab.engine.network import run_rounds

network = network_of(sl.load_cluster("dgx-a100", nodes=2))
nearest_first = [int(f"{rank:04b}"[::-1], 2) for rank in range(16)]  # 0, 8, 4, 12, ...
seconds = []
for ranks in (range(16), nearest_first):
    rounds = sl.all_reduce_rounds("halving-doubling", ranks, 2**30)
    seconds.append(run_rounds([rounds], network)[0])
print(f"farthest first {seconds[0] * 1e3:.1f} ms, nearest first {seconds[1] * 1e3:.1f} ms")
assert seconds[1] < seconds[0] / 3
""",
    "w06.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100", nodes=4)
slow = replace(cluster, inter=replace(cluster.inter, bandwidth_bytes_per_s=50e9 / 8))
step_s, states = {}, {}
for shards in (32, 8):
    plan = sl.Plan(dp=32, zero=3, hybrid=shards, microbatches=4)
    step = sl.predict(model, plan, slow)
    step_s[shards] = step.step_s
    states[shards] = sum(step.memory_bytes[part] for part in ("parameters", "gradients", "optimizer"))
    print(f"sharded over {shards}: {step.step_s:.1f} s, states {states[shards] / 2**30:.1f} GiB")
assert abs(states[8] / states[32] - 4) < 0.01 and step_s[8] < 0.75 * step_s[32]
""",
    "d08.follow_ups.1": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100", nodes=4)
plan = sl.Plan(dp=4, tp=8, order="tp-cp-dp-pp", microbatch_size=1)
step_s = {}
for mib in (1, 4, 16, 64, 128, 256, 1024, 4096):
    step_s[mib] = sl.predict(model, replace(plan, bucket_bytes=mib * 2**20), cluster).step_s
    print(f"{mib} MiB: {step_s[mib] * 1e3:.0f} ms")
assert 16 < min(step_s, key=step_s.get) < 1024
""",
}
"""{key of a follow-up: what its cell runs}"""

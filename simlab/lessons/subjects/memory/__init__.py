"""Lesson 3: memory, and ZeRO (w01, w02, w04, w05, w09, w07, d11)."""

from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lessons.subjects.memory import kept, room, sharding

MEASURES = ("tp8", "pp4", "zero1", "sequence_parallel", "full", "offload")
PREDICTIONS = [
    Prediction("w01", {"years": Number("years"), "gpus": Number("GPUs"), "share": Number("%")}),
    Prediction("w01.change", {"share": Number("%")}),
    Prediction("w02", {"ratio": Number("x"), "largest": Choice("optimizer", "activations")}),
    Prediction("w02.change", {"largest": Choice("optimizer", "activations")}),
    Prediction("w04", {"states": Number("GB"), "activations": Number("GiB")}),
    Prediction("w04.change", {"states": Number("GB"), "copies": Number("")}),
    Prediction("w05", {f"stage{zero}": Number("x") for zero in (1, 2, 3)}),
    Prediction("w05.change", {f"stage{zero}": Number("x") for zero in (1, 2, 3)}),
    Prediction(
        "w09",
        {
            "selective_left": Number("%"),
            "selective_longer": Number("%"),
            "full_left": Number("%"),
            "full_longer": Number("%"),
        },
    ),
    Prediction("w09.change", {"selective": Number("%"), "per_op": Number("%")}),
    Prediction("w07", {"times": Number("x"), "tokens": Number("tokens")}),
    Prediction(
        "w07.change",
        {"fits": Choice("optimizer", "parameters", "neither"), "times": Number("x")},
    ),
    Prediction("d11", {"first": Choice(*MEASURES)}),
    Prediction("d11.change", {"reserved": Number("x")}),
]

EXERCISES = [*sharding.EXERCISES, *kept.EXERCISES, *room.EXERCISES]

FIGURES = {
    "w01": {
        "closed_years": Figure(57.9),
        "years": Figure(45.1),
        "gpus": Figure(1.93),
        "zero3_percent": Figure(68.4),
        "zero1_percent": Figure(54.6),
        "latency_percent": Figure(80.0),
    },
    "w02": {"ratio": Figure(6, 0), "activations_gib": Figure(40.0)},
    "w04": {
        "states_gb": Figure(1.867),
        "plain_gb": Figure(119.5),
        "activations_gib": Figure(36.9),
    },
    "w05": {
        "stage1": Figure(1, 1e-6),
        "stage2": Figure(1, 1e-6),
        "stage3": Figure(1.5, 1e-6),
        "fp32_stage1": Figure(0.75, 1e-6),
        "fp32_stage3": Figure(1, 1e-6),
        "longer_of_1": Figure(1.087),
        "longer_of_4": Figure(1.021),
        "fewest_3": Figure(14, 0),
    },
    "w09": {
        "selective_left": Figure(30.4),
        "selective_longer": Figure(2.72),
        "full_left": Figure(2.6),
        "full_longer": Figure(35.0),
    },
    "w07": {
        "times": Figure(3.32),
        "tokens": Figure(25553),
        "host_s": Figure(1.887),
        "pcie_s": Figure(0.428),
    },
    "d11": {
        "states_gib": Figure(25.4),
        "first_fit_gib": Figure(46.5),
        "zero1_gib": Figure(81.6),
        "sequence_parallel_last_gib": Figure(9.12),
        "growing": Figure(1.454),
    },
}
TRIES = {
    "w01.follow_ups.2": """\
from dataclasses import replace
import simlab as sl

model, cluster = sl.load_model("llama-7b"), sl.load_cluster("dgx-h100", nodes=128)
faster = replace(cluster.inter, bandwidth_bytes_per_s=2 * cluster.inter.bandwidth_bytes_per_s)
plan, share = sl.Plan(dp=1024, zero=3), {}
for name, one, where in (
    ("as it is", plan, cluster),
    ("twice the bandwidth", plan, replace(cluster, inter=faster)),
    ("sharded in the node", replace(plan, hybrid=8), cluster),
):
    step = sl.predict(model, one, where)
    share[name] = step.exposed_s["dp"] / step.step_s
    print(f"{name}: {share[name]:.0%}")
assert share["sharded in the node"] < 0.6 * share["twice the bandwidth"]
""",
    "w02.follow_ups.3": """\
import simlab as sl

model, cluster = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")
largest = []
for seq in (1024, 4096, 16384, 65536):  # change them
    held = sl.predict(model, sl.Plan(dp=8, seq=seq), cluster).memory_bytes
    largest.append(max(held, key=held.get))
    print(seq, largest[-1])
assert largest[0] == "optimizer" and largest[-1] == "activations"
""",
    "w04.follow_ups.2": """\
import simlab as sl

Ψ = sl.load_model("megatron-7.5b").parameters
states = {n: sl.model_states(Ψ, n, zero=3).total / 1e9 for n in (1, 8, 64, 256, 1024)}
print(states)
assert states[1] - states[64] > 100 and states[64] - states[1024] < 2
""",
    "w05.follow_ups.2": """\
import simlab as sl

model, sent = sl.load_model("llama-7b"), {}
for zero in range(4):
    plan = sl.Plan(dp=64, zero=zero, gradient_bytes=4)  # change it to 2
    sent[zero] = sl.traffic(model, plan)[0].dp / 1e9
    print(zero, f"{sent[zero]:.1f} GB")
assert abs(sent[3] / sent[0] - 1) < 1e-9 and abs(sent[1] / sent[0] - 0.75) < 1e-9
""",
    "w09.follow_ups.3": """\
import simlab as sl

model, cluster = sl.load_model("gpt3-175b"), sl.load_cluster("dgx-a100", nodes=8)
runs = {}
for again in ("none", "full"):
    plan = sl.Plan(tp=8, pp=8, microbatches=16, sequence_parallel=True, recompute=again)
    runs[again] = sl.predict(model, plan, cluster)
    print(again, f"MFU {runs[again].mfu:.1%}, HFU {runs[again].hfu:.1%}")
assert 0.7 < runs["full"].mfu / runs["none"].mfu < 0.8
assert 0.95 < runs["full"].hfu / runs["none"].hfu < 1.05
""",
    "w07.follow_ups.3": """\
import simlab as sl

model, node, host_s = sl.load_model("llama-7b"), sl.load_cluster("dgx-h100"), {}
for zero in (0, 1, 2):
    plan = sl.Plan(dp=8, zero=zero, microbatch_size=4, recompute="full")
    host_s[zero] = sl.offload_step(model, plan, node).busy_s.host
    print(f"ZeRO-{zero}: the host updates for {host_s[zero]:.1f} s in a step")
assert abs(host_s[0] / host_s[1] - 8) < 1e-6
""",
    "d11.follow_ups.1": """\
import simlab as sl
from simlab.studies.caching_allocator import pool_steps

model, reserved = sl.load_model("llama-7b"), {}
for expandable in (False, True):
    last = pool_steps(model, [1024, 2048, 3072, 4096], expandable=expandable)[-1]
    reserved[expandable] = last.reserved_bytes / last.allocated_bytes
    print(f"expandable={expandable}: reserved {reserved[expandable]:.2f} times the tensors")
assert reserved[False] > 1.4 and reserved[True] < 1.01
""",
}
"""{key of a follow-up: code that shows its answer}."""

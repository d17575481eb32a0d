"""What lesson 6 asks about 3D parallelism: predictions, exercises, figures."""

from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.lessons.subjects.grid import degrees, ranks

MOVED = Choice("higher", "same", "lower")
STREAMS, CHANGES = ("tp", "send", "dp"), ("half", "same", "twice")
PREDICTIONS = [
    Prediction("d01", {"most": Choice(*STREAMS), "least": Choice(*STREAMS)}),
    Prediction("d01.change", {"tp": Choice(*CHANGES), "dp": Choice(*CHANGES)}),
    Prediction("d03", {"factor": Number("x")}),
    Prediction("d03.change", {"factor": Number("x")}),
    Prediction("b13", {"ranks": Number("ranks"), "worst": Number("x")}),
    Prediction("b13.change", {"worst": Number("x")}),
    Prediction("d02", {"llama-3-70b": Number("x"), "llama-2-7b": Number("x")}),
    Prediction("d02.change", {"times": Number("x")}),
    Prediction("b15", {"length": Number("tokens"), "small": Number("x")}),
    Prediction("b15.change", {"mfu": MOVED, "hfu": MOVED}),
    Prediction("w13", {"step": Number("x"), "sample": Number("x"), "zero3": Number("x")}),
    Prediction("w13.change", {"zero1": Number("x"), "zero3": Number("x")}),
]

EXERCISES = [*ranks.EXERCISES, *degrees.EXERCISES]

FIGURES = {
    "d01": {"tp_calls": Figure(337, 0.0), "messages": Figure(16, 0.0), "dp_calls": Figure(10, 0.0)},
    "d03": {"activations_1_over_8": Figure(1.04, 0.02)},
    "b13": {"ranks_per_gradient": Figure(8, 0.0), "worst_over_best": Figure(1.49, 0.02)},
    "d02": {"pure_over_mix_70b": Figure(1.04, 0.01), "pure_over_mix_7b": Figure(1.0, 0.01)},
    "b15": {
        "mfu": Figure(0.5472, 0.01),
        "hfu": Figure(0.7197, 0.01),
        "tokens_twice": Figure(32_638, 0.001),
    },
    "w13": {
        "pipeline_step": Figure(2.65, 0.01),
        "pipeline_sample": Figure(0.663, 0.01),
        "zero3_sample": Figure(0.999, 0.005),
    },
    "d02.change": {"gain_on_32": Figure(1.032), "flat": Figure(1.20), "by_hand": Figure(1.098)},
    "d01.change": {"dp_calls": Figure(10, 0.0)},
    "d03.change": {"factor": Figure(8.20, 0.02)},
    "w13.change": {"zero1": Figure(3.51, 0.05), "zero3": Figure(1.0, 0.02)},
}

TRIES = {
    "d03.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

node = replace(sl.load_cluster("dgx-a100"), gpus_per_node=4)
shorter = {}
for name in ("llama-2-13b", "llama-3-8b"):
    model = sl.load_model(name)
    each = model.layers // 4
    equal = sl.Plan(pp=4, microbatches=16)
    moved = replace(equal, stage_layers=(each, each, each + 1, each - 1))
    steps = [sl.predict(model, plan, node) for plan in (equal, moved)]
    bubbles = [step.waterfall_s.bubble / step.step_s for step in steps]
    shorter[name] = steps[1].step_s < steps[0].step_s
    print(f"{name}: equal {bubbles[0]:.1%}, a layer less on the last stage {bubbles[1]:.1%}")
assert shorter == {"llama-2-13b": False, "llama-3-8b": True}
""",
    "w13.follow_ups.1": """\
losses = [[2.0] * 100, [8.0] * 10]  # of each token, in two microbatches
tokens = [loss for microbatch in losses for loss in microbatch]
whole = sum(tokens) / len(tokens)
mean_of_means = sum(sum(each) / len(each) for each in losses) / len(losses)
by_tokens = sum(sum(each) / len(tokens) for each in losses)
print(f"one batch {whole:.2f}, each divided by m {mean_of_means:.2f}, by all tokens {by_tokens:.2f}")
assert abs(by_tokens - whole) < 1e-12 and abs(mean_of_means - whole) > 2
""",
    "w13.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

model, cluster = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100", nodes=4)
plans = {
    "dp 2, tp 4, pp 4": sl.Plan(dp=2, tp=4, pp=4, microbatches=16),
    "dp 8, tp 4, ZeRO-1": sl.Plan(dp=8, tp=4, zero=1, microbatches=16),
    "dp 32, ZeRO-3": sl.Plan(dp=32, zero=3, microbatches=16),
}
times = []
for name, plan in plans.items():
    fewer = replace(plan, microbatch_size=2, microbatches=8)  # the same batch
    steps = [sl.predict(model, one, cluster).step_s for one in (plan, fewer)]
    times.append(steps[1] / steps[0])
    print(f"{name}: 8 microbatches of 2 take {times[-1]:.2f} times as long as 16 of 1")
assert times[0] > 1.05 and max(times[1:]) < 1
""",
    "b13.follow_ups.1": """\
from dataclasses import replace

import simlab as sl

four = sl.load_cluster("dgx-a100", nodes=4)
cp_costs_more = []
for name, tokens in (("llama-2-13b", 4096), ("llama-2-13b", 32_768), ("llama-3-8b", 4096)):
    plan = sl.Plan(dp=4, tp=2, pp=2, cp=2, microbatches=8, zero=1, seq=tokens)
    steps = [
        sl.predict(sl.load_model(name), replace(plan, order=order), four).step_s
        for order in ("tp-cp-dp-pp", "tp-dp-pp-cp", "cp-dp-pp-tp")
    ]
    both, cp, tp = (step / steps[0] for step in steps)
    cp_costs_more.append(cp > tp)
    print(f"{name}, {tokens} tokens: cp crosses nodes {cp:.2f}, tp crosses nodes {tp:.2f}")
assert cp_costs_more == [True, False, False]
""",
    "d02.follow_ups.2": """\
from dataclasses import replace

import simlab as sl

model, shared = sl.load_model("llama-3-70b"), {"sequence_parallel": True, "tp": 4}
plans = {  # 64 GPUs, 64 sequences
    "ZeRO-3, full recomputation": sl.Plan(dp=64, zero=3, recompute="full"),
    "ZeRO-3, tp 4": sl.Plan(dp=16, zero=3, microbatches=4, **shared),
    "dp 2, tp 4, pp 8": sl.Plan(dp=2, pp=8, zero=1, microbatches=32, **shared),
}
fastest = []
for name, slower in (("dgx-a100", 1), ("dgx-h100", 1), ("dgx-h100", 8)):
    cluster = sl.load_cluster(name, nodes=8)
    bandwidth = cluster.inter.bandwidth_bytes_per_s / slower
    cluster = replace(cluster, inter=replace(cluster.inter, bandwidth_bytes_per_s=bandwidth))
    steps = {plan: sl.predict(model, plans[plan], cluster).step_s for plan in plans}
    fastest.append(min(steps, key=steps.get))
    print(name, f"network / {slower}:", {plan: round(steps[plan], 1) for plan in steps})
assert fastest == ["ZeRO-3, tp 4", "ZeRO-3, full recomputation", "dp 2, tp 4, pp 8"]
hybrid = sl.predict(model, replace(plans["ZeRO-3, full recomputation"], hybrid=8), cluster)
assert not hybrid.fits
""",
    "d02.follow_ups.3": """\
from itertools import product

powers = [2**k for k in range(10)]
plans = [(dp, tp, pp) for dp, tp, pp in product(powers, repeat=3) if dp * tp * pp == 512]
options = 4 * 3 * 4 * 6  # ZeRO stages, recomputation, microbatch sizes, schedules
print(f"{len(plans)} grids, {len(plans) * options:,} plans")
assert len(plans) * options > 10_000
""",
}

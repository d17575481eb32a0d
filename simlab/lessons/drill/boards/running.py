"""Three cases of a running training on a whiteboard: its MFU fell, it hangs, it has to be paid."""

from dataclasses import replace
from functools import cache
from random import Random
from typing import Any

from simlab.diagnosis import hang_of
from simlab.lessons.drill.artefacts.recorders import REASONS, hanging
from simlab.lessons.drill.boards.board import ROUGHER, Board, Drawn, Stage
from simlab.operations import (
    Checkpoints,
    Fleet,
    LongRun,
    Prices,
    daly_interval_s,
    mean_goodput,
    observed,
    training_cost,
)
from simlab.operations.rates import DAY_S, HOUR_S
from simlab.spec.plan import Plan
from simlab.studies.what_if import faster_link, other_gpu
from simlab.training import predict
from simlab.training.prediction import Prediction

GB, WEEK_H = 1e9, 7 * 24
LAYOUTS = {"llama-3-8b": (1, 4), "qwen2.5-32b": (4, 4), "llama-3-70b": (4, 5)}
"""{model: (tp, stages on each of `PP` pipeline ranks)}"""
PP, FALLEN = 4, "llama-3-70b"
CAUSES = ("recompute", "schedule", "network", "clock")
CAPPED = "h100-sxm-96gb-500w"
"""The GPU whose kernels are those of an H100 at 500 of its 700 W."""


@cache
def pipelined(name: str, dp: int, microbatches: int) -> Prediction:
    """Of a model with the layout of `LAYOUTS`."""
    tp, chunks = LAYOUTS[name]
    plan = Plan(
        tp=tp,
        pp=PP,
        dp=dp,
        microbatches=microbatches,
        seq=8192,
        zero=1,
        sequence_parallel=tp > 1,
        schedule="interleaved-1f1b",
        chunks=chunks,
    )
    return predict(name, plan, "dgx-h100")


@cache
def _after(dp: int, microbatches: int, cause: str) -> Prediction:
    before = pipelined(FALLEN, dp, microbatches)
    if cause == "network":
        return faster_link(before, "inter", 0.1).prediction
    if cause == "clock":
        return other_gpu(before, CAPPED).prediction
    changed: dict[str, dict[str, Any]] = {
        "recompute": {"recompute": "full"},
        "schedule": {"schedule": "1f1b", "chunks": 1},
    }
    return predict(FALLEN, replace(before.plan, **changed[cause]), before.cluster)


def _fell(random: Random) -> Drawn:
    run = random.choice((16, 32)), random.choice((8, 12, 16))
    cause = random.choice(CAUSES)
    price = random.choice((1.8, 2.0, 2.2, 2.5, 3.0))
    before, after = pipelined(FALLEN, *run), _after(*run, cause)
    slower = before.step_s / after.step_s  # of the same peak, whatever the clock is now
    gpus = before.plan.gpus
    week = training_cost(
        tokens=before.tokens_per_s * WEEK_H * HOUR_S,
        tokens_per_s=after.tokens_per_s,
        gpus=gpus,
        prices=Prices(gpu_hour=price),
    )
    return Drawn(
        given={
            "gpus": gpus,
            "price": price,
            "before": round(100 * before.mfu, 1),
            "after": round(100 * before.mfu * slower, 1),
        },
        expected={
            "longer": 100 * (after.step_s / before.step_s - 1),
            "lost": gpus * (1 - slower),
            "cause": cause,
            "cost": (week.total - gpus * WEEK_H * price) / 1e3,
        },
        rows=_spent_rows(before, after, slower),
    )


def _spent_rows(before: Prediction, after: Prediction, slower: float) -> list[list[str]]:
    """Where the time of both steps goes, and what tells causes apart."""
    rows = [["", "before", "now"]]
    for name, was, now in zip(before.waterfall_s._fields, before.waterfall_s, after.waterfall_s):
        if max(was, now) > 0.01:
            rows.append([f"{name}, ms", f"{1e3 * was:.0f}", f"{1e3 * now:.0f}"])
    hfu = after.hfu if after.cluster.gpu == before.cluster.gpu else before.hfu * slower
    rows.append(["HFU, %", f"{100 * before.hfu:.1f}", f"{100 * hfu:.1f}"])
    held = (one.memory_bytes["activations"] / GB for one in (before, after))
    rows.append(["activations, GB", *(f"{one:.1f}" for one in held)])
    return rows


FELL = Board(
    "fell",
    (
        Stage("longer", "100 * (before / after - 1)", "%"),
        Stage("lost", "gpus * (1 - after / before)", "GPUs"),
        Stage("cause", options=CAUSES),
        Stage("cost", "gpus * 168 * price * (before / after - 1) / 1000", "k$"),
    ),
    _fell,
)


def _hang(random: Random) -> Drawn:
    fault = hanging(random)
    gpus = 8 * random.randrange(64, 513, 64)
    step_s, every = random.randrange(4, 13), random.choice((200, 250))
    step = 40_000 + random.randrange(1, every)
    stall, failures = random.choice((20, 40, 60)), random.randrange(2, 6)
    start = random.choice((5, 10, 15))
    rate = observed("ours", {"all": failures}, nodes=gpus // 8, days=1)
    run = LongRun(
        work_s=20 * DAY_S / failures,
        rate=rate,
        fleet=Fleet(nodes=gpus // 8, spares=64, detect_s=600, start_s=60 * start),
        checkpoints=Checkpoints(interval_s=every * step_s, stall_s=stall),
    )
    hang = hang_of([*enumerate(fault.dumps)])
    lost_s = (step - 40_000) * step_s + run.restart_s
    return Drawn(
        given={
            "gpus": gpus,
            "step": step,
            "every": every,
            "step_s": step_s,
            "stall": stall,
            "start": start,
            "failures": failures,
        },
        expected={
            "rank": float(hang.culprit[0]),
            "reason": hang.reason,
            "cost": gpus * lost_s / HOUR_S,
            "interval": daly_interval_s(stall, run.mtbf_s) / 60,
            "lost": 100 * (1 - mean_goodput(run, seeds=2)[0]),
        },
        rows=fault.rows,
    )


HANG = Board(
    "hang",
    (
        Stage("rank", tolerance=0.0),
        Stage("reason", options=REASONS),
        Stage("cost", "gpus * ((step - 40000) * step_s + 600 + 60 * start) / 3600", "GPU-h"),
        Stage("interval", "sqrt(2 * stall * 86400 / failures) / 60", "min"),
        Stage(
            "lost",
            "100 * (1 - 1 / (1 + stall / (every * step_s)"
            " + (every * step_s / 2 + 600 + 60 * start) * failures / 86400))",
            "%",
            ROUGHER,
        ),
    ),
    _hang,
)


def _budget(random: Random) -> Drawn:
    name = random.choice([*LAYOUTS])
    dp, microbatches = random.choice((16, 32)), random.choice((8, 16))
    found = pipelined(name, dp, microbatches)
    twice = pipelined(name, 2 * dp, microbatches // 2)
    days, price = random.randrange(20, 91, 5), random.choice((1.8, 2.0, 2.5, 3.0))
    goodput, gpus = random.choice((88, 90, 92, 95)), found.plan.gpus
    budget = round(gpus * 24 * days * price / 1e6, 1)
    gpu_hours = budget * 1e6 / price
    tokens = found.tokens_per_s * gpu_hours / gpus * HOUR_S * goodput / 100
    both = [
        training_cost(
            tokens=tokens,
            tokens_per_s=one.tokens_per_s,
            gpus=one.plan.gpus,
            prices=Prices(gpu_hour=price),
            goodput=goodput / 100,
        )
        for one in (found, twice)
    ]
    return Drawn(
        given={
            "model": name,
            "size": round(found.model.parameters / 1e9, 1),
            "layers": found.model.layers,
            "hidden": found.model.hidden,
            "pp": PP,
            "chunks": LAYOUTS[name][1],
            "microbatches": microbatches,
            "gpus": gpus,
            "budget": budget,
            "price": price,
            "goodput": goodput,
        },
        expected={
            "speed": found.tokens_per_s / 1e3,
            "days": both[0].wall_s / DAY_S,
            "tokens": tokens / 1e9,
            "ratio": tokens / found.model.parameters,
            "twice": both[1].total / 1e6,
        },
    )


BUDGET = Board(
    "budget",
    (
        Stage(
            "speed",
            "gpus * 989e12 * 0.48 / (6 * size * 1e9 + 12 * layers * hidden * 8192) / 1e3",
            "k/s",
            ROUGHER,
        ),
        Stage("days", "budget * 1e6 / price / gpus / 24", "days"),
        Stage("tokens", "speed * 1e3 * days * 86400 * goodput / 100 / 1e9", "10^9"),
        Stage("ratio", "tokens / size", ""),
        Stage(
            "twice",
            "budget * (1 + (pp - 1) * 2 / (chunks * microbatches))"
            " / (1 + (pp - 1) / (chunks * microbatches))",
            "M$",
        ),
    ),
    _budget,
)

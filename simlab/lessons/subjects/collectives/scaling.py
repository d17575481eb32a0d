"""Exercises on data parallelism's time: prefetch (w06), what is exposed (d08), efficiency (d10)."""

from random import Random
from typing import Any

from simlab.engine.tasks import Task, run_tasks
from simlab.lessons.exercise import Exercise
from simlab.spec.plan import Plan

# w06
# ---------------------------------------------------------------------------------------------


def _layers(draw: Random) -> dict[str, Any]:
    """Layers that compute about as long, but every few of them has far more parameters."""
    large = [draw.random() < 0.35 for _ in range(draw.choice((6, 8)))]
    size_mib = [draw.randint(*((600, 900) if each else (100, 300))) for each in large]
    return {
        "gather_ms": [size // draw.choice((40, 50)) for size in size_mib],
        "compute_ms": [draw.randint(6, 12) for _ in size_mib],
        "size_mib": size_mib,
        "room_mib": max(size_mib) + draw.choice((200, 600, 1000, 1400)),
    }


def _depth(gather_ms: list[int], compute_ms: list[int], size_mib: list[int], room_mib: int) -> int:
    """By simulating the forward with each depth that has room."""
    layers = range(len(size_mib))

    def end_ms(ahead: int) -> float:
        tasks: list[Task] = []
        for k in layers:  # two tasks for each layer: its gather, then its forward
            before = [2 * (k - ahead) - 1] if k > ahead else []
            tasks.append(Task("gather", f"0F{k}", "dp", (0,), gather_ms[k], before))
            tasks.append(Task("forward", f"0F{k}", "compute", (0,), compute_ms[k], [2 * k]))
        return run_tasks(tasks).end_s

    fits = [a for a in layers if max(sum(size_mib[k : k + a + 1]) for k in layers) <= room_mib]
    return min(fits, key=end_ms)


def solution_w06(gather_ms, compute_ms, size_mib, room_mib):  # type: ignore[no-untyped-def]
    """The forward's end for each depth that has room: the first of the earliest."""
    layers = range(len(size_mib))

    def end_ms(ahead):  # type: ignore[no-untyped-def]
        link, turns = 0, [0]  # when the link is free, and when each layer's turn comes
        for k in layers:
            link = max(link, turns[max(0, k - ahead)]) + gather_ms[k]
            turns.append(max(link, turns[k]) + compute_ms[k])
        return turns[-1]

    fits = [a for a in layers if max(sum(size_mib[k : k + a + 1]) for k in layers) <= room_mib]
    return min(fits, key=end_ms)


def _deepest(size_mib: list[int], room_mib: float, own: int = 1) -> int:
    """The largest depth that has room; own: whether the layer that computes is counted."""
    layers = range(len(size_mib))
    return max(
        a for a in layers if max(sum(size_mib[k + 1 - own : k + a + 1]) for k in layers) <= room_mib
    )


def zero3_over_dp(plan: Plan) -> float:
    """How many times the bytes of plain data parallelism `plan`'s ZeRO-3 sends, where gradients are as
    wide as parameters, in closed form.

    An all-reduce is a reduce-scatter and an all-gather. Each microbatch has one reduce-scatter, and a
    gather for the forward and, unless parameters stay (`reshard` is False), one for the backward.
    """
    return (3 if plan.reshard else 2) * plan.microbatches / 2


# d08
# ---------------------------------------------------------------------------------------------


def _reduction(draw: Random) -> dict[str, Any]:
    return {
        "reduce_s": draw.choice((0.05, 0.1, 0.2, 0.4)),
        "backward_s": draw.choice((0.06, 0.12, 0.3)),
        "buckets": draw.choice((2, 4, 8, 16)),
    }


def _exposed(reduce_s: float, backward_s: float, buckets: int) -> float:
    """One bucket after the other."""
    free_s = 0.0
    for bucket in range(1, buckets + 1):
        full_s = backward_s * bucket / buckets
        free_s = max(free_s, full_s) + reduce_s / buckets
    return free_s - backward_s


def solution_d08(reduce_s, backward_s, buckets):  # type: ignore[no-untyped-def]
    """The last bucket, or what queues since the first one."""
    return max(reduce_s / buckets, reduce_s - (buckets - 1) / buckets * backward_s)


# d10
# ---------------------------------------------------------------------------------------------


def _steps(draw: Random) -> dict[str, Any]:
    before, step_before = draw.choice((8, 16, 64)), draw.choice((0.5, 1.0, 2.0))
    more, kept = draw.choice((2, 4, 8)), draw.uniform(0.5, 0.95)
    kind = draw.choice(("strong", "weak"))
    step = step_before / kept / (more if kind == "strong" else 1)
    return {
        "kind": kind,
        "gpus_before": before,
        "step_before": step_before,
        "gpus": before * more,
        "step": round(step, 4),
    }


def _efficiency(kind: str, gpus_before: int, step_before: float, gpus: int, step: float) -> float:
    """What a GPU gets done per second, against before."""
    work_before = 1.0 if kind == "strong" else float(gpus_before)
    work = 1.0 if kind == "strong" else float(gpus)
    return (work / step / gpus) / (work_before / step_before / gpus_before)


def solution_d10(kind, gpus_before, step_before, gpus, step):  # type: ignore[no-untyped-def]
    """Strong: the same work by more GPUs. Weak: the same work on each."""
    if kind == "strong":
        return gpus_before * step_before / (gpus * step)
    return step_before / step


def _swapped(kind: str, **case: Any) -> float:
    return _efficiency(kind={"strong": "weak", "weak": "strong"}[kind], **case)


EXERCISES = [
    Exercise(
        "w06",
        version=2,
        level=3,
        draw=_layers,
        oracle=_depth,
        solution=solution_w06,
        mistakes={
            "none": lambda **case: 0,
            "one": lambda **case: 1,
            "deepest": lambda size_mib, room_mib, **_: _deepest(size_mib, room_mib),
            "no_room": lambda room_mib, **case: _depth(room_mib=10**9, **case),
            "own_layer": lambda size_mib, room_mib, **case: min(
                _deepest(size_mib, room_mib, own=0),
                _depth(size_mib=size_mib, room_mib=10**9, **case),
            ),
            "mean": lambda gather_ms, compute_ms, **_: -(-sum(gather_ms) // sum(compute_ms)),
        },
        sets=12,
    ),
    Exercise(
        "d08",
        level=2,
        draw=_reduction,
        oracle=_exposed,
        solution=solution_d08,
        mistakes={
            "all_hidden": lambda reduce_s, backward_s, buckets: max(0.0, reduce_s - backward_s),
            "no_overlap": lambda reduce_s, backward_s, buckets: reduce_s,
            "last_only": lambda reduce_s, backward_s, buckets: reduce_s / buckets,
            "from_the_start": lambda reduce_s, backward_s, buckets: max(
                reduce_s / buckets, reduce_s - backward_s
            ),
            "both_added": lambda reduce_s, backward_s, buckets: (
                max(0.0, reduce_s - backward_s) + reduce_s / buckets
            ),
        },
        sets=10,
        unit="ms",
        scale=1e3,
    ),
    Exercise(
        "d10",
        level=1,
        draw=_steps,
        oracle=_efficiency,
        solution=solution_d10,
        mistakes={
            "swapped": _swapped,
            "speed_up": lambda **case: _efficiency(**case) * case["gpus"] / case["gpus_before"],
            "upside_down": lambda **case: 1 / _efficiency(**case),
        },
        sets=8,
        unit="%",
        scale=100,
    ),
]

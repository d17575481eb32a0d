"""What lesson 1 asks about pipelines: predictions, exercises, figures, and code that answers
follow-ups."""

from itertools import count
from random import Random
from typing import Any

from simlab.analysis import bubble
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.schedules import generate
from simlab.spec.hardware import Link

PREDICTIONS = [
    Prediction("b07", {"slot": Number()}),
    Prediction("b07.change", {"slot": Number()}),
    Prediction("w11", {"share": Number("%")}),
    Prediction("w11.change", {"share": Number("%"), "ideal": Number("%")}),
    Prediction("d05", {"forwards": Number()}),
    Prediction("d05.change", {"step": Number("ms"), "held": Number("microbatches")}),
    Prediction("b08", {"shorter": Choice("afab", "1f1b", "equal")}),
    Prediction("b08.change", {"longer": Number("ms")}),
    Prediction("t3", {"smaller": Choice("gpipe", "1f1b", "same")}),
    Prediction("t3.change", {"times": Number("x")}),
]
TIMES = OpTimes(forward_s=0.02, backward_s=0.04)

# b07
# ---------------------------------------------------------------------------------------------


def _place(draw: Random) -> dict[str, Any]:
    p = draw.choice((3, 4, 6, 8))
    return {"p": p, "m": draw.randint(2, 12), "rank": draw.randrange(p - 1)}


def _first_backward(p: int, m: int, rank: int) -> float:
    """In the simulated trace of ops of one second."""
    trace = simulate(generate("gpipe", p, m), OpTimes(forward_s=1.0, backward_s=1.0))
    return min(span.start_s for span in trace.compute(rank) if span.op_kind == "B")


def solution_b07(p, m, rank):  # type: ignore[no-untyped-def]
    """Down to the last rank, its m forwards, and the gradient's climb."""
    return (p - 1 + m) + (p - 1 - rank)


# w11
# ---------------------------------------------------------------------------------------------


def _limit(draw: Random) -> dict[str, Any]:
    return {"p": draw.choice((2, 4, 8, 16)), "share": draw.choice((0.05, 0.08, 0.12, 0.15, 0.2))}


def _microbatches(p: int, share: float) -> int:
    """The first number whose simulated step idles little enough."""
    start = max(1, int((p - 1) * (1 - share) / share) - 3)
    return next(
        m
        for m in count(start)
        if bubble(simulate(generate("1f1b", p, m), TIMES)).idle_over_makespan <= share + 1e-9
    )


def solution_w11(p, share):  # type: ignore[no-untyped-def]
    """(p-1)/(m+p-1) <= share, solved for m."""
    exact = (p - 1) * (1 - share) / share
    return -int(-(exact - 1e-9) // 1)


# d05
# ---------------------------------------------------------------------------------------------


def _room(draw: Random) -> dict[str, Any]:
    p = draw.randint(3, 6)
    return {
        "rank": draw.randrange(p),
        "p": p,
        "m": draw.randint(2, 10),
        "cap": draw.choice((1, 2, 3, p, p + 2)),
    }


def _row(rank: int, p: int, m: int, cap: int) -> list[str]:
    """By the rule of the memory: a forward while there is room, else a backward."""
    room, ops, forwards, backwards = min(p - rank, cap), [], 0, 0
    while backwards < m:
        if forwards < m and forwards - backwards < room:
            ops.append(f"{rank}F{forwards}")
            forwards += 1
        else:
            ops.append(f"{rank}B{backwards}")
            backwards += 1
    return ops


def _with_warmup(rank: int, m: int, w: int) -> list[str]:
    ops = [f"{rank}F{i}" for i in range(min(w, m))]
    for i in range(w, m):
        ops += [f"{rank}F{i}", f"{rank}B{i - w}"]
    return ops + [f"{rank}B{i}" for i in range(max(0, m - w), m)]


def _order_fault(found: Any, rank: int, p: int, m: int, cap: int) -> str:
    """A backward before its forward, or more microbatches held than 1F1B and the cap allow."""
    held: set[str] = set()
    most = 0
    for op in found if isinstance(found, list) else []:
        _, kind, microbatch = str(op).partition("B" if "B" in str(op) else "F")
        if kind == "B" and microbatch not in held:
            return "early_backward"
        held ^= {microbatch}
        most = max(most, len(held))
    over = most - min(p - rank, cap, m)
    return "" if over <= 0 else "one_too_many" if over == 1 else "no_cap"


def solution_d05(rank, p, m, cap):  # type: ignore[no-untyped-def]
    """Warm-up, pairs, cool-down."""
    w = min(m, p - 1 - rank, cap - 1)
    ops = [f"{rank}F{i}" for i in range(w)]
    for i in range(w, m):
        ops += [f"{rank}F{i}", f"{rank}B{i - w}"]
    return ops + [f"{rank}B{i}" for i in range(m - w, m)]


# b08
# ---------------------------------------------------------------------------------------------


def _links(draw: Random) -> dict[str, Any]:
    return {
        "p": draw.choice((2, 4, 8)),
        "m": draw.choice((8, 9, 13, 16, 22)),
        "c": draw.choice((0.001, 0.003, 0.005)),
    }


def _longer(p: int, m: int, c: float) -> float:
    link = Link(latency_s=c)
    one_f_one_b, afab = (simulate(generate(n, p, m), TIMES, link=link) for n in ("1f1b", "gpipe"))
    return one_f_one_b.step_s - afab.step_s


def solution_b08(p, m, c):  # type: ignore[no-untyped-def]
    """Every microbatch but the first of each p waits for a round trip's share."""
    rounds = -(-(m - 1) // p)
    return 2 * c * ((m - 1) - rounds)


# t3
# ---------------------------------------------------------------------------------------------


def _memory(draw: Random) -> dict[str, Any]:
    p = draw.choice((2, 4, 8))
    room = p * draw.randint(1, 2)
    return {"p": p, "batch": room * draw.randint(2, 8), "room": room}


def _ratio(p: int, batch: int, room: int) -> float:
    gpipe = (batch // room) * simulate(generate("gpipe", p, room), TIMES).step_s
    return gpipe / simulate(generate("1f1b", p, batch), TIMES).step_s


def solution_t3(p, batch, room):  # type: ignore[no-untyped-def]
    """GPipe fills and drains batch/room times, 1F1B once."""
    return (batch / room) * (room + p - 1) / (batch + p - 1)


EXERCISES = [
    Exercise(
        "b07",
        level=1,
        draw=_place,
        oracle=_first_backward,
        solution=solution_b07,
        mistakes={
            "straight_on": lambda p, m, rank: rank + m,
            "no_climb": lambda p, m, rank: p - 1 + m,
            "downwards": lambda p, m, rank: p - 1 + m + rank,
        },
    ),
    Exercise(
        "w11",
        level=1,
        draw=_limit,
        oracle=_microbatches,
        solution=solution_w11,
        mistakes={
            "over_ideal": lambda p, share: (p - 1) / share,
            "rounded_down": lambda p, share: int((p - 1) * (1 - share) / share),
            "nearest": lambda p, share: round((p - 1) * (1 - share) / share),
            "all_stages": lambda p, share: p * (1 - share) / share,
            "one_more": lambda p, share: int((p - 1) * (1 - share) / share + 1e-9) + 1,
        },
        fault=lambda found, p, share: "one_more" if found == solution_w11(p, share) + 1 else "",
        sets=10,
    ),
    Exercise(
        "d05",
        level=3,
        draw=_room,
        oracle=_row,
        solution=solution_d05,
        mistakes={
            "same_warmup": lambda rank, p, m, cap: _with_warmup(rank, m, p),
            "no_cap": lambda rank, p, m, cap: _with_warmup(rank, m, p - 1 - rank),
            "one_too_many": lambda rank, p, m, cap: _with_warmup(rank, m, min(p - rank, cap)),
            "no_cooldown": lambda rank, p, m, cap: _row(rank, p, m, cap)[
                : 2 * m - min(m, p - 1 - rank, cap - 1)
            ],
            "early_backward": lambda rank, p, m, cap: [
                f"{rank}{kind}{i}" for i in range(m) for kind in "BF"
            ],
        },
        fault=_order_fault,
        sets=14,
    ),
    Exercise(
        "b08",
        level=2,
        draw=_links,
        oracle=_longer,
        solution=solution_b08,
        mistakes={
            "nothing": lambda p, m, c: 0.0,
            "once": lambda p, m, c: 2 * c * (p - 1),
            "every": lambda p, m, c: 2 * c * (m - 1),
            "mean": lambda p, m, c: 2 * c * (p - 1) / p * (m - 1),
            "whole_step": lambda p, m, c: 2 * c * (p - 1) + solution_b08(p, m, c),
            "last_free": lambda p, m, c: 2 * c * ((m - 1) - (m - 1) // p),
        },
        unit="ms",
        scale=1e3,
    ),
    Exercise(
        "t3",
        level=2,
        draw=_memory,
        oracle=_ratio,
        solution=solution_t3,
        mistakes={
            "equal": lambda p, batch, room: 1.0,
            "no_drain": lambda p, batch, room: (room + p - 1) / room,
            "upside_down": lambda **case: 1 / _ratio(**case),
        },
        unit="x",
    ),
]

FIGURES = {
    "b07": {"slot_0b0": Figure(5.0, 1e-6), "ops_too_early": Figure(3.0, 0.0)},
    "b07.change": {"slot": Figure(12.0, 1e-6)},
    "w11": {"idle_share_percent": Figure(700 / 15, 1e-6)},
    "d05": {"forwards_before_backward": Figure(6, 0.0), "most_held": Figure(4, 0.0)},
    "b08": {"afab_ms": Figure(690.0, 1e-6), "one_f_one_b_ms": Figure(740.0, 1e-6)},
    "b08.change": {"longer_ms": Figure(200.0, 1e-6), "by_formula_ms": Figure(200.0, 1e-6)},
    "t3": {"held_gpipe": Figure(8, 0.0), "held_1f1b": Figure(4, 0.0)},
    "t3.change": {"times": Figure(1.6, 1e-6)},
}

TRIES = {
    "b07.follow_ups.1": """\
import simlab as sl

for backward_s in (0.02, 0.04, 0.08):
    times = sl.OpTimes(forward_s=0.02, backward_s=backward_s)
    found = sl.bubble(sl.simulate(sl.generate("gpipe", 4, 6), times))
    print(f"B = {backward_s} s: idle share of the step {found.idle_over_makespan:.1%}")
    assert abs(found.idle_over_makespan - 3 / 9) < 1e-9
""",
    "d05.follow_ups.1": """\
import simlab as sl

times, link = sl.OpTimes(forward_s=0.02, backward_s=0.04), sl.Link(latency_s=0.005)
steps = {}
for name in ("1f1b", "eager-1f1b"):
    program = sl.generate(name, 4, 8)
    free = sl.simulate(program, times)
    steps[name] = sl.simulate(program, times, link=link).step_s
    print(name, free.step_s, "held", sl.peak_memory(free), "with links of 5 ms", steps[name])
assert steps["eager-1f1b"] < steps["1f1b"]
""",
}

"""What lesson 7 asks about data parallelism, executed: predictions, exercises, figures."""

from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction

SAME = Choice("same", "differs")
PREDICTIONS = [
    Prediction("b01", {"equal": SAME, "unequal": SAME, "batch_norm": SAME}),
    Prediction("b01.change", {"error": Number("%")}),
    Prediction("b03.executed", {"times": Choice("twice", "few", "many")}),
    Prediction("w03.executed", {"saved": Number("%")}),
    Prediction("t1.executed", {"times": Number("x")}),
    Prediction("b02", {"apart": Choice("nothing", "rounding", "percent", "whole")}),
    Prediction("b02.change", {"reduced": Choice("half", "same", "double")}),
    Prediction("t4", {"first": Choice("gather", "update"), "times": Number("x")}),
    Prediction("t4.change", {"times": Number("x")}),
    Prediction("w06.executed", {"gathers": Number()}),
    Prediction("w08", {"states": Number("B")}),
    Prediction("w08.change", {"vanish": Number("%")}),
]


# t4
# ---------------------------------------------------------------------------------------------


class Ran(NamedTuple):
    """What came of a rank's list: the first thing that cannot be, how often it gathers, and how many
    layers are whole at most."""

    fault: str
    gathers: int = 0
    peak: int = 0


DOES = {"gather", "free", "forward", "backward", "scatter"}


def _room(draw: Random) -> dict[str, Any]:
    return {"layers": draw.choice((3, 4, 6, 8)), "room": draw.choice((1, 2, 2, 3))}


def _ran(steps: Sequence[str], layers: int) -> Ran:
    """What comes of a list for so many layers, item by item."""
    due = [("forward", layer) for layer in range(layers)]
    due += [("backward", layer) for layer in reversed(range(layers))]
    whole: set[int] = set()
    made, gathers, peak = None, 0, 0
    for what, at in (text.split() for text in steps):
        layer = int(at)
        if what not in DOES:
            return Ran("no_item")
        if what == "gather":
            whole.add(layer)
            gathers, peak = gathers + 1, max(peak, len(whole))
        elif what == "free":
            whole.discard(layer)
        elif what == "scatter" and made == layer:
            made = None
        elif (what, layer) != (due.pop(0) if due else None):
            return Ran("order")
        elif layer not in whole:
            return Ran("not_gathered")
        elif made is not None:
            return Ran("no_scatter")
        else:
            made = layer if what == "backward" else None
    ends = {"order": due, "no_scatter": made is not None, "left_whole": whole}
    return Ran(next((fault for fault, left in ends.items() if left), ""), gathers, peak)


def _fewest_gathers(layers: int, room: int) -> list[str]:
    """Where there is no room, the layer goes that is needed again the latest (Belady's rule)."""
    uses = [("forward", k) for k in range(layers)]
    uses += [("backward", k) for k in reversed(range(layers))]
    steps, whole = [], list[int]()
    for at, (what, k) in enumerate(uses):
        after = [layer for _, layer in uses[at:]]
        if k not in whole:
            if len(whole) == room:
                latest = max(whole, key=after.index)
                whole.remove(latest)
                steps.append(f"free {latest}")
            whole.append(k)
            steps.append(f"gather {k}")
        steps.append(f"{what} {k}")
        if what == "backward":
            whole.remove(k)
            steps += [f"scatter {k}", f"free {k}"]
    return steps


def solution_t4(layers, room):  # type: ignore[no-untyped-def]
    """The last `room` layers stay whole: their backwards come first."""
    steps = []
    for k in range(layers):
        steps += [f"gather {k}", f"forward {k}"]
        if k < layers - room:
            steps.append(f"free {k}")
    for k in reversed(range(layers)):
        if k < layers - room:
            steps.append(f"gather {k}")
        steps += [f"backward {k}", f"scatter {k}", f"free {k}"]
    return steps


def _as_good(found: Any, expected: Any) -> bool:
    """Whether a list can be run, gathers no more often than the expected one, and has no more layers
    whole at once; of two that cannot be run, whether they are the same."""
    if found == expected:
        return True
    try:
        layers = sum(step.startswith("forward") for step in expected)
        mine, other = _ran(found, layers), _ran(expected, layers)
    except (TypeError, ValueError, AttributeError):
        return False
    return not mine.fault + other.fault and mine[1] <= other[1] and mine[2] <= other[2]


def _list_fault(found: Any, layers: int, room: int) -> str:
    """What is wrong with a list."""
    try:
        ran = _ran(found, layers)
    except (TypeError, ValueError, AttributeError):
        return "no_item"
    return ran.fault or ("over_room" if ran.peak > room else "too_often")


def _without(word: str) -> Callable[..., list[str]]:
    """The solution without the items that begin with `word`, at its end."""

    def wrong(layers: int, room: int) -> list[str]:
        steps = solution_t4(layers, room)
        return [step for step in steps[:-1] if not step.startswith(word)] + steps[-1:]

    return wrong


# w08
# ---------------------------------------------------------------------------------------------

OVERFLOW = 65504.0
"""The largest number of fp16."""


def _training(draw: Random) -> dict[str, Any]:
    tops = [2.0 ** draw.randrange(-6, 1) for _ in range(draw.randrange(24, 40))]
    for at in draw.sample(range(len(tops)), 3):
        tops[at] *= 64
    return {
        "largest": tops,
        "first": 2.0 ** draw.randrange(16, 21),
        "interval": draw.choice((3, 5)),
    }


def _scales(largest: Sequence[float], first: float, interval: int) -> list[float]:
    """From one change of the scale to the next: how long it stays, and how it ends."""
    used: list[float] = []
    scale, at = first, 0
    while at < len(largest):
        ahead = largest[at : at + interval]
        good = next((n for n, top in enumerate(ahead) if top * scale > OVERFLOW), len(ahead))
        overflows = good < len(ahead)
        used += [scale] * (good + overflows)
        at += good + overflows
        scale = scale / 2 if overflows else scale * 2
    return used


def solution_w08(largest, first, interval):  # type: ignore[no-untyped-def]
    """The scale that each step uses; halved by an overflow, doubled after enough good steps."""
    used, scale, good = [], first, 0
    for top in largest:
        used.append(scale)
        if top * scale > 65504:
            scale, good = scale / 2, 0
        else:
            good += 1
            if good == interval:
                scale, good = 2 * scale, 0
    return used


def _never_grows(largest: Sequence[float], first: float, interval: int) -> list[float]:
    return solution_w08(largest, first, len(largest) + 1)


def _keeps_count(largest: Sequence[float], first: float, interval: int) -> list[float]:
    used, scale, good = [], first, 0
    for top in largest:
        used.append(scale)
        if top * scale > OVERFLOW:
            scale = scale / 2
        else:
            good += 1
            if good == interval:
                scale, good = 2 * scale, 0
    return used


def _in_one_step(largest: Sequence[float], first: float, interval: int) -> list[float]:
    used, scale, good = [], first, 0
    for top in largest:
        while top * scale > OVERFLOW:
            scale, good = scale / 2, 0
        used.append(scale)
        good += 1
        if good == interval:
            scale, good = 2 * scale, 0
    return used


def _after_update(largest: Sequence[float], first: float, interval: int) -> list[float]:
    return solution_w08([*largest, 0.0], first, interval)[1:]


EXERCISES = [
    Exercise(
        "t4",
        version=2,
        level=2,
        draw=_room,
        oracle=_fewest_gathers,
        solution=solution_t4,
        mistakes={
            "too_often": lambda layers, room: solution_t4(layers, 0),
            "no_item": lambda layers, room: [its.split() for its in solution_t4(layers, room)],
            "over_room": lambda layers, room: solution_t4(layers, layers + 1),
            "not_gathered": lambda layers, room: [
                step
                for at, step in enumerate(solution_t4(layers, 0))
                if at < 3 * layers or "gather" not in step
            ],
            "no_scatter": _without("scatter"),
            "order": lambda layers, room: [
                *solution_t4(layers, room)[: 3 * layers - room],
                *(
                    f"{what} {k}"
                    for k in range(layers)
                    for what in ("gather", "backward", "scatter", "free")
                ),
            ],
            "left_whole": lambda layers, room: solution_t4(layers, room)[:-1],
        },
        fault=_list_fault,
        same=_as_good,
        sets=8,
    ),
    Exercise(
        "w08",
        level=2,
        draw=_training,
        oracle=_scales,
        solution=solution_w08,
        mistakes={
            "never_grows": _never_grows,
            "keeps_count": _keeps_count,
            "after_update": _after_update,
            "in_one_step": _in_one_step,
        },
    ),
]
FIGURES = {
    "b01": {"unequal_error": Figure(0.81, 0.05), "batch_norm_error": Figure(0.32, 0.05)},
    "b02": {"apart": Figure(0.078, 0.1), "right_reductions": Figure(1.0, 1e-9)},
    "t4": {"zero_3_times": Figure(1.5, 0.01), "held_by_zero_2": Figure(0.34375, 1e-6)},
    "w08": {"states_bytes": Figure(16.0, 1e-9), "vanish_at_4096": Figure(0.156, 0.05)},
    "b01.change": {"error": Figure(0.0692, 0.2)},
    "b02.change": {"ratio": Figure(1.0, 0.0)},
    "t4.change": {"times": Figure(4.5, 0.005)},
    "w08.change": {"vanish": Figure(0.857, 0.05)},
}
TRIES = {
    "b02.follow_ups.1": """import math

m, rate, w = 4, 0.1, 1.0
gradients = [0.2, 0.4, -0.1, 0.3]
right = w - rate * sum(g / m for g in gradients)
forgotten = w - rate * sum(gradients)
assert math.isclose((w - forgotten) / (w - right), m)  # the step is m times as long""",
    "t4.follow_ups.1": """layers, ranks = 32, 4
held = (layers - 1) / layers / ranks + 1 / layers  # shards of all but one, and that one whole
assert round(held, 2) == 0.27""",
}

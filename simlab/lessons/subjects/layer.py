"""What lesson 8 asks about the inside of a layer, executed: predictions, exercises, figures."""

from collections.abc import Callable
from itertools import product
from random import Random
from typing import Any

from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.spec.plan import Plan

RIGHT = Choice("right", "wrong")
FINITE = Choice("finite", "diverges")
APART = Choice("percent", "thousandth", "rounding")
PREDICTIONS = [
    Prediction("d04", {"output": RIGHT, "input_gradient": RIGHT, "weight_gradient": RIGHT}),
    Prediction("d04.change", {"output": RIGHT, "input_gradient": RIGHT}),
    Prediction("b05", {"times": Number("x")}),
    Prediction("b05.change", {"times": Number("x")}),
    Prediction("t2", {"between": Number(), "gathered": Number("x")}),
    Prediction("t2.change", {"tp": Number("x"), "dp": Number("x")}),
    Prediction("w10.executed", {"times": Number("x")}),
    Prediction("b06", {"times": Number("x")}),
    Prediction(
        "b06.change", {"reduced": Choice("same", "double"), "gathered": Choice("same", "double")}
    ),
    Prediction("d06", {"ranks": Number()}),
    Prediction("d06.change", {"put": Number(), "belong": Number()}),
    Prediction("w09.executed", {"times": Number("x")}),
    Prediction("d12", {"neither": FINITE, "warm_up": FINITE, "clipping": FINITE, "both": FINITE}),
    Prediction("d12.change", {"end": Choice("lower", "higher")}),
    Prediction("d13", {"apart": APART}),
    Prediction("d13.change", {"apart": APART}),
]


# t2
# ---------------------------------------------------------------------------------------------

CUTS = ("columns", "rows")
RUNS = ("nothing", "all-gather", "all-reduce")


def _cuts(draw: Random) -> dict[str, Any]:
    return {"first": draw.choice(CUTS), "second": draw.choice(CUTS)}


def _product(cut: str, held: str) -> str | None:
    """What a rank has after a product with a matrix that is cut so, from what it held: "whole",
    "cut" or "summands"; None: it cannot be computed."""
    if held == "summands":
        return None
    if cut == "columns":
        return "cut" if held == "whole" else None
    return "summands"


def _joined(run: str, held: str) -> str | None:
    """What a rank has after a collective."""
    if run == "nothing":
        return held
    fits = {"all-gather": "cut", "all-reduce": "summands"}[run]
    return "whole" if held == fits else None


def _collectives(first: str, second: str) -> tuple[str, str]:
    """The pair with the fewest collectives, among all pairs, that gives every rank all of Z."""
    for between, after in sorted(product(RUNS, RUNS), key=lambda pair: 2 - pair.count("nothing")):
        hidden = _joined(between, _product(first, "whole") or "")
        if hidden not in ("whole", "cut"):  # f takes no summands
            continue
        last = _product(second, hidden)
        if last is not None and _joined(after, last) == "whole":
            return between, after
    raise AssertionError("no pair of collectives joins these cuts")


def solution_t2(first, second):  # type: ignore[no-untyped-def]
    """After columns the result is cut, after rows it is in summands."""
    after = {"columns": "all-gather", "rows": "all-reduce"}
    between = "nothing" if (first, second) == ("columns", "rows") else after[first]
    return between, after[second]


# d06
# ---------------------------------------------------------------------------------------------


def _place(draw: Random) -> dict[str, Any]:
    sizes = {name: draw.choice((2, 3, 4)) for name in ("tp", "dp", "pp")}
    ranks = sizes["tp"] * sizes["dp"] * sizes["pp"]
    return {"rank": draw.randrange(ranks), "dimension": draw.choice(("tp", "dp", "pp"))} | sizes


def _layout(tp: int, dp: int, pp: int) -> list[dict[str, int]]:
    """The coordinates of all ranks, by the layout that simulator and executor use."""
    plan = Plan(tp=tp, dp=dp, pp=pp, microbatches=pp)
    return [{"tp": its.tp, "dp": its.dp, "pp": its.pp} for its in plan.layout.all_coordinates()]


def _group(rank: int, dimension: str, tp: int, dp: int, pp: int) -> list[int]:
    where = _layout(tp, dp, pp)
    others = [name for name in where[rank] if name != dimension]
    return [
        at for at, its in enumerate(where) if all(its[name] == where[rank][name] for name in others)
    ]


def _own_fixed(rank: int, dimension: str, tp: int, dp: int, pp: int) -> list[int]:
    where = _layout(tp, dp, pp)
    return [at for at, its in enumerate(where) if its[dimension] == where[rank][dimension]]


def solution_d06(rank, dimension, tp, dp, pp):  # type: ignore[no-untyped-def]
    """Only the own coordinate varies; all others stay as they are."""
    stride, size = {"tp": (1, tp), "dp": (tp, dp), "pp": (tp * dp, pp)}[dimension]
    first = rank - rank // stride % size * stride
    return [first + k * stride for k in range(size)]


def _with(first_of: Callable[[int, int, int], int], dp_stride: str = "tp") -> Callable[..., Any]:
    """A group by strides, with its first rank and its order of dimensions to choose."""

    def group(rank: int, dimension: str, tp: int, dp: int, pp: int) -> list[int]:
        strides = {"tp": (1, tp), "dp": (tp, dp), "pp": (tp * dp, pp)}
        if dp_stride == "tp·pp":
            strides |= {"dp": (tp * pp, dp), "pp": (tp, pp)}
        stride, size = strides[dimension]
        first = first_of(rank, stride, size)
        return [first + k * stride for k in range(size)]

    return group


# d13
# ---------------------------------------------------------------------------------------------


def _reader(draw: Random) -> dict[str, Any]:
    sizes = {"tp": draw.choice((1, 2, 4)), "dp": draw.choice((2, 4)), "pp": draw.choice((1, 2))}
    ranks = sizes["tp"] * sizes["dp"] * sizes["pp"]
    rest = {"microbatches": draw.choice((1, 2, 3)), "size": draw.choice((1, 2))}
    return {"rank": draw.randrange(1, ranks), "step": draw.randrange(1, 4)} | sizes | rest


def _samples(
    rank: int, step: int, tp: int, dp: int, pp: int, microbatches: int, size: int
) -> list[int]:
    """The step's samples dealt out, with the rank's coordinate from the layout."""
    replica, batch = _layout(tp, dp, pp)[rank]["dp"], dp * microbatches * size
    of_step = list(range(step * batch, (step + 1) * batch))
    own = len(of_step) // dp
    return of_step[replica * own : (replica + 1) * own]


def solution_d13(rank, step, tp, dp, pp, microbatches, size):  # type: ignore[no-untyped-def]
    """Only the dp coordinate decides."""
    own = microbatches * size
    first = (step * dp + rank // tp % dp) * own
    return list(range(first, first + own))


def _overlap(
    rank: int, step: int, tp: int, dp: int, pp: int, microbatches: int, size: int
) -> list[int]:
    """A step goes on by the samples of one replica, not of all."""
    first = (step + _layout(tp, dp, pp)[rank]["dp"]) * microbatches * size
    return [first + k for k in range(microbatches * size)]


def _by_rank(
    rank: int, step: int, tp: int, dp: int, pp: int, microbatches: int, size: int
) -> list[int]:
    own, ranks = microbatches * size, tp * dp * pp
    return [(step * ranks + rank) * own + k for k in range(own)]


EXERCISES = [
    Exercise(
        "t2",
        level=2,
        draw=_cuts,
        oracle=_collectives,
        solution=solution_t2,
        mistakes={
            "gathers_y": lambda first, second: (
                ("all-gather", "all-reduce")
                if (first, second) == ("columns", "rows")
                else solution_t2(first, second)
            ),
            "f_of_parts": lambda first, second: (
                "nothing" if first == "rows" else solution_t2(first, second)[0],
                solution_t2(first, second)[1],
            ),
            "cut_output": lambda first, second: (solution_t2(first, second)[0], "nothing"),
        },
        sets=12,
    ),
    Exercise(
        "d06",
        level=1,
        draw=_place,
        oracle=_group,
        solution=solution_d06,
        mistakes={
            "own_fixed": _own_fixed,
            "from_rank": _with(lambda rank, stride, size: rank),
            "pp_before_dp": _with(
                lambda rank, stride, size: rank - rank // stride % size * stride, "tp·pp"
            ),
        },
        sets=12,
    ),
    Exercise(
        "d13",
        level=2,
        draw=_reader,
        oracle=_samples,
        solution=solution_d13,
        mistakes={
            "by_rank": _by_rank,
            "dp_first": lambda rank, step, tp, dp, pp, microbatches, size: _samples(
                rank % dp * tp, step, tp, dp, pp, microbatches, size
            ),
            "overlap": _overlap,
            "replicas_alike": lambda rank, step, tp, dp, pp, microbatches, size: list(
                range(step * microbatches * size, (step + 1) * microbatches * size)
            ),
            "every_step": lambda rank, step, tp, dp, pp, microbatches, size: _samples(
                rank, 0, tp, dp, pp, microbatches, size
            ),
        },
    ),
]
FIGURES = {
    "d04": {"output_error": Figure(0.7, 0.1), "input_gradient_error": Figure(0.9, 0.1)},
    "b05": {"forward_bytes": Figure(2304, 1e-9), "backward_bytes": Figure(2304, 1e-9)},
    "t2": {"between": Figure(0.0, 1e-9), "gathered_times": Figure(3.75, 1e-6)},
    "b06": {"times": Figure(2667, 0.001), "bytes_a_token": Figure(36.0, 1e-9)},
    "d06": {"put": Figure(4, 1e-9), "belong": Figure(2, 1e-9)},
    "d12": {"right_factor": Figure(0.1646, 0.02), "local_factor": Figure(0.308, 0.02)},
    "d13": {"apart": Figure(0.0, 1e-6)},
    "d04.change": {"output": Figure(0.0, 1e-9), "input_gradient": Figure(0.9, 0.1)},
    "b05.change": {"times": Figure(2 / 3, 1e-9)},
    "t2.change": {"tp": Figure(2.0, 0.005), "dp": Figure(3.457, 0.005)},
    "b06.change": {"reduced": Figure(1.0, 0.0), "gathered": Figure(2.0, 0.0)},
    "d06.change": {"put": Figure(2, 0.0), "belong": Figure(4, 0.0)},
    "d12.change": {"ends_higher": Figure(1, 0.0)},
    "d13.change": {"apart": Figure(0.0, 1e-6)},
}
TRIES = {
    "b06.follow_ups.2": """rows, ranks = 250, 4
padded = -(-rows // ranks) * ranks
assert (padded, padded // ranks) == (252, 63)""",
    "d06.follow_ups.3": """from simlab import Plan

where = Plan(tp=4, pp=2, microbatches=2).layout.all_coordinates()
assert [its.tp for its in where] == [0, 1, 2, 3, 0, 1, 2, 3]  # neighbours are a tensor group""",
}

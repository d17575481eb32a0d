"""What lesson 2 asks about schedules: predictions, exercises, figures, and code that answers
follow-ups."""

from random import Random
from typing import Any

from simlab.analysis import bubble
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Number, Prediction
from simlab.schedules import generate
from simlab.studies.partition import best_partition, stage_work

PREDICTIONS = [
    Prediction("b09", {"1f1b": Number("ms"), "zb-v": Number("ms")}),
    Prediction("b09.change", {"zb-v": Number("ms"), "zb-h1": Number("ms")}),
    Prediction("d07", {"head": Number("blocks")}),
    Prediction("d07.change", {"kept": Number("x"), "cut": Number("x")}),
]


def _pipeline(draw: Random) -> dict[str, Any]:
    p = draw.choice((2, 4, 8))
    return {"p": p, "m": p * draw.randrange(1, 5), "chunks": draw.choice((2, 3, 4))}


def _idle_share(p: int, m: int, chunks: int) -> float:
    """Of the simulated step."""
    program = generate("interleaved-1f1b", p, m, chunks=chunks)
    return bubble(simulate(program, OpTimes(forward_s=0.01, backward_s=0.02))).idle_over_makespan


def solution_b09(p, m, chunks):  # type: ignore[no-untyped-def]
    """Idle (p-1)(F+B)/chunks, useful m(F+B)."""
    return (p - 1) / (chunks * m + p - 1)


def _layers(draw: Random) -> dict[str, Any]:
    p = draw.choice((4, 8, 16))
    return {"blocks": p * draw.randrange(2, 7), "head": round(draw.uniform(1.2, 7.5), 1), "p": p}


def _ratio(blocks: int, head: float, p: int) -> float:
    """By the exact partition."""
    layers = [*[1.0] * blocks, head]
    return (blocks / p + head) / max(stage_work(layers, best_partition(layers, p)))


def solution_d07(blocks, head, p):  # type: ignore[no-untyped-def]
    """The best last stage has k blocks besides the head; the others share the rest."""
    best = min(max(k + head, -(-(blocks - k) // (p - 1))) for k in range(blocks))
    return (blocks / p + head) / best


EXERCISES = [
    Exercise(
        "b09",
        level=1,
        draw=_pipeline,
        oracle=_idle_share,
        solution=solution_b09,
        mistakes={
            "over_ideal": lambda p, m, chunks: (p - 1) / (chunks * m),
            "no_chunks": lambda p, m, chunks: (p - 1) / (m + p - 1),
            "share_divided": lambda p, m, chunks: (p - 1) / (m + p - 1) / chunks,
            "multiplied": lambda p, m, chunks: (p - 1) * chunks / (m + (p - 1) * chunks),
            "more_stages": lambda p, m, chunks: (p * chunks - 1) / (m + p * chunks - 1),
        },
        unit="%",
        scale=100.0,
    ),
    Exercise(
        "d07",
        level=2,
        draw=_layers,
        oracle=_ratio,
        solution=solution_d07,
        mistakes={
            "mean": lambda blocks, head, p: (blocks / p + head) / ((blocks + head) / p),
            "no_head": lambda blocks, head, p: (
                _ratio(blocks, head, p) * (blocks / p) / (blocks / p + head)
            ),
            "parts": lambda blocks, head, p: (
                (blocks / p + head)
                / min(max(k + head, (blocks - k) / (p - 1)) for k in range(blocks))
            ),
            "alone": lambda blocks, head, p: (blocks / p + head) / max(head, -(-blocks // (p - 1))),
        },
        sets=10,
        unit="x",
    ),
]

FIGURES = {
    "b09": {"bubble_1f1b_ms": Figure(180.0, 1e-6), "bubble_zb_v_ms": Figure(0.0, 1e-6)},
    "b09.change": {"zb_v_ms": Figure(60.0, 1e-6)},
    "d07": {"head_blocks": Figure(4.4617, 0.001), "equal_layers_over_best": Figure(1.4, 0.3)},
}

TRIES = {
    "b09.follow_ups.2": """\
import simlab as sl

whole = sl.OpTimes(forward_s=0.02, backward_s=0.04)
for milliseconds in (0, 20, 40):
    link = sl.Link(latency_s=milliseconds * 1e-3)
    gpipe = sl.simulate(sl.generate("gpipe", 4, 8), whole, link=link).step_s
    program = sl.generate("interleaved-1f1b", 4, 8)
    chunks = sl.simulate(program, whole.scaled(1 / 2), link=link).step_s
    print(f"{milliseconds} ms: GPipe {gpipe:.2f} s, interleaved {chunks:.2f} s")
assert chunks > gpipe, "with 40 ms for each transfer GPipe is the shorter one"
""",
}

"""Amounts as charts: memory over a step, ZeRO's curves, predicted over measured."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate

from simlab.analysis import Stack
from simlab.units import GIB, MS
from simlab.views.chart import Area, Axis, Chart, Dots, Line, Mark, Rule, Symbol, Words
from simlab.views.charts.bars import CAPACITY, ON_RANK
from simlab.views.language import LANGUAGE
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS, STAGE_COLOURS, STAGE_NAMES

DASHES: dict[int, tuple[int, ...] | None] = {0: None, 1: (8, 4), 2: (8, 3, 2, 3), 3: (2, 3)}
SYMBOLS: tuple[Symbol, ...] = ("circle", "diamond", "triangle", "ring", "cross")
TOP = 1.2
"""How much higher than what is held a picture of it is."""


def stack_charts(stacks: Sequence[Stack], height_in: float = 3.2) -> list[Chart]:
    """What a rank holds over a step, category on category, all with one height scale, and those
    that have times with one time axis, which holds the longest."""
    highest = max(max(*stack.totals, stack.capacity_bytes or 0) for stack in stacks)
    height = round(96 * height_in)
    charts = [
        stack_chart(stack, Words(stack.name, stack.name), highest, height, key=f"stack {at}")
        for at, stack in enumerate(stacks)
    ]
    if not all(stack.timed for stack in stacks):
        return charts
    least = min(stack.edges[0] for stack in stacks) / MS
    most = max(stack.edges[-1] for stack in stacks) / MS
    return [replace(chart, x=replace(chart.x, least=least, most=most)) for chart in charts]


def stack_chart(
    stack: Stack, title: Words, highest: float, height: int, *, key: str = "step"
) -> Chart:
    """What is held, category on category; the peak, and where it first passes the capacity.

    highest: the bytes that have room in the picture."""
    ops, scale = [*stack.ops, stack.ops[-1]], MS if stack.timed else 1
    edges = [edge / scale for edge in stack.edges]
    held = {name: [*amounts, amounts[-1]] for name, amounts in stack.held.items()}
    tops = [[amount / GIB for amount in each] for each in accumulate(held.values(), _sums)]
    marks: list[Mark] = [
        Area(
            edges,
            low,
            high,
            CATEGORY_COLOURS[name],
            CATEGORY_WORDS[name],
            tips=[
                Words(f"{op}\n{words.en}: {_gib(amount)}", f"{op}\n{words.zh}：{_gib(amount)}")
                for op, amount in zip(ops, held[name])
            ],
        )
        for name, words, low, high in zip(
            held, map(CATEGORY_WORDS.__getitem__, held), [[0.0] * len(edges), *tops], tops
        )
    ]
    if stack.capacity_bytes:
        marks.append(Rule("cap", CAPACITY, y=stack.capacity_bytes / GIB))
    if stack.breach is not None:
        first = Words("first over it", "首次超出")
        marks.append(_point(stack, stack.breach, scale, "cap", "cross", first))
    marks.append(_point(stack, stack.peak, scale, "ink", "triangle", Words("peak", "峰值")))
    x = Axis(
        Words("ops of the step, in order", "这一步的 op（按顺序）"),
        least=edges[0],
        most=edges[-1],
        ticks=[edge + 0.5 for edge in edges[:-1]],
        names=stack.ops,
    )
    if stack.timed:
        x = Axis(Words(**LANGUAGE["words"]["time"]), least=edges[0], most=edges[-1])
    return Chart(
        key,
        title,
        x,
        Axis(ON_RANK, least=0, most=TOP * highest / GIB),
        marks,
        height,
        timed=stack.timed,
    )


def _sums(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other)]


def _gib(count: float) -> str:
    return f"{count / GIB:,.1f} GiB"


def _point(stack: Stack, at: int, scale: float, colour: str, symbol: Symbol, name: Words) -> Dots:
    x = (stack.edges[at] + stack.edges[at + 1]) / 2 / scale
    text = f"{stack.ops[at]}: {_gib(stack.totals[at])}"
    tips = [Words(f"{name.en}\n{text}", f"{name.zh}\n{text}")]
    return Dots([x], [stack.totals[at] / GIB], colour, name, symbol, 6, labels=[text], tips=tips)


# curves
# --------------------------------------------------------------------------------------------------


def stage_words(stage: int) -> Words:
    """What a ZeRO stage is called."""
    return Words(STAGE_NAMES[stage], "普通数据并行" if stage == 0 else STAGE_NAMES[stage])


def zero_lines(ranks: Sequence[int], curves: Mapping[int, Sequence[float]]) -> list[Line]:
    """The model states on a rank over the number of ranks, a line for each ZeRO stage."""
    return [
        Line(
            ranks,
            [amount / GIB for amount in amounts],
            STAGE_COLOURS[stage],
            name,
            DASHES[stage],
            tips=[
                Words(
                    f"{name.en}, dp = {count}: {_gib(amount)}",
                    f"{name.zh}，dp = {count}：{_gib(amount)}",
                )
                for count, amount in zip(ranks, amounts)
            ],
        )
        for stage, amounts in curves.items()
        for name in [stage_words(stage)]
    ]


def zero_chart(
    ranks: Sequence[int],
    curves: Mapping[int, Sequence[float]],
    *,
    title: Words,
    capacity_bytes: float | None = None,
    more: Sequence[Mark] = (),
    height: int = 300,
) -> Chart:
    """The model states on a rank under each ZeRO stage, a GPU's memory, and `more` marks."""
    size = _gib(capacity_bytes or 0)
    name = Words(f"{CAPACITY.en}: {size}", f"{CAPACITY.zh}：{size}")
    cap = [Rule("cap", name, y=capacity_bytes / GIB)] if capacity_bytes else []
    return Chart(
        "curves",
        title,
        Axis(Words("data-parallel ranks", "数据并行 rank 数"), "log2"),
        Axis(ON_RANK, "log2"),
        [*zero_lines(ranks, curves), *cap, *more],
        height,
    )


def runs_chart(rows: Sequence[tuple[str, float, float]], errors: Mapping[str, float]) -> Chart:
    """Each run's predicted over measured step time against its measured one.

    rows: [(suite, measured, predicted step time in s)]. errors: {suite: mean error in percent}."""
    off = Words("10% off", "相差 10%")
    marks: list[Mark] = [
        Rule("muted", y=1, dash=None),
        *(Rule("muted", off, y=y) for y in (0.9, 1.1)),
    ]
    for at, suite in enumerate(sorted({row[0] for row in rows})):
        its = [(s, predicted_s / s) for name, s, predicted_s in rows if name == suite]
        name = f"{suite}: {len(its)} runs, {errors[suite]:.1f}%"
        x, y = [s for s, _ in its], [ratio for _, ratio in its]
        tips = [Words(*2 * (f"{suite}: {s:.4g} s, {r:.3f}",)) for s, r in its]
        look = LANGUAGE["suites"][at % len(LANGUAGE["suites"])], Words(name, name)
        symbol = SYMBOLS[(at + at // len(LANGUAGE["suites"])) % len(SYMBOLS)]
        marks.append(Dots(x, y, *look, symbol, 3 if len(its) > 50 else 5, tips=tips))
    return Chart(
        "runs",
        Words(
            "Published training runs, predicted (suite: runs, mean absolute error)",
            "公开的训练：预测（组：次数，平均绝对误差）",
        ),
        Axis(Words("measured step time, s", "实测一步时间，s"), "log10"),
        Axis(Words("predicted / measured", "预测 / 实测"), least=0.5, most=1.5),
        marks,
        400,
    )

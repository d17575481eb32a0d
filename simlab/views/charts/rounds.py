"""It draws one round of a collective: who sends what to whom, and what every rank then holds."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import cos, hypot, pi, sin
from typing import Any

from simlab.collectives.replay import RoundState
from simlab.units import bytes_text
from simlab.views.chart import Arrows, Axis, Boxes, Chart, Dots, Mark, Words
from simlab.views.rounds import (
    ADDED_COLOUR,
    DARK,
    REPLACED_COLOUR,
    Grid,
    arrow_x,
    cell_words,
    grid,
    listed,
    sends,
)

LINES = 8  # of who sends what
ADDED = Words("added in this round", "本轮累加")
REPLACED = Words("put in place in this round", "本轮写入")
COMPLETE = Words("complete sum Σ", "完整的和 Σ")
HAS, LACKS = Words("has the part", "已有这一份"), Words("does not have it", "没有")
ROW_PX, AXES_PX = 30, 60
INSET = 0.09  # of a cell, for the frame of what arrived
PAPER = "background"  # the colour of a cell without a sum, in each theme
MOST_LARGE, LARGE_PX, SMALL_PX = 10, 13, 9  # more ranks on the circle are smaller dots
PX_OF_CIRCLE = 100  # its radius, about


def sent_text(step: RoundState) -> Words:
    """Who sends what, at most `LINES` lines."""
    if not step.transfers:
        text = "At the start every rank has its own contribution only."
        return Words(text, "开始时每个 rank 只有自己的数据。")
    lines = sends(step)
    more = len(lines) - LINES
    english = [*lines[:LINES], *([f"… and {more} more"] if more > 0 else [])]
    chinese = _sends_in_chinese(step)[:LINES]
    chinese += [f"… 还有 {more} 条"] if more > 0 else []
    return Words("\n".join(english), "\n".join(chinese))


def _sends_in_chinese(step: RoundState) -> list[str]:
    """What `sends` says of each transfer."""
    names = dict(zip(step.parts, grid(step).columns))
    lines = []
    for t in step.transfers:
        parts = listed([names[part] for part in t.parts], "、")
        which = f"第 {parts} 份" if len(names) > 1 else "全部"
        size, what = bytes_text(t.size_bytes), "累加" if t.adds else "写入"
        lines.append(f"{t.source} → {t.destination}：{which}（{size}），{what}")
    return lines


def circle_chart(step: RoundState, *, gathers: bool = False) -> Chart:
    """The ranks on a circle, and an arrow for each message of the round.

    gathers: whether a rank has a part or does not, and nothing is summed."""
    count = len(step.ranks)
    turns = [2 * pi * at / count - pi / 2 for at in range(count)]
    x, y = [cos(turn) for turn in turns], [sin(turn) for turn in turns]
    place = {rank: (x[at], y[at]) for at, rank in enumerate(step.ranks)}
    radius = LARGE_PX if count <= MOST_LARGE else SMALL_PX
    marks: list[Mark] = []
    for adds, colour, name in ((True, ADDED_COLOUR, ADDED), (False, REPLACED_COLOUR, REPLACED)):
        sent = [
            (transfer, Words(*lines))
            for transfer, *lines in zip(step.transfers, sends(step), _sends_in_chinese(step))
            if transfer.adds == adds
        ]
        if sent:
            ends = [_between(place[t.source], place[t.destination], radius) for t, _ in sent]
            tips = [told for _, told in sent]
            x0, y0, x1, y1 = zip(*ends)
            marks.append(Arrows(x0, y0, x1, y1, colour, name, tips=tips))
    parts, verb = len(step.parts), "parts are there" if gathers else "sums are complete"
    tips = [
        Words(
            f"rank {rank}: {step.complete[rank]} of {parts} {verb}",
            f"rank {rank}：{parts} 份中 {step.complete[rank]} 份已完整",
        )
        for rank in step.ranks
    ]
    labels = [str(rank) for rank in step.ranks]
    marks.append(
        Dots(x, y, "muted", Words("rank", "rank"), radius=radius, labels=labels, tips=tips)
    )
    edge = Axis(Words("", ""), least=-1.2, most=1.2)
    down = Axis(Words("", ""), least=-1.2, most=1.2, down=True)
    english = f"Messages of round {step.number}" if step.number else "Before the first round"
    title = Words(english, f"第 {step.number} 轮的消息" if step.number else "第一轮之前")
    return Chart("circle", title, edge, down, marks, 250, square=True, bare=True)


def _between(
    source: tuple[float, float], destination: tuple[float, float], radius_px: int
) -> tuple[float, float, float, float]:
    """(x0, y0, x1, y1) of an arrow that ends near the edges of both ranks."""
    (a, b), (c, d) = source, destination
    part = (radius_px + 3) / PX_OF_CIRCLE / hypot(c - a, d - b)
    return a + part * (c - a), b + part * (d - b), c - part * (c - a), d - part * (d - b)


def cells_chart(step: RoundState, view: Grid, *, gathers: bool = False) -> Chart:
    """What every rank holds of every part; what has just arrived has a frame, its text stays
    visible.

    gathers: whether a rank has a part or does not, and nothing is summed."""
    frames = [
        _boxes(cells, 0, colour, Words(f"frame: {name.en}", f"边框：{name.zh}"))
        for cells, colour, name in (
            (view.added, ADDED_COLOUR, ADDED),
            (view.replaced, REPLACED_COLOUR, REPLACED),
        )
        if cells
    ]
    held: dict[float, list[tuple[int, int]]] = {}
    for row, shares in enumerate(view.shares):
        for column, share in enumerate(shares):
            held.setdefault(share, []).append((row, column))
    marks = []
    for share, cells in sorted(held.items()):
        colour, name = _look(share, len(view.rows), gathers=gathers)
        texts = None if gathers else [view.texts[row][column] for row, column in cells]
        tips = [_holds(step, view, cell, gathers=gathers) for cell in cells]
        marks.append(_boxes(cells, INSET, colour, name, texts, tips))
    rows, columns = len(view.rows), len(view.columns)
    english, chinese = view.title, f"第 {step.number} 轮后" if step.number else "开始时"
    parts = [*range(columns)]
    return Chart(
        "cells",
        Words(f"What every rank holds, {english}", f"每个 rank 的内容，{chinese}"),
        _axis(
            Words("part of the buffer", "缓冲区第几份"), columns, names=view.columns, ticks=parts
        ),
        _axis(Words("", ""), rows, names=view.rows, ticks=[*range(rows)], down=True),
        [*frames, *marks],
        250,
    )


def rounds_charts(steps: Sequence[RoundState]) -> list[Chart]:
    """What every rank holds after each of `steps`, and beside it an arrow from every sender to its
    receiver."""
    return [_round_chart(step, grid(step)) for step in steps]


def _round_chart(step: RoundState, view: Grid) -> Chart:
    chart, columns = cells_chart(step, view), len(view.columns)
    x = [arrow_x(view, *arrow) for arrow in view.arrows]
    senders, receivers = zip(*view.arrows) if view.arrows else ((), ())
    number = step.number
    return replace(
        chart,
        key=f"round {number}",
        title=Words(view.title, f"第 {number} 轮后" if number else "开始时"),
        x=replace(chart.x, least=-0.5 - 0.29 * columns),
        marks=[*chart.marks, Arrows(x, senders, x, receivers, "muted")],
        height=AXES_PX + ROW_PX * len(view.rows),
    )


def _look(share: float, ranks: int, *, gathers: bool) -> tuple[str, Words]:
    """(colour, name) of the cells with this share of all contributions."""
    own, (own_only, some) = 1 / ranks, cell_words(ranks)
    if share == 1:
        return DARK, HAS if gathers else COMPLETE
    if share == 0:
        return PAPER, LACKS
    return (PAPER, own_only) if share == own else (_mixed(share, own), some)


def _axis(label: Words, count: int, **rest: Any) -> Axis:
    return Axis(label, least=-0.5, most=count - 0.5, **rest)


def _boxes(
    cells: Iterable[tuple[int, int]],
    inset: float,
    colour: str,
    name: Words,
    labels: Sequence[str] | None = None,
    tips: Sequence[Words] | None = None,
) -> Boxes:
    cells, half = list(cells), 0.5 - inset
    return Boxes(
        [column - half for _, column in cells],
        [column + half for _, column in cells],
        [row - half for row, _ in cells],
        [row + half for row, _ in cells],
        colour,
        name,
        outline="muted" if inset else None,
        labels=labels,
        tips=tips,
    )


def _holds(step: RoundState, view: Grid, cell: tuple[int, int], *, gathers: bool) -> Words:
    row, column = cell
    rank, part = step.ranks[row], step.parts[column]
    if gathers:
        words, name = HAS if step.held[rank][part] else LACKS, view.columns[column]
        return Words(
            f"rank {rank}, part {name}: {words.en}", f"rank {rank}，第 {name} 份：{words.zh}"
        )
    of = ", ".join(str(each) for each in sorted(step.held[rank][part]))
    return Words(
        f"rank {rank}, part {view.columns[column]}: sum of ranks {of}",
        f"rank {rank}，第 {view.columns[column]} 份：rank {of} 之和",
    )


def _mixed(share: float, own: float) -> str:
    """The colour of a partial sum: the more contributions, the darker."""
    part = 0.15 + 0.5 * (share - own) / (1 - own)
    dark = [int(DARK[at : at + 2], 16) for at in (1, 3, 5)]
    return "#" + "".join(f"{round(255 + part * (each - 255)):02X}" for each in dark)

"""It shows which rank computes which part of a causal mask, and who waits for whom."""

from collections.abc import Sequence
from fractions import Fraction
from itertools import product

from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.lowering.context import context_chunks, ring_work
from simlab.views.chart import Axis, Boxes, Chart, Words
from simlab.views.language import RANK_COLOURS

ROWS = 64
"""The queries that the mask is drawn with; each stands for a 64th of the sequence."""
LAYOUTS = {
    "contiguous": Words("contiguous", "连续切分"),
    "zigzag": Words("zigzag", "zigzag 切分"),
}
CONTROLS = (
    Control("cp", Words("context-parallel ranks", "上下文并行 rank 数"), (2, 4, 8), 4),
    Control("step", Words("step of the ring", "环的第几步"), tuple(range(8)), 0),
)


def answer(state: State) -> Answer:
    """The mask under both layouts, and the ring's steps beside it."""
    cp = state["cp"]
    step = min(state["step"], cp - 1)
    work = {layout: ring_work(cp, layout) for layout in LAYOUTS}
    totals = {layout: [sum(its) for its in work[layout]] for layout in LAYOUTS}
    ends = {layout: sum(_longest(work[layout])) for layout in LAYOUTS}
    waits = {layout: 1 - Fraction(1, cp) / ends[layout] for layout in LAYOUTS}
    rows = [
        (Words("least on a rank, of all scores", "单个 rank 的最小份额"), map(min, totals.values())),
        (Words("most on a rank, of all scores", "单个 rank 的最大份额"), map(max, totals.values())),
        (Words("a rank waits, mean over ranks", "rank 平均等待的时间占比"), waits.values()),
    ]  # fmt: skip
    figures = [Figure(name, [f"{float(share):.2%}" for share in shares]) for name, shares in rows]
    longer = float(ends["contiguous"] / ends["zigzag"])
    note = Words(
        f"Contiguous chunks take {longer:g} times as long as zigzag: the mask leaves most scores "
        f"to rank {cp - 1}, and the others wait for it.",
        f"连续切分的用时是 zigzag 切分的 {longer:g} 倍：掩码下 rank {cp - 1} 的计算量最大，其他 rank 都在等它。",
    )
    pictures = [_mask(cp, layout, step) for layout in LAYOUTS]
    pictures += [_steps(work[layout], layout, float(cp * max(ends.values()))) for layout in LAYOUTS]
    return Answer(figures, pictures, note, list(LAYOUTS), {"step": list(range(cp))})


def _longest(work: Sequence[Sequence[Fraction]]) -> list[Fraction]:
    """[what the busiest rank computes at each step of the ring]"""
    return [max(shares) for shares in zip(*work)]


def _mask(cp: int, layout: str, step: int) -> Chart:
    """Queries down, keys across: what each rank computes, the blocks of one step striped."""
    held = [context_chunks(rank, cp, layout) for rank in range(cp)]
    count = cp * len(held[0])
    size = ROWS // count
    step_name = Words(f"computed at step {step}", f"第 {step} 步计算")
    marks = []
    for rank, chunks in enumerate(held):
        boxes = [box for queries in chunks for box in _block(queries, queries, size)]
        boxes += [(0, size * a, size * a, size * (a + 1)) for a in chunks if a]
        tips = [_rank(rank)] * len(boxes)
        marks.append(Boxes.at(boxes, RANK_COLOURS[rank], _rank(rank), tips=tips))
    for rank, chunks in enumerate(held):  # the blocks of the step lie over all
        theirs = held[(rank - step) % cp]
        boxes = [box for a, b in product(chunks, theirs) if b <= a for box in _block(a, b, size)]
        tips = [_rank(rank)] * len(boxes)
        if boxes:
            look = {"pattern": "striped", "tips": tips}
            marks.append(Boxes.at(boxes, RANK_COLOURS[rank], step_name, **look))
    chunks_of = [str(chunk) for chunk in range(count)]
    middles = [size * (chunk + 0.5) for chunk in range(count)]
    return Chart(
        f"mask {layout}",
        Words(f"Who computes what, {LAYOUTS[layout].en}", f"谁算哪一块：{LAYOUTS[layout].zh}"),
        Axis(Words("chunk of the keys", "K 分块"), ticks=middles, names=chunks_of),
        Axis(Words("chunk of the queries", "Q 分块"), ticks=middles, names=chunks_of, down=True),
        marks,
        height=260,
        square=True,
    )


def _block(queries: int, keys: int, size: int) -> list[tuple[float, float, float, float]]:
    """[(x0, x1, y0, y1)] of what the mask leaves of a block: on the diagonal a staircase."""
    left, top = keys * size, queries * size
    if keys < queries:
        return [(left, left + size, top, top + size)]
    return [(left, left + row + 1, top + row, top + row + 1) for row in range(size)]


def _rank(rank: int) -> Words:
    return Words(f"rank {rank}", f"rank {rank}")


def _steps(work: Sequence[Sequence[Fraction]], layout: str, most: float) -> Chart:
    """A row for each rank: what it computes at each step, and how long it waits for the busiest.

    Time is counted in scores: messages take none, and no rank begins a step before the others.
    """
    longest = [float(len(work) * share) for share in _longest(work)]
    starts = [sum(longest[:at]) for at in range(len(work))]
    marks, waiting = [], []
    for rank, shares in enumerate(work):
        top, bottom, places, labels = rank - 0.4, rank + 0.4, [], []
        for step, (start, share, most_of) in enumerate(zip(starts, shares, longest)):
            end, last = start + float(share * len(work)), start + most_of
            if share:
                places.append((start, end, top, bottom))
                labels.append(str(step))
            if last > end:
                waiting.append((end, last, top, bottom))
        marks.append(
            Boxes.at(places, RANK_COLOURS[rank], _rank(rank), outline="background", labels=labels)
        )
    if waiting:
        name = Words("waits for the busiest rank", "等待最忙的 rank")
        marks.append(Boxes.at(waiting, "waiting", name, pattern="hatched"))
    ranks = range(len(work))
    return Chart(
        f"steps {layout}",
        Words(f"The steps of the ring, {LAYOUTS[layout].en}", f"环的各步：{LAYOUTS[layout].zh}"),
        Axis(
            Words("time; 1 is an even share of the scores", "时间（1 = 均分的计算量）"),
            least=0,
            most=most,
        ),
        Axis(Words("", ""), ticks=list(ranks), names=[f"rank {rank}" for rank in ranks], down=True),
        marks,
        height=70 + 20 * len(work),
    )


EXPLORER = Explorer(
    "causal_mask",
    Words("Causal attention: who computes which block", "因果注意力：谁算哪一块"),
    CONTROLS,
    answer,
    play="step",
)

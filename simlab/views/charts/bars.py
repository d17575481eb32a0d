"""Bars of parts as charts: what a step is spent on, and what fills a GPU."""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from simlab.training import Prediction
from simlab.units import GIB, MS, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Rule, Words
from simlab.views.language import LANGUAGE, colours
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS

PARTS = {
    "compute": Words("compute", "计算"),
    "host": Words("host", "主机"),
    "tp": Words("tensor parallel", "张量并行"),
    "cp": Words("context parallel", "上下文并行"),
    "ep": Words("expert parallel", "专家并行"),
    "dp": Words("data parallel", "数据并行"),
    "pp": Words("waits for messages", "等消息"),
    "bubble": Words("bubble without waits for messages", "气泡（不含等消息）"),
    "optimizer": Words("optimizer", "优化器"),
    "offload": Words("offload", "offload"),
}
STREAM_COLOURS = colours("streams")  # a dimension has one colour in every picture of shares
PART_COLOURS = {
    "compute": LANGUAGE["parts"]["compute"],
    "host": LANGUAGE["parts"]["host"],
    "tp": STREAM_COLOURS["tp"],
    "cp": STREAM_COLOURS["cp"],
    "ep": LANGUAGE["parts"]["ep"],
    "dp": STREAM_COLOURS["dp"],
    "pp": STREAM_COLOURS["send"],
    "bubble": "waiting",
    "optimizer": STREAM_COLOURS["optimizer"],
    "offload": LANGUAGE["parts"]["offload"],
}
CAPACITY = Words("the GPU's memory", "GPU 显存")
ON_RANK = Words("GiB on a rank", "每个 rank 的 GiB")
NO_NAME = Words("", "")
ROW_PX, AXES_PX = 28, 60
BAR = Axis(Words("", ""), least=-0.5, most=0.5, ticks=(), names=())
NARROW = 0.05  # of a bar


def step_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (part, seconds) of the step's waterfall in order, including parts that take no time."""
    return list(zip(prediction.waterfall_s._fields, prediction.waterfall_s))


def memory_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (category, GiB) at the peak of the rank with the highest peak."""
    held = prediction.memory_bytes
    return [(name, held[name] / GIB) for name in CATEGORY_COLOURS if name in held]


class _Part(NamedTuple):
    """A part of a bar: its length on the axis, and what it looks like."""

    length: float
    name: Words
    label: str
    tip: Words
    colour: str


def _stacked(parts: Iterable[_Part], whole: float = 0.0) -> tuple[list[Mark], float]:
    """(the parts that have a length beside each other, the end of the last one). The legend says
    how much a part is that has no room for its label on an axis of at least `whole`."""
    marks: list[Mark] = []
    at = 0.0
    drawn = [part for part in parts if part.length > 0]
    whole = max(whole, sum(part.length for part in drawn))
    for part in drawn:
        end = at + part.length
        narrow = part.length < NARROW * whole
        name = Words(*(f"{text} {part.label}" for text in part.name)) if narrow else part.name
        boxes = Boxes.at(
            [(at, end, -0.4, 0.4)],
            part.colour,
            name,
            pattern="hatched" if part.colour == "waiting" else "plain",
            outline="background",
            labels=[part.label],
            tips=[part.tip],
        )
        marks.append(boxes)
        at = end
    return marks, at


def step_chart(found: Prediction) -> Chart:
    """The parts of the step beside each other, ms."""

    def part(name: str, seconds: float) -> _Part:
        share, words = f"{seconds / found.step_s:.1%}", PARTS[name]
        took = seconds_text(seconds)
        tip = Words(f"{words.en}: {took}, {share}", f"{words.zh}：{took}，{share}")
        return _Part(seconds / MS, words, share, tip, PART_COLOURS[name])

    marks, end = _stacked(part(name, seconds) for name, seconds in step_parts(found))
    axis = Axis(Words("time, ms: means over ranks", "时间，ms：各 rank 的平均"), least=0, most=end)
    whole = seconds_text(found.step_s)
    title = Words(f"What the step of {whole} is spent on", f"一步 {whole} 花在哪里")
    return Chart("step", title, axis, BAR, marks, 80)


def memory_chart(found: Prediction) -> Chart:
    """What the fullest GPU holds at its peak, GiB, and its capacity."""

    def part(category: str, gib: float) -> _Part:
        words = CATEGORY_WORDS[category]
        tip = Words(f"{words.en}: {gib:.2f} GiB", f"{words.zh}：{gib:.2f} GiB")
        return _Part(gib, words, f"{gib:.1f}", tip, CATEGORY_COLOURS[category])

    capacity = found.cluster.gpu.memory_bytes / GIB
    parts = (part(category, gib) for category, gib in memory_parts(found))
    marks, end = _stacked(parts, capacity)
    marks.append(Rule("cap", Words("the GPU's memory", "GPU 显存"), x=capacity))
    axis = Axis(
        Words("GiB on the fullest GPU", "最满的 GPU 上的 GiB"),
        least=0,
        most=1.05 * max(end, capacity),
    )
    title = Words("What fills the memory", "显存被什么占用")
    return Chart("memory", title, axis, BAR, marks, 80)


def shares_charts(
    predictions: Iterable[Prediction], names: Sequence[str], *, memory: bool = True
) -> list[Chart]:
    """What the step of each prediction is spent on, and what its fullest GPU holds, a bar each."""
    predictions = list(predictions)
    rows = [{name: s / MS for name, s in step_parts(each)} for each in predictions]
    step = Axis(Words("step, ms", "一步，ms"), least=0)
    found = [_bars("step", NO_NAME, rows, names, step, PART_COLOURS, PARTS, "ms")]
    if memory:
        rows = [dict(memory_parts(each)) for each in predictions]
        capacities = {each.cluster.gpu.memory_bytes / GIB for each in predictions}
        axis = Axis(Words("memory of the fullest GPU, GiB", "最满的 GPU 的显存，GiB"), least=0)
        look = CATEGORY_COLOURS, CATEGORY_WORDS
        found.append(_bars("memory", NO_NAME, rows, names, axis, *look, "GiB", capacities))
    return found


def bars_chart(
    bars: Mapping[str, Mapping[str, float]],
    *,
    capacity_bytes: float | None = None,
    longest_bytes: float | None = None,
) -> Chart:
    """What a rank holds in different cases, a bar each, cut off at `longest_bytes`."""
    rows = [{name: size / GIB for name, size in held.items()} for held in bars.values()]
    longest = (longest_bytes or max(sum(held.values()) for held in bars.values())) / GIB
    names = [f"{name}: {sum(row.values()):,.1f} GiB" for name, row in zip(bars, rows)]
    capacities = {capacity_bytes / GIB} if capacity_bytes else set()
    axis = Axis(ON_RANK, least=0, most=max(1.13 * longest, 1.05 * (capacity_bytes or 0) / GIB))
    look = CATEGORY_COLOURS, CATEGORY_WORDS
    return _bars("bars", NO_NAME, rows, names, axis, *look, "GiB", capacities)


def _bars(
    key: str,
    title: Words,
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    axis: Axis,
    colours: Mapping[str, str],
    words: Mapping[str, Words],
    unit: str,
    capacities: Iterable[float] = (),
) -> Chart:
    """{part: amount} of each row as a bar of its parts, in the order of `colours`."""
    marks: list[Mark] = []
    ends = [0.0] * len(rows)
    for part, colour in colours.items():
        amounts = [row.get(part, 0.0) for row in rows]
        there = [at for at, amount in enumerate(amounts) if amount > 0]
        if not there:
            continue
        name = words[part]
        tips = [
            Words(*(f"{names[at]}\n{text}: {amounts[at]:,.4g} {unit}" for text in name))
            for at in there
        ]
        places = [(ends[at], ends[at] + amounts[at], at - 0.35, at + 0.35) for at in there]
        pattern = "hatched" if colour == "waiting" else "plain"
        marks.append(Boxes.at(places, colour, name, pattern=pattern, outline="outline", tips=tips))
        ends = [end + amount for end, amount in zip(ends, amounts)]
    marks += [Rule("cap", CAPACITY, x=capacity) for capacity in sorted(capacities)]
    down = Axis(
        NO_NAME, least=-0.5, most=len(rows) - 0.5, ticks=range(len(rows)), names=names, down=True
    )
    return Chart(key, title, axis, down, marks, AXES_PX + ROW_PX * len(rows))

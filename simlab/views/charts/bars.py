"""Bars of parts as charts: what a step is spent on, and what fills a GPU."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from simlab.training import Prediction
from simlab.units import GIB, MS, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Rule, Words
from simlab.views.language import LANGUAGE, colours
from simlab.views.scene import CATEGORY_COLOURS, CATEGORY_WORDS

STREAM_COLOURS = colours("streams")  # a dimension has one colour in every picture of shares
STEP = {
    "compute": (LANGUAGE["parts"]["compute"], Words("compute", "计算")),
    "host": (LANGUAGE["parts"]["host"], Words("host", "主机")),
    "tp": (STREAM_COLOURS["tp"], Words("tensor parallel", "张量并行")),
    "cp": (STREAM_COLOURS["cp"], Words("context parallel", "上下文并行")),
    "ep": (LANGUAGE["parts"]["ep"], Words("expert parallel", "专家并行")),
    "dp": (STREAM_COLOURS["dp"], Words("data parallel", "数据并行")),
    "pp": (STREAM_COLOURS["send"], Words("waits for messages", "等消息")),
    "bubble": ("waiting", Words("bubble without waits for messages", "气泡（不含等消息）")),
    "optimizer": (STREAM_COLOURS["optimizer"], Words("optimizer", "优化器")),
    "offload": (LANGUAGE["parts"]["offload"], Words("offload", "offload")),
}
MEMORY = {name: (colour, CATEGORY_WORDS[name]) for name, colour in CATEGORY_COLOURS.items()}
"""{part of a step, category of memory: (its colour, its name)}"""
CAPACITY = Words("the GPU's memory", "GPU 显存")
ON_RANK = Words("GiB on a rank", "每个 rank 的 GiB")
NO_NAME = Words("", "")
ROW_PX, AXES_PX = 28, 60
NARROW = 0.05  # of a bar


def step_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (part, seconds) of the step's waterfall in order, including parts that take no time."""
    return list(zip(prediction.waterfall_s._fields, prediction.waterfall_s))


def memory_parts(prediction: Prediction) -> list[tuple[str, float]]:
    """The (category, GiB) at the peak of the rank with the highest peak."""
    held = prediction.memory_bytes
    return [(name, held[name] / GIB) for name in CATEGORY_COLOURS if name in held]


def step_chart(found: Prediction) -> Chart:
    """The parts of the step beside each other, ms."""
    whole, parts = seconds_text(found.step_s), _step_ms(found)

    def share(ms: float) -> str:
        return f"{ms * MS / found.step_s:.1%}"

    axis = Axis(Words("time, ms: means over ranks", "时间，ms：各 rank 的平均"), least=0)
    return _bars(
        "step",
        Words(f"What the step of {whole} is spent on", f"一步 {whole} 花在哪里"),
        [parts],
        [""],
        replace(axis, most=sum(parts.values())),
        STEP,
        lambda ms: f"{seconds_text(ms * MS)}, {share(ms)}",
        label=share,
    )


def memory_chart(found: Prediction) -> Chart:
    """What the fullest GPU holds at its peak, GiB, and its capacity."""
    parts, capacity = dict(memory_parts(found)), found.cluster.gpu.memory_bytes / GIB
    axis = Axis(Words("GiB on the fullest GPU", "最满的 GPU 上的 GiB"), least=0)
    return _bars(
        "memory",
        Words("What fills the memory", "显存被什么占用"),
        [parts],
        [""],
        replace(axis, most=1.05 * max(sum(parts.values()), capacity)),
        MEMORY,
        _gib,
        [capacity],
        label=lambda gib: f"{gib:.1f}",
    )


def shares_charts(
    predictions: Iterable[Prediction], names: Sequence[str], *, memory: bool = True
) -> list[Chart]:
    """What the step of each prediction is spent on, and what its fullest GPU holds, a bar each."""
    predictions = list(predictions)
    rows = [_step_ms(each) for each in predictions]
    step = Axis(Words("step, ms", "一步，ms"), least=0)
    found = [_bars("step", NO_NAME, rows, names, step, STEP, lambda ms: seconds_text(ms * MS))]
    if memory:
        rows = [dict(memory_parts(each)) for each in predictions]
        capacities = {each.cluster.gpu.memory_bytes / GIB for each in predictions}
        axis = Axis(Words("memory of the fullest GPU, GiB", "最满的 GPU 的显存，GiB"), least=0)
        found.append(_bars("memory", NO_NAME, rows, names, axis, MEMORY, _gib, capacities))
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
    return _bars("bars", NO_NAME, rows, names, axis, MEMORY, _gib, capacities)


def _step_ms(found: Prediction) -> dict[str, float]:
    return {name: s / MS for name, s in step_parts(found)}


def _gib(amount: float) -> str:
    return f"{amount:.2f} GiB"


def _tip(row: str, name: Words, amount: str) -> Words:
    above = f"{row}\n" if row else ""
    chinese = amount.replace(", ", "，")
    return Words(f"{above}{name.en}: {amount}", f"{above}{name.zh}：{chinese}")


def _bars(
    key: str,
    title: Words,
    rows: Sequence[Mapping[str, float]],
    names: Sequence[str],
    axis: Axis,
    looks: Mapping[str, tuple[str, Words]],
    text: Callable[[float], str],
    capacities: Iterable[float] = (),
    *,
    label: Callable[[float], str] | None = None,
) -> Chart:
    """{part: amount} of each row as a bar of its parts, in the order of `looks`.

    looks: {part: (its colour, its name)}. text: what a tip calls an amount.
    label: what stands in a part, or in the legend behind its name where it has no room for that."""
    marks: list[Mark] = []
    ends = [0.0] * len(rows)
    whole = max([*(sum(row.values()) for row in rows), *capacities])
    for part, (colour, name) in looks.items():
        amounts = [row.get(part, 0.0) for row in rows]
        there = [at for at, amount in enumerate(amounts) if amount > 0]
        if not there:
            continue
        tips = [_tip(names[at], name, text(amounts[at])) for at in there]
        labels = [label(amounts[at]) for at in there] if label else None
        narrow = labels and max(amounts) < NARROW * whole
        marks.append(
            Boxes.at(
                [(ends[at], ends[at] + amounts[at], at - 0.35, at + 0.35) for at in there],
                colour,
                Words(*(f"{its} {', '.join(labels)}" for its in name))
                if labels and narrow
                else name,
                pattern="hatched" if colour == "waiting" else "plain",
                outline="outline",
                labels=labels,
                tips=tips,
            )
        )
        ends = [end + amount for end, amount in zip(ends, amounts)]
    marks += [Rule("cap", CAPACITY, x=capacity) for capacity in sorted(capacities)]
    ticks = [at for at, name in enumerate(names) if name]
    y = Axis(
        NO_NAME,
        least=-0.5,
        most=len(rows) - 0.5,
        ticks=ticks,
        down=True,
        names=[name for name in names if name],
    )
    return Chart(key, title, axis, y, marks, AXES_PX + ROW_PX * len(rows))

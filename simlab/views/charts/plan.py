"""It draws what a step is spent on, what fills a GPU, and where the ranks are, as charts."""

from collections.abc import Iterable
from typing import NamedTuple

from simlab.spec.plan import Plan
from simlab.training import Prediction
from simlab.units import GIB, MS, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Rule, Words
from simlab.views.language import LANGUAGE, RANK_COLOURS, colours
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
MOST_CELLS = 512
"""The most ranks that a picture of a plan shows."""
BAR = Axis(Words("", ""), least=-0.5, most=0.5, ticks=(), names=())
NODE_COLOURS = ("muted", "grid")
NARROW = 0.05  # of a bar
GAP = 0.5  # between the places of a pipeline, in cells


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


def ranks_chart(plan: Plan, gpus_per_node: int, caption: str = "") -> Chart:
    """Each rank as a cell in the colour of its place in the pipeline, with a frame for its node:
    tp across within each place, replicas down. Of very many replicas the first are shown.

    caption: a line above the title."""
    replicas = plan.dp * plan.cp
    shown = min(replicas, max(1, MOST_CELLS // (plan.tp * plan.pp)))
    nodes: dict[int, list[tuple[float, float, float, float]]] = {0: [], 1: []}
    cells: dict[int, list[tuple[float, float, float, float]]] = {}
    told: dict[int, list[tuple[str, Words]]] = {}
    for rank, place in enumerate(plan.layout.all_coordinates()):
        row = place.dp * plan.cp + place.cp
        if row >= shown:
            continue
        x, node = place.pp * (plan.tp + GAP) + place.tp, rank // gpus_per_node
        nodes[node % 2].append((x, x + 1, row, row + 1))
        cells.setdefault(place.pp, []).append((x + 0.12, x + 0.88, row + 0.14, row + 0.86))
        text = (
            f"rank {rank}: dp {place.dp}, cp {place.cp}, pp {place.pp}, tp {place.tp}, node {node}"
        )
        told.setdefault(place.pp, []).append((str(rank), Words(text, text)))
    frames = Words("frame: a node, every other one dark", "边框：节点，深浅交替")
    marks: list[Mark] = [
        Boxes.at(places, NODE_COLOURS[parity], frames) for parity, places in nodes.items() if places
    ]
    for pp, places in sorted(cells.items()):
        colour = RANK_COLOURS[pp % len(RANK_COLOURS)]
        name = Words(f"pp {pp}", f"pp {pp}") if plan.pp <= len(RANK_COLOURS) else None
        labels, tips = [label for label, _ in told[pp]], [tip for _, tip in told[pp]]
        marks.append(Boxes.at(places, colour, name, labels=labels, tips=tips))
    title = _ranks_title(plan, gpus_per_node, shown, replicas)
    return Chart(
        "ranks",
        Words(*(f"{caption}\n{text}".strip() for text in title)),
        _places_axis(plan),
        Axis(
            Words("", ""),
            least=0,
            most=shown,
            ticks=[row + 0.5 for row in range(shown)],
            names=[_replica(plan, row) for row in range(shown)],
            down=True,
        ),
        marks,
        min(70 + 22 * shown, 150),
        wide=True,
    )


def _ranks_title(plan: Plan, gpus_per_node: int, shown: int, replicas: int) -> Words:
    nodes = -(-plan.gpus // gpus_per_node)
    english = f"{plan.gpus} ranks on {nodes} node{'s' * (nodes > 1)}"
    chinese = f"{nodes} 个节点上的 {plan.gpus} 个 rank"
    if shown < replicas:
        english += f", the first {shown} of {replicas} replicas"
        chinese += f"，{replicas} 个副本中的前 {shown} 个"
    return Words(english, chinese)


def _places_axis(plan: Plan) -> Axis:
    step = plan.tp + GAP
    return Axis(
        Words("place in the pipeline; within it tp", "流水线位置；其中为 tp"),
        least=0,
        most=plan.pp * step - GAP,
        ticks=[pp * step + plan.tp / 2 for pp in range(plan.pp)],
        names=[f"pp {pp}" for pp in range(plan.pp)],
    )


def _replica(plan: Plan, row: int) -> str:
    return f"dp {row}" if plan.cp == 1 else f"dp {row // plan.cp}, cp {row % plan.cp}"

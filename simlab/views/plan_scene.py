"""What a plan's pictures show, as plain boxes that any renderer can draw: a layer trace by streams, the ranks as a cube, shares."""

from typing import NamedTuple

from simlab.units import GIB, seconds_text
from simlab.views.scene import COLOURS, IDLE_COLOUR, MEANING

MOST_BOXES = 2_000
MOST_CELLS = 512

# Okabe & Ito's palette; an op's colours are scene.COLOURS. A stream has one colour in every picture.
STREAM_COLOURS = {"tp": "#D55E00", "cp": "#999999", "dp": "#0072B2", "send": "#CC79A7", "optimizer": "#000000"}
STREAM_MEANING = {
    "tp": "tensor parallel", "cp": "context parallel", "dp": "data parallel", "send": "message to another stage", "optimizer": "optimizer",
}  # fmt: skip
STREAMS = ("compute", "tp", "cp", "dp", "replicas", "send")
PART_COLOURS = {
    "compute": "#56B4E9", "host": "#F0E442", "tp": STREAM_COLOURS["tp"], "cp": STREAM_COLOURS["cp"], "dp": STREAM_COLOURS["dp"],
    "pp": STREAM_COLOURS["send"], "bubble": IDLE_COLOUR, "optimizer": STREAM_COLOURS["optimizer"], "offload": "#009E73",
}  # fmt: skip
MEMORY_COLOURS = {
    "parameters": "#0072B2", "gradients": "#56B4E9", "optimizer": "#009E73", "activations": "#E69F00", "buffers": "#CC79A7",
}  # fmt: skip
STAGE_COLOURS = ("#56B4E9", "#E69F00", "#009E73", "#F0E442", "#CC79A7", "#0072B2", "#D55E00", "#999999")
ALL_COLOURS = COLOURS | STREAM_COLOURS
ALL_MEANING = {kind: f"{kind} {meaning}" for kind, meaning in MEANING.items()} | STREAM_MEANING


class StreamBox(NamedTuple):
    """Work on one stream: `row` counts the scene's rows, `kind` is an op's letter or a stream's name."""

    row: int
    start_s: float
    end_s: float
    kind: str
    text: str


class StreamScene(NamedTuple):
    """A trace as rows of streams."""

    title: str
    rows: list[tuple[int, str]]  # (rank, stream)
    boxes: list[StreamBox]
    start_s: float
    end_s: float
    merged: bool  # whether a box may stand for several


def stream_scene(trace, *, window=None, ranks=None, streams=STREAMS, only=""):
    """The `StreamScene` of `trace` within `window` (start, end) in s: all of it unless given. ranks: those to show; None: all.

    only: show what belongs to the op, or the part of one, whose name begins so: '0F0 layer 1'.

    There is a row for each stream that is used meanwhile, on every rank alike. Where that were more than `MOST_BOXES` boxes, neighbours
    with the smallest gaps become one, first those of one kind.
    """
    spans = [span for span in trace.spans if span.op.startswith(only) and _stream(span) in streams and span.end_s > span.start_s]
    start_s, end_s = window or (min((s.start_s for s in spans), default=0.0), max((s.end_s for s in spans), default=0.0))
    ranks = range(trace.ranks) if ranks is None else ranks
    inside = [span for span in spans if span.end_s > start_s and span.start_s < end_s]
    used = {_stream(span) for span in inside if span.rank in ranks}
    rows = [(rank, stream) for rank in ranks for stream in STREAMS if stream in used]
    number = {row: at for at, row in enumerate(rows)}
    boxes = []
    for span in inside:
        if (row := number.get((span.rank, _stream(span)))) is not None:
            text = f"{span.op} to rank {span.peer}" if span.stream == "send" else span.op
            boxes.append(StreamBox(row, span.start_s, span.end_s, _kind(span), text))
    boxes.sort(key=lambda box: (box.row, box.start_s))
    shown, gap_s, count = boxes, (end_s - start_s) / 2_000, 0
    while len(shown) > MOST_BOXES:
        shown = _merged(boxes, gap_s, alike=count < 8)
        gap_s, count = 2 * gap_s, count + 1
    title = f"{trace.metadata.get('name', '')}: {seconds_text(start_s)} to {seconds_text(end_s)}"
    return StreamScene(title, rows, shown, start_s, end_s, len(shown) < len(boxes))


def _stream(span):
    return "compute" if span.stream == "optimizer" else span.stream


def _kind(span):
    """'F' of a compute span '2F0 layer 3' and of what is no op; a stream's own name otherwise."""
    if span.stream != "compute":
        return "dp" if span.stream == "replicas" else span.stream
    letter = span.op.lstrip("0123456789")[:1]
    return letter if letter in COLOURS else "F"


def _merged(boxes, gap_s, *, alike):
    """`boxes` with those that follow each other by at most `gap_s` as one, of the kind that takes longer; `alike`: of one kind only."""
    result = []
    for box in boxes:
        last = result[-1] if result else None
        joins = last is not None and last.row == box.row and box.start_s - last.end_s <= gap_s and (not alike or box.kind == last.kind)
        if not joins:
            result.append(box)
            continue
        kind = box.kind if box.end_s - box.start_s > last.end_s - last.start_s else last.kind
        text = f"{last.text.split(' … ')[0]} … {box.text}"
        result[-1] = StreamBox(last.row, last.start_s, max(last.end_s, box.end_s), kind, text)
    return result


# the cube -------------------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A rank in the cube."""

    rank: int
    stage: int
    node: int
    corners: list[tuple[float, float]]
    text: str


class CubeScene(NamedTuple):
    """The ranks of a plan: plates of tp x (dp x cp) cells, one behind the other along the pipeline."""

    title: str
    cells: list[Cell]
    borders: list[list[tuple[float, float]]]  # lines between ranks of different nodes, and round each plate
    labels: list[tuple[float, float, str]]


def cube_scene(plan, gpus_per_node):
    """The `CubeScene` of `plan` on nodes of `gpus_per_node` GPUs; of the replicas no more than `MOST_CELLS` cells have room for."""
    wide, high = plan.tp, plan.dp * plan.cp
    shown = min(high, max(1, MOST_CELLS // (wide * plan.pp)))
    at = {(p, d * plan.cp + c, t): rank for rank, (d, c, p, t) in enumerate(plan.ranks())}
    cells, borders, labels = [], [], []
    for p in range(plan.pp):
        for y in range(shown):
            for t in range(wide):
                rank = at[p, y, t]
                corners = [_place(plan, p, y + dy, t + dt) for dt, dy in ((0, 0), (1, 0), (1, 1), (0, 1))]
                place = f"dp {y // plan.cp}, cp {y % plan.cp}, pp {p}, tp {t}"
                cells.append(Cell(rank, p, rank // gpus_per_node, corners, f"rank {rank}: {place}, node {rank // gpus_per_node}"))
                for (dt, dy), line in (((-1, 0), (0, 3)), ((1, 0), (1, 2)), ((0, -1), (0, 1)), ((0, 1), (3, 2))):
                    other = at.get((p, y + dy, t + dt)) if 0 <= y + dy < shown else None
                    if other is None or other // gpus_per_node != rank // gpus_per_node:
                        borders.append([corners[line[0]], corners[line[1]]])
        left, right = _place(plan, p, 0, 0), _place(plan, p, 0, wide)
        nodes = sorted({cell.node for cell in cells if cell.stage == p})
        names = f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {nodes[0]} to {nodes[-1]}"
        labels.append(((left[0] + right[0]) / 2, left[1] - 0.03 * shown, f"pp {p}\n{names}"))
    replicas = "dp" if plan.cp == 1 else "dp x cp"
    cut = "" if shown == high else f", the first {shown} of {high} replicas"
    nodes = -(-plan.gpus // gpus_per_node)
    title = f"{plan.gpus} ranks on {nodes} node{'s' * (nodes > 1)}: across tp = {plan.tp}, up {replicas} = {high}, back pp = {plan.pp}{cut}"
    return CubeScene(title, cells, borders, labels)


def _place(plan, p, y, t):
    """Where a corner is drawn: a plate leans to the back, and stands behind and beside the one before."""
    lean = 0.45
    return p * (plan.tp * 0.8 + 0.7) + 0.8 * t, y + lean * 0.8 * t


# shares -----------------------------------------------------------------------------------------------------


def step_parts(prediction):
    """[(part, seconds)] of the step's waterfall, in order; parts that take nothing are there, too."""
    return list(zip(prediction.waterfall_s._fields, prediction.waterfall_s))


def memory_parts(prediction):
    """[(category, GiB)] at the peak of the rank that holds most."""
    return [(name, prediction.memory_bytes[name] / GIB) for name in MEMORY_COLOURS]

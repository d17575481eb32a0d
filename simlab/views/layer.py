"""It draws a layer as a chart: what one rank has of it, what it keeps, and where ranks communicate."""

from collections.abc import Iterator, Sequence

from simlab.analysis.layer_table import LayerRow, LayerTable
from simlab.layer.operation import Cut
from simlab.units import bytes_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Words
from simlab.views.language import LANGUAGE
from simlab.views.stream_rows import WORK_OF_KIND, work_name

HEADS = Words("cut by heads or columns", "按头或列切分")
EXPERTS = Words("copies of tokens for the rank's experts", "发给本 rank 专家的 token 副本")
CUTS = {
    Cut.WHOLE: ("whole", Words("whole on every rank", "每个 rank 都有完整一份")),
    Cut.TOKENS: ("tokens", Words("cut along the sequence", "沿序列切分")),
    Cut.HEADS: ("heads", HEADS),
    Cut.COLUMNS: ("heads", HEADS),
    Cut.COPIES: ("experts", EXPERTS),
    Cut.EXPERTS: ("experts", EXPERTS),
}
"""{how a tensor is cut: (its colour in the visual language, its name)}."""
OTHERS = Words("on other ranks", "在其他 rank 上")
KEPT = Words("kept for the backward", "为反向保留")
OPERATORS = {
    False: {"input": "f", "result": "g"},
    True: {"input": "g", "result": "ḡ"},
}
"""{with sequence parallelism: {what is brought: the name of the place}}, as Shoeybi et al. 2019 and
Korthikanti et al. 2022 have them."""
HIGH, LOW = 0.42, 0.36
"""Half the heights of an operation and of a communication."""
GAP, TEXT, BAR = 0.03, 0.24, 0.25
"""The widths of a gap, of the bytes that are kept and of their longest bar, over that of the widest
tensor."""
ROW_PX, AXES_PX = 19, 50
Slot = tuple[float, LayerRow]
"""(where a row of the picture is, the operation that it shows, or before which something is sent)"""


def layer_chart(table: LayerTable) -> Chart:
    """The operations of a layer from top to bottom, and between them what is communicated in the
    forward (F) and in the backward (B).

    A box is as wide as what the rank has of the numbers of a token, to scale, and as high as its part
    of the tokens. Beside it stands what the operation keeps.
    """
    shown: list[Slot] = []
    sent: list[Slot] = []
    names: list[str] = []
    for row in table.rows:
        if row.sent or row.sent_back:
            sent.append((len(names), row))
            names.append(_place(row, table.plan.sequence_parallel))
        shown.append((len(names), row))
        names.append(row.operation)
    widest = max(row.held.whole_width for row in table.rows)
    hidden = table.model.hidden
    degrees = [
        f"{name} {value}" for name in ("tp", "cp", "ep") if (value := getattr(table.plan, name)) > 1
    ]
    on = (
        Words(f" ({', '.join(degrees)})", f"（{', '.join(degrees)}）") if degrees else Words("", "")
    )
    return Chart(
        "layer",
        Words(
            f"A layer of {table.model.name} on one rank{on.en}",
            f"{table.model.name} 的一层，一个 rank 上的部分{on.zh}",
        ),
        Axis(
            Words(
                "numbers of a token; height: tokens; F: forward, B: backward",
                "每个 token 的数值个数；高度：token 数；F：前向，B：反向",
            ),
            least=0,
            most=widest * (1 + GAP + TEXT + BAR),
            ticks=[0, hidden, widest] if widest > hidden else [0, hidden],
            names=["0", f"{hidden:,}", f"{widest:,.0f}"][: 2 + (widest > hidden)],
        ),
        Axis(Words("", ""), ticks=range(len(names)), names=names, down=True),
        [*_boxes(shown), *_communications(sent, widest), *_kept(shown, widest)],
        height=AXES_PX + ROW_PX * len(names),
    )


def _place(row: LayerRow, sequence_parallel: bool) -> str:
    """Megatron-LM's name of where a rank communicates before an operation."""
    brought = {each.carries.split(" ")[0] for each in (*row.sent, *row.sent_back)}
    operators = OPERATORS[sequence_parallel]
    return ", ".join(operators[its] for its in operators if its in brought)


def _boxes(shown: Sequence[Slot]) -> Iterator[Mark]:
    """What all ranks have of each operation's numbers, and above it what this one has."""
    cut = [(y, row.held) for y, row in shown if row.held.cut is not Cut.WHOLE]
    if cut:
        places = [(0.0, its.whole_width, y - HIGH, y + HIGH) for y, its in cut]
        yield Boxes.at(places, "waiting", OTHERS, outline="axis")
    for name in dict.fromkeys(CUTS.values()):
        its = [(y, row) for y, row in shown if CUTS[row.held.cut] == name]
        places = [
            (0.0, row.held.width, y - HIGH, y - HIGH + 2 * HIGH * row.held.tokens) for y, row in its
        ]
        tips = [_held(row) for _, row in its]
        if its:
            yield Boxes.at(places, LANGUAGE["split"][name[0]], name[1], tips=tips)


def _held(row: LayerRow) -> Words:
    wide, whole, tokens = (
        f"{row.held.width:,.0f}",
        f"{row.held.whole_width:,.0f}",
        f"{row.held.tokens:.3g}",
    )
    return Words(
        f"{row.operation}: {wide} of {whole} numbers of a token, of {tokens} of the tokens",
        f"{row.operation}：每个 token 的 {whole} 个数中的 {wide} 个，占 token 的 {tokens}",
    )


def _communications(sent: Sequence[Slot], widest: float) -> Iterator[Mark]:
    """What is sent in the forward from the left, what is sent in the backward from the right."""
    most = max((len(row.sent) + len(row.sent_back) for _, row in sent), default=1)
    wide = widest / max(3, most)
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    labels: dict[str, list[str]] = {}
    tips: dict[str, list[Words]] = {}
    for y, row in sent:
        backward = widest - wide * len(row.sent_back)
        for letter, start, its in (("F", 0.0, row.sent), ("B", backward, row.sent_back)):
            for at, each in enumerate(its):
                left, size = start + at * wide, bytes_text(each.size_bytes)
                work = WORK_OF_KIND[each.kind]
                found.setdefault(work, []).append((left, left + wide, y - LOW, y + LOW))
                labels.setdefault(work, []).append(f"{letter} {size}")
                tips.setdefault(work, []).append(_tip(f"{each.name}: {size}"))
    for work, places in found.items():
        look = {"pattern": LANGUAGE["work"][work]["pattern"], "outline": "background"}
        look |= {"labels": labels[work], "tips": tips[work]}
        yield Boxes.at(places, LANGUAGE["work"][work]["colour"], work_name(work), **look)


def _kept(shown: Sequence[Slot], widest: float) -> Iterator[Mark]:
    """The bytes that each operation keeps, and a bar as long as they are many."""
    kept = [(y, row.kept_bytes) for y, row in shown if row.kept_bytes]
    if not kept:
        return
    text, most = widest * (1 + GAP), max(size for _, size in kept)
    bar, wide = text + widest * TEXT, widest * BAR / most
    places = [(text, bar, y - HIGH, y + HIGH) for y, _ in kept]
    yield Boxes.at(places, "background", labels=[bytes_text(size) for _, size in kept])
    bars = [(bar, bar + wide * size, y - LOW, y + LOW) for y, size in kept]
    tips = [_tip(bytes_text(size)) for _, size in kept]
    yield Boxes.at(bars, LANGUAGE["split"]["kept"], KEPT, tips=tips)


def _tip(text: str) -> Words:
    return Words(text, text)

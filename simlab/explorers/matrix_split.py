"""It shows which columns and rows of a layer's matrices each tensor-parallel rank holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simlab.analysis.layer_table import layer_table
from simlab.collectives import busbw_factor
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan
from simlab.units import bytes_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Words
from simlab.views.language import RANK_COLOURS
from simlab.views.layer import layer_chart

CONTROLS = (
    Control("model", Words("model", "模型"), ("llama-3-8b", "llama-2-7b", "megatron-7.5b"), "llama-3-8b"),
    Control("tp", Words("tensor-parallel ranks", "张量并行 rank 数"), (2, 4, 8), 4),
    Control("kv_heads", Words("key and value heads (of 32)", "KV 头数（共 32 个头）"), (1, 2, 4, 8, 16, 32), 8),
    Control("sequence_parallel", Words("sequence parallelism", "序列并行"), (False, True), False),
)  # fmt: skip
OWN_HEADS = Words("A model of your own has its own heads.", "你自己的模型有它自己的头数。")
GAP = 0.03
"""The room between two matrices, as a fraction of the width of all."""
Place = tuple[float, float, float, float]
AS_A_RING = Words(
    "As a ring sends it, n ranks: 2 (n - 1) / n of the buffer for an all-reduce, (n - 1) / n for a "
    "gather or a reduce-scatter.",
    "按 ring 计，n 个 rank：all-reduce 发送缓冲区的 2(n-1)/n，收集或 reduce-scatter 发送 (n-1)/n。",
)


class Matrix(NamedTuple):
    """A whole matrix of a layer: its rows are inputs, its columns outputs."""

    name: str
    rows: int
    columns: int
    by_rows: bool
    """Whether ranks hold rows of it; else columns."""
    heads: int = 0
    """How many heads its columns belong to; 0: none."""


PRODUCTS = (OperationKind.QKV, OperationKind.OUTPUT, OperationKind.UP, OperationKind.DOWN)
QKV = ("Q", "K", "V")


def matrices(model: Model) -> list[Matrix]:
    """The matrices of a layer of `model`, in the order in which they are used. One that is cut by rows has
    the name of its product, any other that of what it makes."""
    found = []
    for its in layer_operations(model):
        weights = [weight for weight in its.weights if weight.columns > 1]  # the others are biases
        for at, (made, weight) in enumerate(zip(its.makes, weights * (its.kind in PRODUCTS))):
            name = its.label if weight.by_columns else made.name
            if its.kind is OperationKind.QKV and at < len(QKV):
                name = QKV[at]
            heads = int(weight.rows / weight.least) if weight.least else 0
            shape = int(weight.columns), int(weight.rows)
            found.append(Matrix(name, *shape, weight.by_columns, heads))
    return found


def holders(parts: int, tp: int) -> list[list[int]]:
    """[ranks that hold each slice] of a matrix of `parts` heads, columns or rows. Where there are
    fewer heads than ranks, several ranks hold a copy of each."""
    copies = max(1, tp // parts)
    return [[*range(first, first + copies)] for first in range(0, tp, copies)]


def answer(state: State) -> Answer:
    """The matrices by rank, the heads by rank, and what is communicated around them."""
    model = load_model(state["model"])
    if not (own := isinstance(state["model"], Model)):
        model = replace(model, kv_heads=state["kv_heads"])
    tp = state["tp"]
    plan = Plan(tp=tp, sequence_parallel=state["sequence_parallel"]).check(model)
    table, (q, k, *_) = layer_table(model, plan), matrices(model)
    part = table.parameters / layer_table(model, Plan()).parameters
    forward, backward = (
        sum(
            busbw_factor(each.kind.replace("_", "-"), tp) * each.size_bytes
            for its in sent
            for each in its
        )
        for sent in zip(*((row.sent, row.sent_back) for row in table.rows))
    )
    figures = [
        Figure(Words("a rank's part of the layer's parameters", "每个 rank 的参数占比"), [f"{part:.1%}"]),
        Figure(Words("query heads on a rank", "每个 rank 的查询头"), [str(q.heads // tp)]),
        Figure(Words("key and value heads on a rank", "每个 rank 的 KV 头"), [str(max(1, k.heads // tp))]),
        Figure(Words("a rank sends in a layer's forward", "每层前向每个 rank 发送"), [bytes_text(forward)], AS_A_RING),
        Figure(Words("a rank sends in a layer's backward", "每层反向每个 rank 发送"), [bytes_text(backward)], AS_A_RING),
    ]  # fmt: skip
    layer = layer_chart(table)
    heads = _heads([q.heads, k.heads], tp, layer.height)
    return Answer(
        figures,
        [_split(model, tp), heads, layer],
        _note(model.seq, plan, copies=tp // k.heads),
        idle={"kv_heads": OWN_HEADS} if own else {},
    )


def _note(seq: int, plan: Plan, *, copies: int) -> Words:
    part = (plan.tp - 1) / plan.tp
    sent = Words(
        f"{2 * part:g} times the buffer of an all-reduce",
        f"一次 all-reduce 缓冲区的 {2 * part:g} 倍",
    )
    if plan.sequence_parallel:
        sent = Words(
            f"{part:g} of the buffer of a gather or a reduce-scatter",
            f"一次收集或 reduce-scatter 缓冲区的 {part:g}",
        )
    english = (
        "Columns first, then rows: a rank's columns make just what its rows need, so a pair of "
        f"products is followed by one sum. One sequence of {seq:,} tokens in 16 bits; on a "
        f"ring each rank sends {sent.en}."
    )
    chinese = (
        "先按列、再按行：一个 rank 的列恰好产生它的行所需的输入，所以每两次矩阵乘之后只需一次求和。"
        f"一条 {seq:,} 个 token 的序列，16 位；在 ring 上，每个 rank 发送{sent.zh}。"
    )
    if copies > 1:
        english += f" {copies} ranks hold a copy of each key and value head."
        chinese += f"每个 KV 头有 {copies} 个 rank 各存一份。"
    return Words(english, chinese)


def _rank(rank: int) -> Words:
    return Words(f"rank {rank}", f"rank {rank}")


def _split(model: Model, tp: int) -> Chart:
    """The matrices in the order of their use, to scale, in the colours of the ranks."""
    found = matrices(model)
    gap = GAP * sum(matrix.columns for matrix in found)
    places: dict[int, list[Place]] = {rank: [] for rank in range(tp)}
    shared: dict[int, list[Place]] = {}
    middles, left = [], 0.0
    for matrix in found:
        slices = holders(matrix.heads or tp, tp)
        for at, ranks in enumerate(slices):
            start, end = at / len(slices), (at + 1) / len(slices)
            place: Place = (left, left + matrix.columns, matrix.rows * start, matrix.rows * end)
            if not matrix.by_rows:
                edges = left + matrix.columns * start, left + matrix.columns * end
                place = (*edges, 0.0, float(matrix.rows))
            (places if len(ranks) == 1 else shared).setdefault(ranks[0], []).append(place)
        middles.append(left + matrix.columns / 2)
        left += matrix.columns + gap
    marks: list[Mark] = [
        Boxes.at(
            its,
            RANK_COLOURS[rank],
            _rank(rank),
            outline="background",
            labels=[str(rank)] * len(its),
        )
        for rank, its in places.items()
    ]
    copies = max(tp // matrix.heads for matrix in found if matrix.heads)
    name = Words(f"a copy on {copies} ranks", f"{copies} 个 rank 各存一份")
    for rank, its in shared.items():
        labels = [f"{rank}–{rank + copies - 1}"] * len(its)
        look = {"pattern": "striped", "outline": "background", "labels": labels}
        marks.append(Boxes.at(its, RANK_COLOURS[rank], name, **look))
    names = [matrix.name for matrix in found]
    return Chart(
        "split",
        Words(f"The matrices of a layer over {tp} ranks", f"一层的矩阵如何切给 {tp} 个 rank"),
        Axis(
            Words("columns (outputs), to scale", "列（输出），按比例"), ticks=middles, names=names
        ),
        Axis(Words("rows (inputs)", "行（输入）"), least=0, down=True),
        marks,
        height=145,
        wide=True,
    )


def _heads(counts: Sequence[int], tp: int, height: int) -> Chart:
    """A row for each rank: its query heads, and its key and value heads, of so many."""
    marks, shift = [], counts[0] + 2
    for rank in range(tp):
        places: list[Place] = []
        labels: list[str] = []
        for heads, left in zip(counts, (0, shift)):
            slices = holders(heads, tp)
            size = heads // len(slices)
            first = size * next(at for at, ranks in enumerate(slices) if rank in ranks)
            places.append((left + first, left + first + size, rank - 0.4, rank + 0.4))
            labels.append(f"{first}–{first + size - 1}" if size > 1 else str(first))
        look = {"outline": "background", "labels": labels}
        marks.append(Boxes.at(places, RANK_COLOURS[rank], _rank(rank), **look))
    middles = [counts[0] / 2, shift + counts[1] / 2]
    return Chart(
        "heads",
        Words("The heads of each rank", "每个 rank 的注意力头"),
        Axis(Words("numbers of the heads", "头的编号"), ticks=middles, names=["Q", "K, V"]),
        Axis(Words("", ""), ticks=range(tp), names=[f"rank {r}" for r in range(tp)], down=True),
        marks,
        height=height,
    )


EXPLORER = Explorer(
    "matrix_split",
    Words("Tensor parallelism: who holds which rows and columns", "张量并行：谁持有哪些行与列"),
    CONTROLS,
    answer,
)

"""It shows which columns and rows of a layer's matrices each tensor-parallel rank holds."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.layer.operation import OperationKind
from simlab.layer.units import layer_operations
from simlab.lowering.kernels import Communication, Matmul, layer_kernels
from simlab.lowering.pieces import BEGIN, unit_pieces
from simlab.lowering.traffic import communication_bytes
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan
from simlab.units import bytes_text
from simlab.views.chart import Axis, Boxes, Chart, Mark, Words
from simlab.views.language import LANGUAGE, RANK_COLOURS

SPLIT = LANGUAGE["split"]
CONTROLS = (
    Control("model", Words("model", "模型"), ("llama-3-8b", "llama-2-7b", "megatron-7.5b"), "llama-3-8b"),
    Control("tp", Words("tensor-parallel ranks", "张量并行 rank 数"), (2, 4, 8), 4),
    Control("kv_heads", Words("key and value heads (of 32)", "KV 头数（共 32 个头）"), (1, 2, 4, 8, 16, 32), 8),
    Control("sequence_parallel", Words("sequence parallelism", "序列并行"), (False, True), False),
)  # fmt: skip
GAP = 0.03
"""The room between two matrices, as a fraction of the width of all."""
Place = tuple[float, float, float, float]
AS_A_RING = Words(
    "As a ring sends it, n ranks: 2 (n - 1) / n of the buffer for an all-reduce, (n - 1) / n for a "
    "gather or a reduce-scatter.",
    "按 ring 计，n 个 rank：all-reduce 发送缓冲区的 2(n-1)/n，收集或 reduce-scatter 发送 (n-1)/n。",
)
WHOLE = Words("whole on every rank", "每个 rank 都有完整一份")
BY_TOKENS = Words("cut along the sequence", "沿序列切分")
BY_HEADS = Words("cut by heads or columns", "按头或列切分")
KINDS = {
    "all_reduce": "all-reduce",
    "all_gather": "gather",
    "reduce_scatter": "reduce-scatter",
}
"""{kind of a collective: its entry in the visual language}."""


class Part(NamedTuple):
    """A part of a layer: what is computed, or what is communicated before or after a product."""

    width: float
    label: str = ""
    cut: bool = False
    """Whether it is computed on a rank's own heads or columns."""
    product: OperationKind | None = None
    operator: tuple[str, str] = ("", "")
    """The names of what is communicated, without (Shoeybi et al. 2019) and with sequence
    parallelism (Korthikanti et al. 2022)."""


BEFORE, AFTER = ("f", "g"), ("g", "ḡ")
MLP = "up, activation, down"
LAYER = (
    Part(2.0, "norm"),
    Part(1.3, product=OperationKind.QKV, operator=BEFORE),
    Part(4.0, "QKV, attention, output", cut=True),
    Part(1.3, product=OperationKind.OUTPUT, operator=AFTER),
    Part(2.5, "residual, norm"),
    Part(1.3, product=OperationKind.UP, operator=BEFORE),
    Part(4.0, MLP, cut=True),
    Part(1.3, product=OperationKind.DOWN, operator=AFTER),
    Part(2.0, "residual"),
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


NAMES = {
    OperationKind.QKV: ("Q", "K", "V"),
    OperationKind.OUTPUT: ("output",),
    OperationKind.UP: ("gate", "up"),
    OperationKind.DOWN: ("down",),
}
"""{product: the names of its matrices; without a gate the last one}."""


def matrices(model: Model) -> list[Matrix]:
    """The matrices of a layer of `model`, in the order in which they are used."""
    found = []
    for its in layer_operations(model):
        weights = [weight for weight in its.weights if weight.columns > 1]  # the others are biases
        for name, weight in zip(NAMES.get(its.kind, ())[-len(weights) :], weights):
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
    model = replace(load_model(state["model"]), kv_heads=state["kv_heads"])
    tp = state["tp"]
    plan = Plan(tp=tp, sequence_parallel=state["sequence_parallel"]).check(model)
    kernels = layer_kernels(model, plan)
    held = sum(kernel.n * kernel.k for kernel in kernels.forward if isinstance(kernel, Matmul))
    of_all = sum(matrix.rows * matrix.columns for matrix in matrices(model))
    forward, backward = (
        [kernel for kernel in its if isinstance(kernel, Communication)]
        for its in (kernels.forward, kernels.input_grad)
    )
    begun = [[p for p in unit_pieces(kernels, op, plan) if p.action == BEGIN] for op in "FB"]
    sent = [sum(communication_bytes(piece, plan) for piece in pieces) for pieces in begun]
    kv = max(1, model.kv_heads // tp)
    figures = [
        Figure(Words("a rank's part of the layer's matrices", "每个 rank 的矩阵占比"), [f"{held / of_all:.1%}"]),
        Figure(Words("query heads on a rank", "每个 rank 的查询头"), [str(model.heads // tp)]),
        Figure(Words("key and value heads on a rank", "每个 rank 的 KV 头"), [str(kv)]),
        Figure(Words("a rank sends in a layer's forward", "每层前向每个 rank 发送"), [bytes_text(sent[0])], AS_A_RING),
        Figure(Words("a rank sends in a layer's backward", "每层反向每个 rank 发送"), [bytes_text(sent[1])], AS_A_RING),
    ]  # fmt: skip
    layer = _layer(plan, forward, backward, gated=model.gated_mlp)
    pictures = [_split(model, tp), _heads(model, tp), layer]
    return Answer(figures, pictures, _note(model, plan))


def _note(model: Model, plan: Plan) -> Words:
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
        f"products is followed by one sum. One sequence of {model.seq:,} tokens in 16 bits; on a "
        f"ring each rank sends {sent.en}."
    )
    chinese = (
        "先按列、再按行：一个 rank 的列恰好产生它的行所需的输入，所以每两次矩阵乘之后只需一次求和。"
        f"一条 {model.seq:,} 个 token 的序列，16 位；在 ring 上，每个 rank 发送{sent.zh}。"
    )
    copies = plan.tp // model.kv_heads
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
    copies = tp // model.kv_heads
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
        height=190,
        wide=True,
    )


def _heads(model: Model, tp: int) -> Chart:
    """A row for each rank: its query heads, and its key and value heads."""
    marks, shift = [], model.heads + 2
    for rank in range(tp):
        places: list[Place] = []
        labels: list[str] = []
        for heads, first in ((model.heads, 0), (model.kv_heads, shift)):
            slices = holders(heads, tp)
            number = next(at for at, ranks in enumerate(slices) if rank in ranks)
            size = heads // len(slices)
            its = range(number * size, (number + 1) * size)
            places += [(first + head, first + head + 1, rank - 0.4, rank + 0.4) for head in its]
            labels += map(str, its)
        look = {"outline": "background", "labels": labels}
        marks.append(Boxes.at(places, RANK_COLOURS[rank], _rank(rank), **look))
    middles = [model.heads / 2, shift + model.kv_heads / 2]
    return Chart(
        "heads",
        Words("The heads of each rank", "每个 rank 的注意力头"),
        Axis(Words("numbers of the heads", "头的编号"), ticks=middles, names=["Q", "K, V"]),
        Axis(Words("", ""), ticks=range(tp), names=[f"rank {r}" for r in range(tp)], down=True),
        marks,
        height=60 + 16 * tp,
        wide=True,
    )


def _layer(
    plan: Plan, forward: Sequence[Communication], backward: Sequence[Communication], *, gated: bool
) -> Chart:
    """A layer from left to right: what is computed on which part, and what is communicated; the
    forward above, the backward, which goes from right to left, below."""
    regions: dict[Words, list[tuple[Place, str]]] = {}
    sent: dict[str, list[tuple[Place, Communication]]] = {}
    left, ticks = 0.0, []
    outside = BY_TOKENS if plan.sequence_parallel else WHOLE
    for part in LAYER:
        if part.product is not None:
            ticks.append(left + part.width / 2)
        for row, its in enumerate((forward, backward)):
            # the backward goes from right to left
            around = [each for each in its if each.operation == part.product][:: 1 - 2 * row]
            wide = part.width / max(1, len(around))
            for at, each in enumerate(around):
                start = left + at * wide
                box: Place = (start, start + wide, row - 0.4, row + 0.4)
                sent.setdefault(each.kind, []).append((box, each))
            if part.product is None:
                place: Place = (left, left + part.width, row - 0.4, row + 0.4)
                region = BY_HEADS if part.cut else outside
                label = f"gate, {MLP}" if gated and part.label == MLP else part.label
                regions.setdefault(region, []).append((place, label))
        left += part.width
    operators = [part.operator[plan.sequence_parallel] for part in LAYER if part.product]
    looks = {WHOLE: "waiting", BY_TOKENS: SPLIT["tokens"], BY_HEADS: SPLIT["heads"]}
    marks: list[Mark] = [
        Boxes.at([box for box, _ in its], looks[name], name, labels=[label for _, label in its],
                 outline="axis" if name == WHOLE else "background")  # which else has no visible end
        for name, its in regions.items()
    ]  # fmt: skip
    for kind, found in sent.items():
        work = LANGUAGE["work"][KINDS[kind]]
        tips = [_tip(each) for _, each in found]
        labels = [bytes_text(each.size_bytes) for _, each in found]
        look = {"pattern": work["pattern"], "labels": labels, "tips": tips, "outline": "background"}
        name = Words(work["en"], work["zh"])
        marks.append(Boxes.at([box for box, _ in found], work["colour"], name, **look))
    return Chart(
        "layer",
        Words("What is communicated, and where", "在哪里通信、通信什么"),
        Axis(
            Words(
                "F goes to the right, B to the left; f and g as Megatron-LM has them",
                "前向 F 从左到右，反向 B 从右到左；f、g 是 Megatron-LM 的叫法",
            ),
            ticks=ticks,
            names=operators,
        ),
        Axis(Words("", ""), ticks=[0, 1], names=["F", "B"], down=True),
        marks,
        height=130,
    )


def _tip(each: Communication) -> Words:
    return Words(*(f"{each.name}: {bytes_text(each.size_bytes)}" for _ in Words._fields))


EXPLORER = Explorer(
    "matrix_split",
    Words("Tensor parallelism: who holds which rows and columns", "张量并行：谁持有哪些行与列"),
    CONTROLS,
    answer,
)

"""It shows an all-reduce round by round, and the time that it takes on a cluster."""

from collections.abc import Sequence

from simlab.collectives import ALL_REDUCE, all_reduce_rounds
from simlab.collectives.curves import all_reduce_curve, choices
from simlab.collectives.group_shape import GroupShape
from simlab.collectives.replay import RoundState, replay
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, State
from simlab.spec.cluster import clusters, load_cluster
from simlab.units import KIB, MIB, bytes_text
from simlab.views.chart import Axis, Chart, Dots, Line, Mark, Words
from simlab.views.charts.rounds import cells_chart, circle_chart, sent_text
from simlab.views.rounds import ALGORITHM_COLOURS, Curve, curves, grid

MOST_RANKS, MOST_ROUNDS = 16, 30
TAKEN = Words("NCCL takes this", "NCCL 选用")
SIZE_TICKS = [KIB * 2**k / MIB for k in range(0, 25, 2)]
SIZE_NAMES = [bytes_text(KIB * 2**k).replace(".0 ", " ") for k in range(0, 25, 2)]
SIZES = Axis(Words("buffer", "缓冲区大小"), "log2", ticks=SIZE_TICKS, names=SIZE_NAMES)


def _controls() -> list[Control]:
    first = ("ring", "tree", "halving-doubling", "hierarchical")
    names = [*first, *(name for name in ALL_REDUCE if name == "star")]
    nodes = [2**k for k in range(7)]
    return [
        Control("algorithm", Words("algorithm", "算法"), names, "ring"),
        Control("ranks", Words("ranks", "rank 数"), [*range(2, MOST_RANKS + 1)], 4),
        Control("step", Words("round", "轮次"), [*range(MOST_ROUNDS + 1)], 1),
        Control("cluster", Words("cluster", "集群"), [*clusters()], "dgx-a100"),
        Control("nodes", Words("its nodes", "节点数"), nodes, 16),
    ]


def answer(state: State) -> Answer:
    """The round and the curves. A round beyond the last is the last; raises `InputError` where the
    algorithm cannot do these ranks, or the cluster has one GPU."""
    ranks = range(state["ranks"])
    steps = replay(all_reduce_rounds(state["algorithm"], ranks, MIB * len(ranks)), ranks)
    step = steps[min(state["step"], len(steps) - 1)]
    cluster = load_cluster(state["cluster"], nodes=state["nodes"])
    points = all_reduce_curve(GroupShape(cluster.gpus, cluster.gpus_per_node), cluster)
    lines = curves(points)
    view = grid(step)
    where = f"{state['nodes']} × {cluster.name}"
    return Answer(
        _figures(step, len(steps) - 1, choices(points)),
        (
            circle_chart(step),
            cells_chart(step, view),
            _time(lines, where),
            _bandwidth(lines, where),
        ),
        sent_text(step),
        values={"step": range(len(steps))},
    )


def _figures(step: RoundState, rounds: int, taken: Sequence[tuple[str, float]]) -> list[Figure]:
    most = max(step.sent_bytes(rank) for rank in step.ranks)
    sums = f"{sum(step.complete.values())} / {len(step.ranks) * len(step.parts)}"
    found = [
        Figure(Words("round", "轮次"), [f"{step.number} / {rounds}"]),
        Figure(Words("buffer", "缓冲区"), [bytes_text(MIB * len(step.ranks))]),
        Figure(Words("a rank sends in this round", "本轮每个 rank 最多发送"), [bytes_text(most)]),
        Figure(Words("complete sums", "完整的和"), [sums]),
    ]
    for name, size_bytes in taken[:4]:
        label = Words(f"NCCL from {bytes_text(size_bytes)}", f"NCCL 从 {bytes_text(size_bytes)} 起")
        found.append(Figure(label, [name]))
    return found


def _time(lines: Sequence[Curve], where: str) -> Chart:
    values = [line.times_ms for line in lines]
    title = Words(f"Time of an all-reduce on {where}", f"{where} 上 all-reduce 的时间")
    axis = Axis(Words("time, ms", "时间，ms"), "log10")
    return Chart("time", title, SIZES, axis, _lines(lines, values, "ms"), 230)


def _bandwidth(lines: Sequence[Curve], where: str) -> Chart:
    values = [line.busbw_gb for line in lines]
    title = Words(f"Bus bandwidth on {where}", f"{where} 上的总线带宽")
    axis = Axis(Words("bus bandwidth, GB/s", "总线带宽，GB/s"), least=0)
    return Chart("bandwidth", title, SIZES, axis, _lines(lines, values, "GB/s"), 230)


def _lines(lines: Sequence[Curve], values: Sequence[Sequence[float]], unit: str) -> list[Mark]:
    """A line for each algorithm, and a ring around each point that NCCL takes."""
    marks: list[Mark] = []
    x, y, told = [], [], []
    for line, amounts in zip(lines, values):
        texts = [
            f"{line.algorithm}, {bytes_text(size * MIB)}: {amount:.3g} {unit}"
            for size, amount in zip(line.sizes_mib, amounts)
        ]
        tips = [Words(text, text) for text in texts]
        name = Words(line.algorithm, line.algorithm)
        colour = ALGORITHM_COLOURS[line.algorithm]
        marks.append(Line(line.sizes_mib, amounts, colour, name, tips=tips))
        x += [line.sizes_mib[at] for at in line.chosen]
        y += [amounts[at] for at in line.chosen]
        told += [
            Words(f"{TAKEN.en}: {texts[at]}", f"{TAKEN.zh}：{texts[at]}") for at in line.chosen
        ]
    return [*marks, Dots(x, y, "ink", TAKEN, "ring", 4, tips=told)]


EXPLORER = Explorer(
    "collectives",
    Words("All-reduce, round by round", "逐轮看 all-reduce"),
    _controls(),
    answer,
    "step",
)

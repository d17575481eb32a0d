"""It shows the rounds of one collective of an op among the ranks that take part in it."""

from typing import NamedTuple

from simlab.collectives.all_reduce import ring_all_reduce
from simlab.collectives.others import ring_all_gather, ring_reduce_scatter
from simlab.collectives.replay import RoundState, replay, scattered
from simlab.collectives.transfer import Rounds, Transfer
from simlab.explorers.explorer import Figure
from simlab.lowering.instructions import group_of
from simlab.spec.layout import GROUPS
from simlab.spec.plan import Plan
from simlab.trace import Span, Trace
from simlab.units import bytes_text
from simlab.views.chart import Chart, Words
from simlab.views.charts.rounds import cells_chart, circle_chart
from simlab.views.rounds import grid
from simlab.views.stream_rows import label, work_name, work_of

MOST_RANKS = 16
"""The most ranks whose rounds are drawn; the cells of more could not be told apart."""
GATHERS = ("all_gather", "all_to_all", "ring")
"""The kinds in which a rank has a part or does not, and nothing is summed."""
AS_A_RING = Words(
    "Drawn as a ring; the prediction takes the algorithm that NCCL would.",
    "画的是 ring 算法；预测取 NCCL 会选的算法。",
)


class Collective(NamedTuple):
    """A collective of an op: its span in the trace of layers, and the ranks of one of its groups.
    Those of the other groups do the same."""

    span: Span
    ranks: tuple[int, ...]

    def steps(self) -> list[RoundState]:
        """The start, and what each round makes of it."""
        start = scattered(self.ranks) if self.span.kind in GATHERS else None
        return replay(_rounds(self.span.kind, self.ranks, self.span.bytes), self.ranks, start)


def collectives(plan: Plan, layers: Trace, op: str, unit: str = "") -> dict[str, Collective]:
    """{name: each collective of `op` whose rounds can be drawn}, only those of `unit` if one is given.

    layers: the trace of the plan, layer by layer, in which a row is a place of the pipeline."""
    found = {}
    for span in layers.spans:
        if span.op_text != op or span.stream not in GROUPS or span.kind in ("", "message"):
            continue
        ranks = plan.layout.group(group_of(plan, span.stream), plan.layout.rank(pp=span.rank))
        if unit in ("", span.unit) and 1 < len(ranks) <= MOST_RANKS:
            found[f"{span.unit} {label(span)}"] = Collective(span, ranks)
    return found


def _rounds(kind: str, ranks: tuple[int, ...], size_bytes: float) -> Rounds:
    """The rounds of a collective: those of a ring, of an all-to-all those of pairs."""
    n = len(ranks)
    if kind == "all_reduce":
        return ring_all_reduce(ranks, size_bytes)
    if kind == "reduce_scatter":
        return ring_reduce_scatter(ranks, size_bytes)
    if kind == "all_gather":
        return ring_all_gather(ranks, size_bytes)
    # a part is named after the rank that it comes from
    far = range(1, n) if kind == "all_to_all" else (1,)
    size_bytes /= n if kind == "all_to_all" else 1
    return [
        [Transfer(ranks[at], ranks[(at + k) % n], size_bytes, (at,)) for at in range(n)]
        for k in far
    ]


def round_charts(chosen: Collective, step: RoundState) -> tuple[Chart, Chart]:
    """Who sends what in a round, and what each rank then holds."""
    gathers = chosen.span.kind in GATHERS
    return circle_chart(step, gathers=gathers), cells_chart(step, grid(step), gathers=gathers)


def round_figures(chosen: Collective, step: RoundState, rounds: int) -> list[Figure]:
    """What is communicated, and how much of it in this round."""
    span, name = chosen.span, work_name(work_of(chosen.span))
    sent = max(step.sent_bytes(rank) for rank in step.ranks)
    return [
        Figure(
            Words(f"{name.en} over {span.stream}", f"{span.stream} 的{name.zh}"),
            [bytes_text(span.bytes)],
        ),
        Figure(Words("round", "轮次"), [f"{step.number} / {rounds}"]),
        Figure(Words("a rank sends at most", "一个 rank 最多发送"), [bytes_text(sent)]),
    ]


def round_note(chosen: Collective) -> Words:
    """What the picture leaves out."""
    others = Words("The other groups do the same.", "其余各组同时做同样的事。")
    if chosen.span.kind in ("all_to_all", "ring"):
        return others
    return Words(*(f"{each} {ring}" for each, ring in zip(others, AS_A_RING)))

"""It draws where the ranks of a plan are, as a chart."""

from collections.abc import Sequence

from simlab.spec.plan import Plan
from simlab.views.chart import Axis, Boxes, Chart, Mark, Words
from simlab.views.language import RANK_COLOURS

MOST_CELLS = 512
"""The most ranks that a picture of a plan shows."""
NODE_COLOURS = ("muted", "grid")
GAP = 0.5  # between the places of a pipeline, in cells


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
        _places_axis(
            plan, [[int(label) // gpus_per_node for label, _ in told[pp]] for pp in sorted(told)]
        ),
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


def _places_axis(plan: Plan, nodes: Sequence[Sequence[int]]) -> Axis:
    """The places of the pipeline, with the first and the last of the `nodes` that each is on."""
    step = plan.tp + GAP
    ends = [dict.fromkeys((min(on), max(on))) for on in nodes]
    return Axis(
        Words("place in the pipeline; within it tp", "流水线位置；其中为 tp"),
        least=0,
        most=plan.pp * step - GAP,
        ticks=[pp * step + plan.tp / 2 for pp in range(plan.pp)],
        names=[f"pp {pp}: node {'–'.join(map(str, on))}" for pp, on in enumerate(ends)],
    )


def _replica(plan: Plan, row: int) -> str:
    return f"dp {row}" if plan.cp == 1 else f"dp {row // plan.cp}, cp {row % plan.cp}"

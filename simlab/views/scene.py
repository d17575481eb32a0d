"""Trace → scene: what a timeline shows, as plain boxes and lines that any renderer can draw."""

from itertools import pairwise
from typing import NamedTuple

from simlab.analysis import bubble, critical_path, gaps, memory_curve, peak_memory
from simlab.program import Op
from simlab.trace import COMPUTE
from simlab.units import seconds_text

# Okabe & Ito's palette, which colour-blind people can tell apart; one op has one colour in every picture
COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
MEANING = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
IDLE_COLOUR = "#F2F2F2"
PATH_COLOUR, FADED = "#000000", 0.3  # the critical path's line; the opacity of the boxes that are not on it
# ranks in the memory strip: dark to light, distinct in grey too
RANK_COLOURS = ("#000000", "#D55E00", "#0072B2", "#CC79A7", "#009E73", "#E69F00", "#56B4E9", "#999999")


class Box(NamedTuple):
    """One op: `rank` is its row, `label` the microbatch."""

    rank: int
    start_s: float
    end_s: float
    kind: str
    op: str
    label: str


class Scene(NamedTuple):
    """One trace as it is drawn."""

    title: str
    ranks: int
    end_s: float
    boxes: list[Box]
    memory: list[tuple[list[float], list[float]]]  # per rank: (times, amounts), a step line
    peaks: list[float]

    @property
    def kinds(self):
        """The op kinds that occur, in the order F B I W."""
        return [kind for kind in COLOURS if any(box.kind == kind for box in self.boxes)]


def scene(trace):
    """The `Scene` of `trace`: time starts at its first op."""
    zero_s = trace.start_s
    boxes = []
    for span in trace.compute():
        op = Op.parse(span.op)
        boxes.append(Box(span.rank, span.start_s - zero_s, span.end_s - zero_s, op.kind, span.op, str(op.microbatch)))
    memory = []
    for rank in range(trace.ranks):
        times, amounts = memory_curve(trace, rank)
        memory.append(([*(time - zero_s for time in times), trace.step_s], [*amounts, amounts[-1]]))
    return Scene(title(trace), trace.ranks, trace.step_s, boxes, memory, peak_memory(trace))


def idle(trace):
    """The `Gap`s of `trace` on the scene's clock: time starts at its first op."""
    zero_s = trace.start_s
    return [gap._replace(start_s=gap.start_s - zero_s, end_s=gap.end_s - zero_s) for gap in gaps(trace)]


def path(trace, view):
    """The boxes of `view`, the scene of `trace`, that lie on its critical path, first to last."""
    boxes = {box.op: box for box in view.boxes}
    return [boxes[span.op] for span in critical_path(trace) if span.stream == COMPUTE]


def path_lines(boxes, height):
    """The critical path through `boxes` as lines of (s, row): round each box `height` rows high, and from each to the next."""
    lines = []
    for rank, start_s, end_s, *_ in boxes:
        top, bottom = rank - height / 2, rank + height / 2
        lines.append([(start_s, top), (end_s, top), (end_s, bottom), (start_s, bottom), (start_s, top), (end_s, top)])
    for box, after in pairwise(boxes):
        side = (after.rank > box.rank) - (after.rank < box.rank)  # where the next box lies: below 1, above -1
        lines.append([(box.end_s, box.rank + side * height / 2), (after.start_s, after.rank - side * height / 2)])
    return lines


def title(trace):
    """What the trace is, in one line: where it comes from, step time, bubble, peak."""
    source = {"simulated": "Predicted", "measured": "Measured"}.get(trace.metadata.get("source"), "Trace")
    share = bubble(trace).idle_over_makespan
    peak = f", peak {max(peak_memory(trace)):g} microbatches held" if trace.memory else ""
    return f"{source}: {trace.metadata.get('name', '')}, step {seconds_text(trace.step_s)}, idle {share:.1%}{peak}"

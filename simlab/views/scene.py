"""Trace → scene: what a timeline shows, as plain boxes and lines that any renderer can draw."""

from typing import NamedTuple

from simlab.analysis import bubble, memory_curve, peak_memory
from simlab.program import Op
from simlab.units import seconds_text

# Okabe & Ito's palette, which colour-blind people can tell apart; one op has one colour in every picture
COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
MEANING = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
IDLE_COLOUR = "#F2F2F2"
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


def title(trace):
    """What the trace is, in one line: where it comes from, step time, bubble, peak."""
    source = {"simulated": "Predicted", "measured": "Measured"}.get(trace.metadata.get("source"), "Trace")
    share = bubble(trace).idle_over_makespan
    peak = f", peak {max(peak_memory(trace)):g} microbatches held" if trace.memory else ""
    return f"{source}: {trace.metadata.get('name', '')}, step {seconds_text(trace.step_s)}, idle {share:.1%}{peak}"

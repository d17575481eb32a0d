"""Trace → scene: what a timeline shows, as plain boxes and lines that any renderer can draw."""

from itertools import pairwise
from typing import NamedTuple

from simlab.analysis import breaches, bubble, critical_path, gaps, memory_curves, peak_memory
from simlab.program import Op
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE, SHARE
from simlab.units import seconds_text

# Okabe & Ito's palette, which colour-blind people can tell apart; one op has one colour in every picture
COLOURS = {"F": "#56B4E9", "B": "#E69F00", "I": "#F0E442", "W": "#009E73"}
MEANING = {"F": "forward", "B": "backward", "I": "input gradient", "W": "weight gradient"}
IDLE_COLOUR = "#F2F2F2"
PATH_COLOUR, FADED = "#000000", 0.3  # the critical path's line; the opacity of the boxes that are not on it
CAP_COLOUR = "#CC0000"
MEMORY_LABEL = {ACTIVATIONS: "activations,\nmicrobatches", LIVE: "microbatches\nheld"}
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
    memory_label: str
    peaks: list[float]
    cap: float | None
    breaches: list[tuple[float, float]]  # (time, amount) where a rank first holds more than the cap

    @property
    def kinds(self):
        """The op kinds that occur, in the order F B I W."""
        return [kind for kind in COLOURS if any(box.kind == kind for box in self.boxes)]


def scenes(traces):
    """[`Scene` of each trace], all with the same kind of memory strip: time starts at each trace's first op."""
    category = strip_category(traces)
    return [scene(trace, category) for trace in traces]


def strip_category(traces):
    """What the memory strips of `traces` show: activations where all traces count them in microbatches of a rank's share.

    Then half a rank's stages count half; else, as for measured bytes, it is the number of (stage, microbatch) pairs of which
    something is held.
    """
    shares = all(trace.metadata.get("units", {}).get(ACTIVATIONS) == SHARE for trace in traces)
    return ACTIVATIONS if shares else LIVE


def scene(trace, category=LIVE):
    """The `Scene` of `trace`, its memory strip of `category`."""
    zero_s, step_s = trace.start_s, trace.step_s
    boxes = []
    for span in trace.compute():
        op = Op.parse(span.op)
        boxes.append(Box(span.rank, span.start_s - zero_s, span.end_s - zero_s, op.kind, span.op, str(op.microbatch)))
    memory = []
    for times, amounts in memory_curves(trace, category):
        memory.append(([*(time - zero_s for time in times), step_s], [*amounts, amounts[-1]]))
    cap, over = cap_and_breaches(trace, category)
    peaks = peak_memory(trace, category)
    headline = title(trace, step_s, bubble(trace).idle_over_makespan, max(peaks))
    return Scene(headline, trace.ranks, step_s, boxes, memory, MEMORY_LABEL[category], peaks, cap, over)


def cap_and_breaches(trace, category):
    """(the cap that the strip shows or None, [(time, amount) where a rank first holds more])."""
    cap = trace.metadata.get("activation_cap") if category == ACTIVATIONS else None
    if cap is None:
        return None, []
    return cap, [(breach.time_s - trace.start_s, breach.amount) for breach in breaches(trace, cap)]


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


def title(trace, step_s, idle_share, peak):
    """What the trace is, in one line: where it comes from, step time, bubble, peak."""
    source = {"simulated": "Predicted", "measured": "Measured"}.get(trace.metadata.get("source"), "Trace")
    held = f", peak {peak:.3g} microbatches held" if trace.memory else ""
    return f"{source}: {trace.metadata.get('name', '')}, step {seconds_text(step_s)}, idle {idle_share:.1%}{held}"


# memory -------------------------------------------------------------------------------------------------------

CATEGORY_COLOURS = {
    "parameters": "#0072B2", "gradients": "#E69F00", "optimizer": "#009E73", "activations": "#56B4E9",
    "gathered": "#CC79A7", "buffers": "#D55E00", "temporaries": "#F0E442",
}  # fmt: skip
STAGE_COLOURS = {0: "#000000", 1: "#E69F00", 2: "#0072B2", 3: "#009E73"}
STAGE_DASHES = {0: "solid", 1: "dash", 2: "dashdot", 3: "dot"}
STAGE_NAMES = {0: "plain DP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}


def steps(edges, amounts):
    """([x], [y]) of a stepped line: `amounts[i]` from `edges[i]` to `edges[i + 1]`."""
    xs = [x for pair in pairwise(edges) for x in pair]
    return xs, [amount for amount in amounts for _ in (0, 1)]

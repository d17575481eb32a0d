"""Trace → scene: what a timeline shows, as plain boxes and lines that any renderer can draw."""

from collections.abc import Sequence
from itertools import pairwise
from operator import attrgetter
from typing import NamedTuple

from simlab.analysis import breaches, bubble, critical_path, memory_curves, peak_memory
from simlab.program import Op
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE, SHARE, Trace
from simlab.units import seconds_text
from simlab.views.chart import Words
from simlab.views.language import LANGUAGE, colours

KINDS = "FBIW"
COLOURS = {kind: colour for kind, colour in colours("work").items() if kind in KINDS}
FADED = LANGUAGE["marks"]["faded"]
"""The opacity of the boxes that are not on the critical path."""


class Box(NamedTuple):
    """One op: `rank` is its row, `label` the microbatch, `chunk` which of the rank's stages it is
    of, counted from 0 in the order of the stages' numbers."""

    rank: int
    start_s: float
    end_s: float
    kind: str
    op: str
    label: str
    chunk: int = 0


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
    stages: list[list[int]]  # per rank: those it has, ascending

    @property
    def kinds(self) -> list[str]:
        """The op kinds that occur, in the order F B I W."""
        return [kind for kind in COLOURS if any(box.kind == kind for box in self.boxes)]

    @property
    def chunks(self) -> int:
        """The largest number of stages that a rank has."""
        return max((len(stages) for stages in self.stages), default=1)


def scenes(traces: Sequence[Trace]) -> list[Scene]:
    """[`Scene` of each trace], all with the same kind of memory strip: time starts at each trace's
    first op."""
    category = strip_category(traces)
    return [scene(trace, category) for trace in traces]


def strip_category(traces: Sequence[Trace]) -> str:
    """What the memory strips of `traces` show: activations where all traces count them in
    microbatches of a rank's share.

    Then half a rank's stages count half; else, as for measured bytes, it is the number of (stage,
    microbatch) pairs of which something is held.
    """
    shares = all(trace.metadata.get("units", {}).get(ACTIVATIONS) == SHARE for trace in traces)
    return ACTIVATIONS if shares else LIVE


def scene(trace: Trace, category: str = LIVE) -> Scene:
    """The `Scene` of `trace`, its memory strip of `category`."""
    zero_s, step_s = trace.start_s, trace.step_s
    stages = stages_of_ranks(trace)
    boxes = []
    for span in trace.compute():
        op = Op.of_span(span)
        boxes.append(
            Box(
                span.rank,
                span.start_s - zero_s,
                span.end_s - zero_s,
                op.kind,
                span.op,
                str(op.microbatch),
                stages[span.rank].index(op.stage),
            )
        )
    memory = []
    for times, amounts in memory_curves(trace, category):
        memory.append(([*(time - zero_s for time in times), step_s], [*amounts, amounts[-1]]))
    cap, over = cap_and_breaches(trace, category)
    peaks = peak_memory(trace, category)
    chunks = max(map(len, stages), default=1)
    unit = held_unit(category, chunks)
    headline = title(trace, step_s, bubble(trace).idle_over_makespan, max(peaks), unit)
    return Scene(
        headline,
        trace.ranks,
        step_s,
        boxes,
        memory,
        memory_label(category, chunks),
        peaks,
        cap,
        over,
        stages,
    )


def stages_of_ranks(trace: Trace) -> list[list[int]]:
    """[per rank] the stages that it ran ops of, ascending. A stage's place in the list is the chunk
    whose shade it has."""
    found: list[set[int]] = [set() for _ in range(trace.ranks)]
    # quick: in C, once per span
    for stream, rank, stage in set(map(attrgetter("stream", "rank", "stage"), trace.spans)):
        if stream == COMPUTE:
            found[rank].add(stage)
    return [sorted(stages) for stages in found]


def row_label(rank: int, stages: Sequence[int]) -> str:
    """The name of a rank's row: with its stages where they are two or three, for then the rank's
    number does not tell them."""
    if not 2 <= len(stages) <= 3:
        return f"rank {rank}"
    return f"rank {rank}: stages {', '.join(map(str, stages))}"


def cap_and_breaches(trace: Trace, category: str) -> tuple[float | None, list[tuple[float, float]]]:
    """(the cap that the strip shows or None, [(time, amount) where a rank first holds more])."""
    cap = trace.metadata.get("activation_cap") if category == ACTIVATIONS else None
    if cap is None:
        return None, []
    return cap, [(breach.time_s - trace.start_s, breach.amount) for breach in breaches(trace, cap)]


def path(trace: Trace, view: Scene) -> list[Box]:
    """The boxes of `view`, the scene of `trace`, that lie on its critical path, first to last."""
    boxes = {span.op_text: box for span, box in zip(trace.compute(), view.boxes)}
    return [boxes[span.op_text] for span in critical_path(trace) if span.stream == COMPUTE]


def path_lines(boxes: Sequence[Box], height: float) -> list[list[tuple[float, float]]]:
    """The critical path through `boxes` as lines of (s, row): round each box `height` rows high,
    and from each to the next."""
    lines = []
    for rank, start_s, end_s, *_ in boxes:
        top, bottom = rank - height / 2, rank + height / 2
        lines.append(
            [
                (start_s, top),
                (end_s, top),
                (end_s, bottom),
                (start_s, bottom),
                (start_s, top),
                (end_s, top),
            ]
        )
    for box, after in pairwise(boxes):
        # where the next box lies: below 1, above -1
        side = (after.rank > box.rank) - (after.rank < box.rank)
        lines.append(
            [
                (box.end_s, box.rank + side * height / 2),
                (after.start_s, after.rank - side * height / 2),
            ]
        )
    return lines


def held_unit(category: str, chunks: int) -> str:
    """What a memory strip counts: microbatches, of which a rank with several stages may hold a
    share; or, where it is only known of which stage and microbatch something is held, such
    pairs."""
    return "stage activations held" if category == LIVE and chunks > 1 else "microbatches held"


def memory_label(category: str, chunks: int) -> str:
    """The label of a memory strip, in two lines; see `held_unit`."""
    if category == ACTIVATIONS:
        return "activations,\nmicrobatches"
    return "\n".join(held_unit(category, chunks).rsplit(" ", 1))


def title(trace: Trace, step_s: float, idle_share: float, peak: float, unit: str) -> str:
    """What the trace is, in one line: where it comes from, the time from its first op to the end of
    its last one, how much of that the ranks are idle, and what a rank holds at most, in `unit` (see
    `held_unit`)."""
    held = f", peak {_counted(peak, unit)}" if trace.memory else ""
    idle = f"idle / makespan {idle_share:.1%}"
    came = origin(trace)
    name = f"{came}: {trace.metadata.get('name', '')}" if came else trace.metadata.get("name", "")
    return ", ".join(filter(None, (name, f"makespan {seconds_text(step_s)}", f"{idle}{held}")))


def _counted(amount: float, unit: str) -> str:
    """'2 microbatches held', '1 microbatch held'."""
    text = f"{amount:.3g}"
    if text == "1":
        unit = unit.replace("microbatches", "microbatch").replace("activations", "activation")
    return f"{text} {unit}"


def origin(trace: Trace) -> str:
    """Measured; predicted, which is simulated for a machine from its figures or from measurements
    of it; or simulated from op times that were given. '' where the trace does not say."""
    about = trace.metadata
    if about.get("source") == "measured":
        return "Measured"
    if "cluster" in about:
        return f"Predicted for {about['cluster']}"
    if "calibration" in about:
        return "Predicted"
    return "Simulated" if about.get("source") == "simulated" else ""


# memory
# -------------------------------------------------------------------------------------------------------

CATEGORY_COLOURS = colours("memory")
CATEGORY_WORDS = {name: Words(its["en"], its["zh"]) for name, its in LANGUAGE["memory"].items()}
STAGE_COLOURS = dict(enumerate(LANGUAGE["zero"]))
STAGE_NAMES = {0: "plain DP", 1: "ZeRO-1", 2: "ZeRO-2", 3: "ZeRO-3"}

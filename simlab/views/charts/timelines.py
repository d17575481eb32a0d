"""Timelines as charts: ops and what ranks hold, and a trace over another one."""

from collections.abc import Callable, Iterator, Sequence
from math import nan

from simlab.analysis.comparison import compare
from simlab.trace import Trace
from simlab.units import MS, percent_text, seconds_text
from simlab.views.chart import Axis, Boxes, Chart, Dots, Line, Mark, Rule, Words
from simlab.views.language import LANGUAGE, RANK_COLOURS, shade
from simlab.views.scene import (
    COLOURS,
    FADED,
    Box,
    Scene,
    origin,
    path,
    path_lines,
    row_label,
    scenes,
)
from simlab.views.stream_rows import work_name

ROW, ROW_PX, AXES_PX, STRIP_PX = 0.8, 26, 60, 150
"""The height of a box in rows, and CSS pixels of a row, of its axes, and of a memory strip."""
HALF, UPPER_OPACITY = 0.38, 0.55
"""Of a trace over another one: the height of each half, in rows, and the opacity of the upper one,
which is paler, so that the halves are told apart in grey, too."""
NO_NAME = Words("", "")
TIME = Words(**LANGUAGE["words"]["time"])
PATH, CAP = (Words(**LANGUAGE["words"][name]) for name in ("critical path", "cap"))
UNRECORDED = LANGUAGE["words"]["unrecorded"]["en"]


def timeline_charts(
    traces: Sequence[Trace],
    *,
    critical_path: bool = False,
    memory: bool = True,
    caption: str | None = None,
) -> list[Chart]:
    """For each trace the chart of its ops, and below it that of what its ranks hold, all with one
    time axis.

    critical_path: whether to outline the ops of the critical path, join them by a line, and fade
                   the others.
    memory:        whether to show what ranks hold; where it was not recorded the title says so.
    caption:       a line above the first title.
    """
    views = scenes(traces)
    end_s = max(view.end_s for view in views)
    highest = max(max(*view.peaks, view.cap or 0) for view in views)
    shades = max(view.chunks for view in views)
    found = []
    for number, (trace, view) in enumerate(zip(traces, views)):
        recorded = any(view.peaks)
        title = view.title if recorded or not memory else f"{view.title}\n{UNRECORDED}"
        title = f"{caption}\n{title}" if caption and not number else title
        on_path = path(trace, view) if critical_path else None
        found.append(
            Chart(
                f"timeline {number}",
                Words(title, title),
                Axis(NO_NAME if memory and recorded else TIME, least=0, most=end_s * 1.005 / MS),
                _rows([row_label(rank, stages) for rank, stages in enumerate(view.stages)]),
                [
                    *_ops(view, on_path),
                    *_entries(shades),
                    *_path(on_path),
                ],
                AXES_PX + ROW_PX * view.ranks,
                wide=True,
                timed=True,
            )
        )
        if memory and recorded:
            found.append(_strip(view, number, end_s, highest))
    return found


def _rows(names: Sequence[str]) -> Axis:
    ranks = len(names)
    return Axis(NO_NAME, least=-0.5, most=ranks - 0.5, ticks=range(ranks), names=names, down=True)


def _idle(rows: Sequence[tuple[int, float, float]]) -> Boxes:
    """The hatched rows, (row, start, end) in seconds, in which nothing is computed."""
    places = [(a / MS, b / MS, row - ROW / 2, row + ROW / 2) for row, a, b in rows]
    return Boxes.at(places, "waiting", pattern=LANGUAGE["work"]["waiting"]["pattern"])


def _ops(view: Scene, on_path: Sequence[Box] | None) -> Iterator[Mark]:
    """Idle rows, and on them the ops; those that are not on a path are faded."""
    yield _idle([(rank, 0.0, view.end_s) for rank in range(view.ranks)])
    strong = {box.op for box in (view.boxes if on_path is None else on_path)}
    yield from _by_look(view, -ROW / 2, ROW, lambda box: 1.0 if box.op in strong else FADED)


def _by_look(
    view: Scene, shift: float, high: float, opacity: Callable[[Box], float]
) -> Iterator[Boxes]:
    """The ops of `view`, each kind in its shades, the full one first; `shift` rows above the middle
    of a row they begin, and `high` rows they are high."""
    for kind in view.kinds:
        looks: dict[tuple[float, int, str], list[Box]] = {}
        for box in view.boxes:
            if box.kind == kind:
                fill = shade(COLOURS[kind], box.chunk, len(view.stages[box.rank]))
                looks.setdefault((-opacity(box), box.chunk, fill), []).append(box)
        for (faded, _, fill), boxes in sorted(looks.items()):
            its = fill if faded == -1 else f"{fill}{round(-255 * faded):02X}"
            yield _boxes(boxes, its, kind, shift, high)


def _boxes(boxes: Sequence[Box], fill: str, kind: str, shift: float, high: float) -> Boxes:
    name = work_name(kind)
    tips = [
        Words(
            f"{box.op}, rank {box.rank}: {name.en}\n{_when(box)}",
            f"{box.op}, rank {box.rank}：{name.zh}\n{_when(box)}",
        )
        for box in boxes
    ]
    return Boxes.at(
        [
            (box.start_s / MS, box.end_s / MS, box.rank + shift, box.rank + shift + high)
            for box in boxes
        ],
        fill,
        name,
        outline="outline",
        labels=[box.label for box in boxes],
        tips=tips,
    )


def _when(box: Box) -> str:
    took = seconds_text(box.end_s - box.start_s)
    return f"{box.start_s / MS:.6g} – {box.end_s / MS:.6g} ms ({took})"


def _entries(chunks: int) -> list[Mark]:
    """What the legend says besides kinds of ops: what the shades are, and what is idle."""
    look = LANGUAGE["work"]["waiting"]
    idle = Boxes.at([], "waiting", Words(look["en"], look["zh"]), pattern=look["pattern"])
    if chunks < 2:
        return [idle]
    return [Boxes.at([], "background", chunk_words(chunks)), idle]


def chunk_words(chunks: int) -> Words:
    """What the shades of so many chunks are."""
    numbers = ", ".join(map(str, range(chunks))) if chunks <= 3 else f"0–{chunks - 1}"
    words = LANGUAGE["words"]["chunks"]
    return Words(*(f"{words[tongue]} {numbers}" for tongue in Words._fields))


def _path(boxes: Sequence[Box] | None) -> list[Mark]:
    """The critical path: one line round each of its boxes and from each to the next."""
    if not boxes:
        return []
    x: list[float] = []
    y: list[float] = []
    for line in path_lines(boxes, ROW):
        x += [*(time_s / MS for time_s, _ in line), nan]
        y += [*(row for _, row in line), nan]
    return [Line(x, y, "path", PATH)]


def _strip(view: Scene, number: int, end_s: float, highest: float) -> Chart:
    """What each rank holds over time."""
    marks: list[Mark] = []
    for rank, (times, amounts) in enumerate(view.memory):
        name = f"rank {rank}" if view.ranks <= len(RANK_COLOURS) else None
        colour = RANK_COLOURS[rank % len(RANK_COLOURS)]
        tips = [
            Words(*2 * (f"rank {rank}, {time_s / MS:.6g} ms: {amount:.4g}",))
            for time_s, amount in zip(times, amounts)
        ]
        its = name and Words(name, name)
        x = [time_s / MS for time_s in times]
        marks.append(Line(x, amounts, colour, its or None, stepped=True, tips=tips))
    if view.cap is not None:
        marks.append(Rule("cap", CAP, y=view.cap))
        x, y = [time_s / MS for time_s, _ in view.breaches], [at for _, at in view.breaches]
        marks.append(Dots(x, y, "cap", CAP, "cross", 4))
    label = view.memory_label.replace("\n", " ")  # which the renderer breaks where it must
    return Chart(
        f"memory {number}",
        NO_NAME,
        Axis(TIME, least=0, most=end_s * 1.005 / MS),
        Axis(Words(label, label), least=0, most=highest * 1.15 or 1),
        marks,
        STRIP_PX,
        wide=True,
        timed=True,
    )


# one trace over another
# --------------------------------------------------------------------------------------------------


def overlay_charts(pairs: Sequence[tuple[Trace, Trace]]) -> list[Chart]:
    """For each pair of traces a chart: in the row of a rank the first one's ops above the second
    one's, and a line where each step ends. The title names both, their steps, and the error of the
    first one's.

    Raises `InputError` for traces of different programs."""
    titles = [_overlay_title(*pair) for pair in pairs]
    views = [scenes(pair) for pair in pairs]
    end_s = max(view.end_s for pair in views for view in pair)
    found = []
    for number, (both, title) in enumerate(zip(views, titles)):
        marks: list[Mark] = []
        for view, shift, opacity in zip(both, (-HALF, 0.0), (UPPER_OPACITY, 1.0)):

            def of_all(box: Box, its: float = opacity) -> float:
                return its

            marks += _by_look(view, shift, HALF, of_all)
            x, y = [view.end_s / MS, view.end_s / MS, nan] * view.ranks, list[float]()
            for rank in range(view.ranks):
                y += [rank + shift, rank + shift + HALF, nan]
            marks.append(Line(x, y, "ink"))
        ranks = [row_label(rank, stages) for rank, stages in enumerate(both[0].stages)]
        found.append(
            Chart(
                f"overlay {number}",
                Words(title, title),
                Axis(TIME, least=0, most=end_s * 1.005 / MS),
                _rows(ranks),
                marks,
                AXES_PX + 2 * ROW_PX * both[0].ranks,
                wide=True,
                timed=True,
            )
        )
    return found


def _overlay_title(first: Trace, second: Trace) -> str:
    step = compare(first, second).step_s
    above, below = (
        f"{origin(trace).lower()} ({half}) {seconds_text(length_s)}"
        for trace, half, length_s in (
            (first, "upper", step.predicted),
            (second, "lower", step.measured),
        )
    )
    error = "" if step.error is None else f": error of the step {percent_text(step.error)}"
    return f"{second.metadata.get('name', '')}: {above}, {below}{error}"

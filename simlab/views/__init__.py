"""It draws traces, predictions, plans and collectives.

`charts` says once, as data, what a picture shows; `still` (matplotlib), `interactive` (plotly) and the
front end of `web/` draw it. `canvas` (a widget, for any number of boxes) and `perfetto` take traces.
Importing this package loads no plotting library; drawing does.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from simlab.analysis import Stack
from simlab.analysis.layer_table import LayerTable
from simlab.collectives.replay import RoundState
from simlab.errors import InputError
from simlab.spec.plan import Plan
from simlab.trace import Trace
from simlab.training import Prediction
from simlab.views.chart import MissingLibrary, Words
from simlab.views.charts.amounts import stack_charts, zero_chart
from simlab.views.charts.bars import bars_chart, shares_charts
from simlab.views.charts.ranks import ranks_chart
from simlab.views.charts.rounds import rounds_charts
from simlab.views.charts.streams import stream_charts
from simlab.views.charts.timelines import overlay_charts
from simlab.views.layer import layer_chart


def timeline(
    traces: Trace | Sequence[Trace], *, renderer: str = "matplotlib", **options: Any
) -> Any:
    """Draw one trace, or several under each other on one time axis, each with its memory strip.

    traces:   a `Trace` or a list of them.
    renderer: what draws, and so what is returned: 'matplotlib' (a Figure, whose `plotly()` is one
              of plotly, or what was given as `ax`), 'canvas' (a widget that zooms) or 'perfetto' (the text of a Chrome trace in
              JSON, of one trace only).
    options:  the renderer's own arguments; `critical_path=True` highlights the critical path in both
              pictures.

    Raises `InputError` without a trace, for an unknown renderer, and for several traces in a
    perfetto file; `MissingLibrary` if the renderer's library is not installed.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise InputError("no trace to draw: give at least one")
    figure: Any
    try:
        if renderer == "matplotlib":
            from simlab.views.still.timeline import figure
        elif renderer == "canvas":
            from simlab.views.canvas import CanvasTimeline as figure
        elif renderer == "perfetto":
            from simlab.views.viewers.perfetto import chrome_trace

            if len(traces) != 1:
                raise InputError(f"{len(traces)} traces: a perfetto file holds one")
            return chrome_trace(*traces, **options)
        else:
            raise InputError(f"renderer {renderer!r}: give matplotlib, canvas or perfetto")
    except ImportError as error:
        raise MissingLibrary(
            f"a {renderer} picture needs {error.name}: pip install {error.name}"
        ) from error
    return figure(traces, **options)


def overlay(
    pairs: Iterable[tuple[Trace, Trace]], *, ax: Any = None, width_in: float | None = None
) -> Any:
    """Draw pairs of traces, such as (simulated, measured), over each other: in the row of a rank the
    first trace's ops above the second's, with the error of the first one's step.

    ax:       the axes to draw on, one for each pair, which are then returned. None makes a new
              Figure of matplotlib.
    width_in: the width of a new Figure, in inches; 12 unless given.

    Returns the Figure, or what was given as `ax`. Raises `InputError` without a pair, and for traces
    of different programs.
    """
    pairs = list(pairs)
    if not pairs:
        raise InputError("no pair of traces to draw: give at least one")
    return _still("joint")(overlay_charts(pairs), ax=ax, width_in=width_in)


def layer_timeline(
    traces: Trace | Sequence[Trace],
    *,
    ax: Any = None,
    captions: str | Sequence[str] | None = None,
    width_in: float | None = None,
    **shown: Any,
) -> Any:
    """Draw one trace, or several under each other, with a row for each stream of each rank (compute,
    tp, cp, dp, send). Several have one time axis, on which each of them begins at 0.

    ax, width_in: as `overlay` has them, with an axes for each trace.
    captions:     a text for each trace (or the text of the only one), in place of its name.
    shown:        the arguments window, ranks, streams and only of
                  `simlab.views.charts.streams.stream_charts`.

    Returns a Figure of matplotlib, or what was given as `ax`.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise InputError("no trace to draw: give at least one")
    captions = [captions] if isinstance(captions, str) else captions
    return _still("joint")(stream_charts(traces, captions, **shown), ax=ax, width_in=width_in)


def rank_cube(
    plans: Plan | Sequence[Plan],
    gpus_per_node: int,
    *,
    ax: Any = None,
    captions: Sequence[str] | None = None,
    width_in: float | None = None,
) -> Any:
    """Draw where the ranks of one plan (or of several) are: slices along pp, coloured by stage, in
    each of them tp across and replicas down, with a frame for each node.

    ax, width_in: as `overlay` has them, with an axes for each plan.
    captions:     a text above the title of each plan.

    Returns a Figure of matplotlib, or what was given as `ax`. Raises `InputError` without a plan.
    """
    plans = [plans] if isinstance(plans, Plan) else list(plans)
    if not plans:
        raise InputError("no plan to draw: give at least one")
    above = captions or [""] * len(plans)
    charts = [ranks_chart(plan, gpus_per_node, text) for plan, text in zip(plans, above)]
    return _still("joint")(charts, ax=ax, width_in=width_in)


def shares(
    predictions: Iterable[Prediction],
    names: Sequence[str],
    *,
    ax: Any = None,
    memory: bool = True,
    width_in: float | None = None,
) -> Any:
    """Draw what the step of each prediction is spent on, and its memory, as one stacked bar each.

    names:        a label for each prediction, drawn from the top.
    ax, width_in: as `overlay` has them, with an axes for the steps and, with `memory`, one for that.
    memory:       whether to draw what its fullest GPU holds, with the capacity.

    Returns a Figure of matplotlib, or what was given as `ax`.
    """
    shown = shares_charts(predictions, list(names), memory=memory)
    return _still("charts")(shown, ax=ax, columns=2, width_in=width_in)


def layer_picture(tables: LayerTable | Sequence[LayerTable], **options: Any) -> Any:
    """Draw one `simlab.layer_table`, or several under each other: of each operation what a rank has,
    what it keeps, and what is sent before it.

    options: the arguments of `simlab.views.still.chart.charts`: ax, columns, tongue, width_in.

    Returns a matplotlib Figure, or what was given as `ax`. Raises `InputError` without a table.
    """
    tables = [tables] if isinstance(tables, LayerTable) else tables
    return _still("charts")([layer_chart(table) for table in tables], **options)


def memory_picture(
    stacks: Stack | Sequence[Stack],
    *,
    ax: Any = None,
    height_in: float = 3.2,
    width_in: float | None = None,
) -> Any:
    """Draw one `simlab.Stack`, or several under each other with one height scale: the bytes of each
    category that a rank holds over a step, its peak with the op that makes it, and where it first
    passes the GPU's capacity.

    ax, width_in: as `overlay` has them, with an axes for each stack.
    height_in:    the height of each panel of a new Figure, in inches.

    Returns a Figure of matplotlib, or what was given as `ax`. Raises `InputError` without a stack.
    """
    stacks = [stacks] if isinstance(stacks, Stack) else list(stacks)
    if not stacks:
        raise InputError("no stack to draw: give at least one")
    return _still("joint")(stack_charts(stacks, height_in), ax=ax, width_in=width_in)


def memory_bars(
    bars: Mapping[str, Mapping[str, float]],
    *,
    ax: Any = None,
    capacity_bytes: float | None = None,
    longest_bytes: float | None = None,
    width_in: float | None = None,
) -> Any:
    """Draw what a rank holds in different cases as horizontal bars, each with its sum.

    bars:           {label: {category: bytes}}, drawn from the top.
    ax, width_in:   as `overlay` has them, with one axes.
    capacity_bytes: the memory of a GPU, which a dashed line shows.
    longest_bytes:  the length at which longer bars are cut off.

    Returns a Figure of matplotlib, or what was given as `ax`.
    """
    chart = bars_chart(bars, capacity_bytes=capacity_bytes, longest_bytes=longest_bytes)
    return _still("charts")(chart, ax=ax, width_in=width_in)


def zero_picture(
    ranks: Iterable[int],
    curves: Mapping[int, Sequence[float]],
    *,
    ax: Any = None,
    capacity_bytes: float | None = None,
    name: str = "",
    width_in: float | None = None,
) -> Any:
    """Draw the model states on a rank over the number of data-parallel ranks, for each ZeRO stage.

    ranks:          the numbers of ranks.
    curves:         {ZeRO stage: [bytes for each number of `ranks`]}, from `simlab.zero_curves`.
    ax, width_in:   as `overlay` has them, with one axes; a new Figure is 8 inches wide unless given.
    capacity_bytes: the memory of a GPU, which a dashed line shows.
    name:           the title.

    Returns a Figure of matplotlib, or what was given as `ax`.
    """
    title = Words(name, name)
    chart = zero_chart([*ranks], curves, title=title, capacity_bytes=capacity_bytes)
    width_in = 8.0 if ax is None and width_in is None else width_in
    return _still("charts")(chart, ax=ax, width_in=width_in)


def rounds_picture(
    steps: Iterable[RoundState], *, ax: Any = None, columns: int = 4, width_in: float | None = None
) -> Any:
    """Draw the replayed `RoundState`s of a collective, a panel each: ranks down, parts of the buffer
    across, and an arrow from every sender to its receiver.

    ax, width_in: as `overlay` has them, with an axes for each step.
    columns:      the most panels of a new Figure that stand beside each other.

    Returns a Figure of matplotlib, or what was given as `ax`. Raises `InputError` without a step.
    """
    steps = list(steps)
    if not steps:
        raise InputError("no step to draw: give at least one")
    return _still("joint")(rounds_charts(steps), columns=columns, ax=ax, width_in=width_in)


def _still(name: str) -> Callable[..., Any]:
    """The function `name` of `simlab.views.still.chart`; `MissingLibrary` without matplotlib."""
    try:
        return getattr(import_module("simlab.views.still.chart"), name)
    except ImportError as error:
        raise MissingLibrary(
            f"a matplotlib picture needs {error.name}: pip install {error.name}"
        ) from error

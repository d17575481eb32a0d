"""It draws traces, predictions, plans and collectives.

`scene` turns traces into plain boxes and lines, which `still` (matplotlib), `interactive` (plotly),
`canvas` (a widget, for any number of boxes) and `perfetto` render. Importing this package loads no
plotting library; drawing does.
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
from simlab.views.chart import MissingLibrary
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


def overlay(pairs: Iterable[tuple[Trace, Trace]], **options: Any) -> Any:
    """Draw pairs of traces, such as (simulated, measured), over each other: in the row of a rank the
    first trace's ops above the second's, with the error of the first one's step.

    options: the arguments of `simlab.views.still.overlay.figure`: ax, width_in.

    Returns a matplotlib Figure, or what was given as `ax`. Raises `InputError` without a pair, and
    for traces of different programs.
    """
    pairs = list(pairs)
    if not pairs:
        raise InputError("no pair of traces to draw: give at least one")
    return _still("overlay", "figure")(pairs, **options)


def layer_timeline(traces: Trace | Sequence[Trace], **options: Any) -> Any:
    """Draw one trace, or several under each other, with a row for each stream of each rank (compute,
    tp, cp, dp, send).

    options: the arguments of `simlab.views.still.plan.streams_figure`: ax, captions, width_in,
             window, ranks, streams, only.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    traces = [traces] if isinstance(traces, Trace) else list(traces)
    if not traces:
        raise InputError("no trace to draw: give at least one")
    return _still("plan", "streams_figure")(traces, **options)


def rank_cube(plans: Plan | Sequence[Plan], gpus_per_node: int, **options: Any) -> Any:
    """Draw where the ranks of one plan (or of several) are: tp across, dp up, pp back, coloured by
    stage, with the borders of nodes.

    options: the arguments of `simlab.views.still.plan.cubes_figure`: ax, captions, width_in.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    return _still("plan", "cubes_figure")(plans, gpus_per_node, **options)


def shares(predictions: Iterable[Prediction], names: Sequence[str], **options: Any) -> Any:
    """Draw what the step of each prediction is spent on, and its memory, as one stacked bar each.

    options: the arguments of `simlab.views.still.plan.shares_figure`: ax, memory, width_in.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    return _still("plan", "shares_figure")(predictions, names, **options)


def layer_picture(tables: LayerTable | Sequence[LayerTable], **options: Any) -> Any:
    """Draw one `simlab.layer_table`, or several under each other: of each operation what a rank has,
    what it keeps, and what is sent before it.

    options: the arguments of `simlab.views.still.chart.charts`: ax, columns, tongue, width_in.

    Returns a matplotlib Figure, or what was given as `ax`. Raises `InputError` without a table.
    """
    tables = [tables] if isinstance(tables, LayerTable) else tables
    return _still("chart", "charts")([layer_chart(table) for table in tables], **options)


def memory_picture(stacks: Stack | Sequence[Stack], **options: Any) -> Any:
    """Draw one `simlab.Stack`, or several under each other: the bytes of each category that a rank
    holds over a step.

    options: the arguments of `simlab.views.still.memory.figure`: ax, height_in, width_in.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    stacks = [stacks] if isinstance(stacks, Stack) else list(stacks)
    if not stacks:
        raise InputError("no stack to draw: give at least one")
    return _still("memory", "figure")(stacks, **options)


def memory_bars(bars: Mapping[str, Mapping[str, float]], **options: Any) -> Any:
    """Draw what a rank holds in different cases as horizontal bars, with the capacity of a GPU.

    bars:    {label: {category: bytes}}.
    options: the arguments of `simlab.views.still.memory.bars_figure`: ax, capacity_bytes,
             longest_bytes, width_in.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    return _still("memory", "bars_figure")(bars, **options)


def zero_picture(
    ranks: Iterable[int], curves: Mapping[int, Sequence[float]], **options: Any
) -> Any:
    """Draw the model states on a rank over the number of data-parallel ranks, for each ZeRO stage.

    ranks:   the numbers of ranks.
    curves:  {ZeRO stage: [bytes for each number of `ranks`]}, from `simlab.zero_curves`.
    options: the arguments of `simlab.views.still.memory.zero_figure`: ax, capacity_bytes, name,
             width_in.

    Returns a matplotlib Figure, or what was given as `ax`.
    """
    return _still("memory", "zero_figure")(list(ranks), curves, **options)


def rounds_picture(steps: Iterable[RoundState], **options: Any) -> Any:
    """Draw the replayed `RoundState`s of a collective, a panel each: ranks down, parts of the buffer
    across.

    options: the arguments of `simlab.views.still.rounds.rounds_figure`: ax, columns, width_in.

    Returns a matplotlib Figure, or what was given as `ax`. Raises `InputError` without a step.
    """
    steps = list(steps)
    if not steps:
        raise InputError("no step to draw: give at least one")
    return _still("rounds", "rounds_figure")(steps, **options)


def _still(module: str, name: str) -> Callable[..., Any]:
    """The function `name` of a module of `simlab.views.still`; `MissingLibrary` without
    matplotlib."""
    try:
        return getattr(import_module(f"simlab.views.still.{module}"), name)
    except ImportError as error:
        raise MissingLibrary(
            f"a matplotlib picture needs {error.name}: pip install {error.name}"
        ) from error

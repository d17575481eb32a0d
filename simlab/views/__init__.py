"""Pictures of traces. Importing this package loads no plotting library; drawing does.

`scene` turns traces into plain boxes and lines; `still` (matplotlib), `interactive` (plotly), `canvas` (a widget, for many
boxes) and `perfetto` render it.
"""

from importlib import import_module

from simlab.errors import InputError

MOST_PLOTLY_BOXES = 2_000  # above, moving a slider takes plotly half a second and more


class MissingLibrary(InputError):
    """A plotting library is not installed."""


def timeline(traces, *, renderer="matplotlib", **options):
    """A picture of one trace, or of several under each other on one time axis, each with its memory strip.

    traces:   a `Trace` or a list of them.
    renderer: 'matplotlib' (a Figure), 'plotly' (a Figure), 'canvas' (a widget) or 'perfetto' (Chrome trace JSON text, one trace
              only). Of the two to zoom in, plotly is for up to `MOST_PLOTLY_BOXES` ops and canvas for any number.
    options:  what the renderer takes: with `critical_path=True` all three pictures highlight the critical path.
    """
    traces = traces if isinstance(traces, (list, tuple)) else [traces]
    if not traces:
        raise InputError("no trace to draw: give at least one")
    try:
        if renderer == "matplotlib":
            from simlab.views.still import figure
        elif renderer == "plotly":
            from simlab.views.interactive import figure
        elif renderer == "canvas":
            from simlab.views.canvas import CanvasTimeline as figure
        elif renderer == "perfetto":
            from simlab.views.perfetto import chrome_trace

            if len(traces) != 1:
                raise InputError(f"{len(traces)} traces: a perfetto file holds one")
            return chrome_trace(*traces, **options)
        else:
            raise InputError(f"renderer {renderer!r}: give matplotlib, plotly, canvas or perfetto")
    except ImportError as error:
        raise MissingLibrary(f"a {renderer} picture needs {error.name}: pip install {error.name}") from error
    return figure(traces, **options)


def quick_renderer(traces):
    """Which of the two renderers that follow a slider suits `traces`: plotly, or canvas above `MOST_PLOTLY_BOXES` ops."""
    return "plotly" if sum(len(trace.compute()) for trace in traces) <= MOST_PLOTLY_BOXES else "canvas"


def layer_timeline(traces, **options):
    """A picture of a trace, or of several under each other, with streams (compute, tp, cp, dp, send) as rows of each rank.

    options: captions, window, ranks, streams, only: see `simlab.views.plan_still.streams_figure`.
    """
    traces = traces if isinstance(traces, (list, tuple)) else [traces]
    if not traces:
        raise InputError("no trace to draw: give at least one")
    return _still("plan_still", "streams_figure")(traces, **options)


def rank_cube(plans, gpus_per_node, **options):
    """A picture of where a plan's ranks (or several plans') are: tp across, dp up, pp back, coloured by stage, nodes outlined."""
    return _still("plan_still", "cubes_figure")(plans, gpus_per_node, **options)


def shares(predictions, names, **options):
    """A picture of predictions' steps by what they are spent on, and of their memory, a stacked bar each."""
    return _still("plan_still", "shares_figure")(predictions, names, **options)


def memory_picture(stacks, **options):
    """A still picture of one `simlab.Stack`, or of several under each other: what a rank holds over a step, category on category."""
    stacks = stacks if isinstance(stacks, list) else [stacks]
    if not stacks:
        raise InputError("no stack to draw: give at least one")
    return _still("memory_still", "figure")(stacks, **options)


def memory_bars(bars, **options):
    """A still picture of `bars` = {label: {category: bytes}}: what a rank holds in different cases, with a GPU's capacity."""
    return _still("memory_still", "bars_figure")(bars, **options)


def zero_picture(ranks, curves, **options):
    """A still picture of `simlab.zero_curves`: model states on a rank over the number of `ranks`, with a GPU's capacity."""
    return _still("memory_still", "zero_figure")(list(ranks), curves, **options)


def rounds_picture(steps, **options):
    """A still picture (matplotlib) of a collective's replayed `Step`s: a panel each, ranks down, parts of the buffer across.

    options: columns: panels beside each other; width_in: width of the picture, inches.
    """
    try:
        from simlab.views.rounds_still import rounds_figure
    except ImportError as error:
        raise MissingLibrary(f"a picture needs {error.name}: pip install {error.name}") from error
    return rounds_figure(list(steps), **options)


def _still(module, name):
    try:
        return getattr(import_module(f"simlab.views.{module}"), name)
    except ImportError as error:
        raise MissingLibrary(f"a matplotlib picture needs {error.name}: pip install {error.name}") from error

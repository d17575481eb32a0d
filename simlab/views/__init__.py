"""Pictures of traces. Importing this package loads no plotting library; drawing does.

`scene` turns traces into plain boxes and lines; `still` (matplotlib), `interactive` (plotly) and `perfetto` render it.
"""

from simlab.errors import InputError


class MissingLibrary(InputError):
    """A plotting library is not installed."""


def timeline(traces, *, renderer="matplotlib", **options):
    """A picture of one trace, or of several under each other on one time axis, each with its memory strip.

    traces:   a `Trace` or a list of them.
    renderer: 'matplotlib' (a Figure), 'plotly' (a Figure) or 'perfetto' (Chrome trace JSON text, one trace only).
    options:  what the renderer's `figure` takes: with `critical_path=True` both figures highlight the critical path.
    """
    traces = traces if isinstance(traces, (list, tuple)) else [traces]
    if not traces:
        raise InputError("no trace to draw: give at least one")
    try:
        if renderer == "matplotlib":
            from simlab.views.still import figure
        elif renderer == "plotly":
            from simlab.views.interactive import figure
        elif renderer == "perfetto":
            from simlab.views.perfetto import chrome_trace

            if len(traces) != 1:
                raise InputError(f"{len(traces)} traces: a perfetto file holds one")
            return chrome_trace(*traces, **options)
        else:
            raise InputError(f"renderer {renderer!r}: give matplotlib, plotly or perfetto")
    except ImportError as error:
        raise MissingLibrary(f"a {renderer} picture needs {error.name}: pip install {error.name}") from error
    return figure(traces, **options)


def memory_picture(stacks, **options):
    """A still picture of one `simlab.Stack`, or of several under each other: what a rank holds over a step, category on category."""
    stacks = stacks if isinstance(stacks, list) else [stacks]
    if not stacks:
        raise InputError("no stack to draw: give at least one")
    return _still("figure")(stacks, **options)


def memory_bars(bars, **options):
    """A still picture of `bars` = {label: {category: bytes}}: what a rank holds in different cases, with a GPU's capacity."""
    return _still("bars_figure")(bars, **options)


def zero_picture(ranks, curves, **options):
    """A still picture of `simlab.zero_curves`: model states on a rank over the number of `ranks`, with a GPU's capacity."""
    return _still("zero_figure")(list(ranks), curves, **options)


def _still(name):
    try:
        from simlab.views import memory_still
    except ImportError as error:
        raise MissingLibrary(f"a picture needs {error.name}: pip install {error.name}") from error
    return getattr(memory_still, name)

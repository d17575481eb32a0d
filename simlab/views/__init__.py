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


def layer_timeline(trace, **options):
    """A picture of a trace with its streams (compute, tp, cp, dp, send) as rows of each rank; see `plan_still.streams_figure`."""
    return _still("streams_figure")(trace, **options)


def rank_cube(plans, gpus_per_node, **options):
    """A picture of where a plan's ranks (or several plans') are: tp across, dp up, pp back, coloured by stage, nodes outlined."""
    return _still("cubes_figure")(plans, gpus_per_node, **options)


def shares(predictions, names, **options):
    """A picture of predictions' steps by what they are spent on, and of their memory, a stacked bar each."""
    return _still("shares_figure")(predictions, names, **options)


def _still(name):
    try:
        from simlab.views import plan_still
    except ImportError as error:
        raise MissingLibrary(f"a matplotlib picture needs {error.name}: pip install {error.name}") from error
    return getattr(plan_still, name)

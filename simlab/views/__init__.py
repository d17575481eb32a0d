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


def rounds_picture(steps, **options):
    """A still picture (matplotlib) of a collective's replayed `Step`s: a panel each, ranks down, parts of the buffer across.

    options: columns: panels beside each other; width_in: width of the picture, inches.
    """
    try:
        from simlab.views.rounds_still import rounds_figure
    except ImportError as error:
        raise MissingLibrary(f"a picture needs {error.name}: pip install {error.name}") from error
    return rounds_figure(list(steps), **options)


def streams_picture(traces, **options):
    """A still picture (matplotlib) of one layer-by-layer trace, or of several on one time axis: the streams of one rank, a row each.

    options: rank; titles: a text per trace; streams: which to show; until_s: where the axis ends; width_in.
    """
    try:
        from simlab.views.streams_still import streams_figure
    except ImportError as error:
        raise MissingLibrary(f"a picture needs {error.name}: pip install {error.name}") from error
    return streams_figure(traces if isinstance(traces, (list, tuple)) else [traces], **options)

"""It draws a simulated trace over a measured one, rank by rank, with matplotlib."""

from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.patches import Patch

from simlab.analysis.comparison import compare
from simlab.trace import Trace
from simlab.units import MS, percent_text, seconds_text
from simlab.views.charts.timelines import HALF, UPPER_OPACITY, overlay_charts
from simlab.views.scene import COLOURS, MEANING, Box, Scene, origin, scenes
from simlab.views.still.picture import Panels, Picture, add_legend, drawn, own_style, panels
from simlab.views.still.timeline import draw_ops, name_rows

END: dict[str, Any] = {"colors": "black", "linewidths": 1.6}


@own_style
def figure(
    pairs: Sequence[tuple[Trace, Trace]],
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
) -> Picture | Panels:
    """Draw each pair of traces in a panel of its own, on one time axis; return the Figure.

    A row is a rank: the ops of the first trace in its upper half, those of the second in its lower
    half, and a line where each one's step ends. The title names both, their steps in ms, and the
    error of the first step.

    ax:       the axes to draw on, one for each pair, which are then returned. None makes a new
              Figure.
    width_in: the width of a new Figure, in inches; 12 unless given.

    Raises `InputError` for traces of different programs.
    """
    views = [scenes(pair) for pair in pairs]
    titles = [_title(*pair) for pair in pairs]
    rows = [first.ranks for first, _ in views]
    picture, axes = panels(
        ax,
        len(pairs),
        width_in=width_in,
        height_in=sum(0.5 * ranks + 0.8 for ranks in rows) + 0.5,
        nrows=len(pairs),
        sharex=True,
        height_ratios=rows,
    )
    end_ms = max(view.end_s for pair in views for view in pair) / MS
    for panel, its, title in zip(axes, views, titles):
        _draw(panel, its, end_ms)
        panel.set_title(title, loc="left", fontsize=10)
        panel.set_xlim(0, end_ms * 1.005)
    axes[-1].set_xlabel("time, ms")
    kinds = [kind for kind in COLOURS if any(kind in view.kinds for pair in views for view in pair)]
    handles = [Patch(facecolor=COLOURS[kind], label=f"{kind} {MEANING[kind]}") for kind in kinds]
    style: dict[str, Any] = {"loc": "outside upper right", "ncols": len(handles), "fontsize": 9}
    add_legend(picture, axes[0], handles, **style)
    return drawn(picture, ax, lambda: overlay_charts(pairs, titles))


def _title(first: Trace, second: Trace) -> str:
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


def _draw(axes: Axes, pair: Sequence[Scene], end_ms: float) -> None:
    """Draw the halves of all rows on `axes`; `end_ms` is the end of the time axis."""
    for view, shift, alpha in zip(pair, (-HALF, 0.0), (UPPER_OPACITY, 1.0)):

        def of_all(_: Box, its: float = alpha) -> float:
            return its

        draw_ops(axes, view, end_ms, of_all, shift, HALF, size=7)
        end = view.end_s / MS
        lines = [[(end, rank + shift), (end, rank + shift + HALF)] for rank in range(view.ranks)]
        axes.add_collection(LineCollection(lines, **END))
    name_rows(axes, pair[0])

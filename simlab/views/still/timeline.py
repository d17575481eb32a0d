"""It draws timelines with matplotlib."""

from collections.abc import Sequence
from typing import Any

from simlab.trace import Trace
from simlab.views.charts.timelines import timeline_charts
from simlab.views.still.chart import joint
from simlab.views.still.picture import Panels, Picture


def figure(
    traces: Sequence[Trace],
    *,
    ax: Panels | None = None,
    width_in: float | None = None,
    **shown: Any,
) -> Picture | Panels:
    """Draw the timeline of each trace and, below it, its memory strip; return the Figure.

    ax:       the axes to draw on, which are then returned: for each trace one for its timeline and,
              where its memory was recorded, one for its memory strip, in this order. None makes a
              new Figure.
    width_in: the width of a new Figure, in inches; 12 unless given.
    shown:    the arguments critical_path, memory and caption of `timeline_charts`.
    """
    return joint(timeline_charts(traces, **shown), ax=ax, width_in=width_in)

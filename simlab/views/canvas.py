"""Timelines of many boxes as a widget: packed into bytes by `packing`, painted, zoomed and explained
in the browser by the front end of `web/`, whose bundle lies beside this file."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anywidget
import traitlets

from simlab.errors import InputError
from simlab.trace import Trace
from simlab.views.packing import Panel, panels


class CanvasTimeline(anywidget.AnyWidget):
    """A widget: traces under each other on one time axis, each with its memory strip, zoomed and
    named in the browser.

    The browser writes what it has painted on the canvas element: `data-painted` is the `serial` of
    the last update that can be seen, `data-range` the visible interval in s, and `data-step-s` the
    step of the first trace in s.

    traces:        a `Trace` or a list of them, or `panels` of them made beforehand.
    ranks:         how many rows it has room for, if `update` shall show more than `traces` have.
    height:        CSS pixels that the picture should not exceed, for which rows and strips become
                   lower; None: as high as is easy to read.
    critical_path: whether to outline the ops of the critical path, join them by a line, and fade
    the others.
    """

    _esm = Path(__file__).with_name("bundle") / "timeline.js"
    panels = traitlets.List(traitlets.Dict()).tag(sync=True)
    room = traitlets.Int(1).tag(sync=True)  # ranks
    height = traitlets.Int(0).tag(sync=True)  # CSS pixels; 0: as high as is easy to read
    serial = traitlets.Int(0).tag(sync=True)

    def __init__(
        self,
        traces: Trace | Panel | Sequence[Trace] | Sequence[Panel],
        *,
        ranks: int | None = None,
        height: int | None = None,
        critical_path: bool = False,
    ) -> None:
        self._critical_path = critical_path
        packed = self._packed(traces)
        super().__init__(
            panels=packed,
            room=ranks or max(panel["ranks"] for panel in packed),
            height=height or 0,
            serial=1,
        )

    def update(self, traces: Trace | Panel | Sequence[Trace] | Sequence[Panel]) -> None:
        """Show other traces (or `panels`), in one message; the interval that is zoomed in stays."""
        packed = self._packed(traces)
        with self.hold_sync():
            self.panels = packed
            self.serial += 1

    def _packed(
        self, traces: Trace | Panel | Sequence[Trace] | Sequence[Panel]
    ) -> list[dict[str, Any]]:
        given = [traces] if isinstance(traces, (Trace, Panel)) else list(traces)
        if not given:
            raise InputError("no trace to draw: give at least one")
        packed = [item for item in given if isinstance(item, Panel)]
        if not packed:
            bare = [item for item in given if isinstance(item, Trace)]
            packed = panels(bare, critical_path=self._critical_path)
        return [panel._asdict() for panel in packed]

    def __repr__(self) -> str:
        # a widget's own has all the bytes
        return f"CanvasTimeline({'; '.join(panel['title'] for panel in self.panels)})"

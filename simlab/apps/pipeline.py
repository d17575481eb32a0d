"""It has the widget of the explorer of pipeline schedules."""

from collections.abc import Callable, Sequence
from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.errors import InputError
from simlab.explorers.pipeline import EXPLORER, NONE, traces
from simlab.program import Program
from simlab.schedules import Schedule
from simlab.views import timeline

CHOSEN = ("first", "second", "chunks", "weight_share")


class PipelineExplorer(ExplorerWidget):
    """One or two schedules under each other on one time axis, with a slider for each thing that
    decides their step.

    schedules: one or two names that `simlab.generate` knows, or functions (ranks, microbatches) →
               `Program` of one's own.
    choose:    whether there shall be menus for the schedules, and sliders for the chunks of a rank
               and for how the backward divides into I and W.
    values:    where the controls start: stages, microbatches, backward_over_forward, link_ms,
               chunks, weight_share; a forward takes 20 ms. `tongue` is 'en' or 'zh'.
    """

    def __init__(
        self,
        schedules: Sequence[str | Schedule | Callable[..., Program]] = ("gpipe", "1f1b"),
        *,
        choose: bool = False,
        **values: Any,
    ) -> None:
        if not 1 <= len(schedules) <= 2:
            raise InputError(f"{len(schedules)} schedules: give one or two")
        first, second = (*schedules, NONE)[:2]
        hidden = () if choose else CHOSEN
        given = {"choose": True} if choose else {}
        names = {"first": first, "second": second} | values
        super().__init__(EXPLORER, hidden=hidden, given=given, **names)

    def still(self, tongue: str | None = None) -> Any:
        """Both timelines as a matplotlib Figure."""
        return self.in_tongue(timeline(traces(self.meant)), tongue)

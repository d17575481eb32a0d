"""It has the widget of the explorer of plans."""

from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers.plan import EXPLORER, step_streams
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.views.chart import Chart


class PlanExplorer(ExplorerWidget):
    """One plan of one model on one cluster; everything that decides its step is a control.

    values: where the other controls start: nodes, dp, tp, pp, cp, zero, recompute, schedule,
            microbatches, and zoom, 'whole step' or an op of the first place of the pipeline, such
            as '0F0', which is shown layer by layer; `tongue` is 'en' or 'zh'.
    """

    def __init__(
        self, model: str | Model = "llama-2-13b", cluster: str | Cluster = "dgx-a100", **values: Any
    ) -> None:
        super().__init__(EXPLORER, model=model, cluster=cluster, **values)

    def charts(self) -> list[Chart]:
        """The charts, and the streams of the step where the browser shows its timeline."""
        charts = super().charts()
        whole = len(charts) < len(self.shown.pictures)
        return [*charts, step_streams(self.meant)] if whole else charts

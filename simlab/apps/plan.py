"""Menus over a plan: step time, utilisation, memory, where its ranks are, and what they do when."""

import html
from base64 import b64encode
from collections.abc import Iterable
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

import simlab as sl
from simlab.apps.cells import percent
from simlab.schedules import SCHEDULES
from simlab.spec.cluster import clusters
from simlab.spec.model import MFU_CONVENTION, RECOMPUTE
from simlab.units import GIB, seconds_text
from simlab.views import shares
from simlab.views.interactive.plan import figure, update

WHOLE_STEP, WHOLE_STEP_LAYERS = "whole step, by ops", "whole step, by layers"
DEGREES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)


class PlanExplorer(widgets.VBox):
    """One plan of one model on one cluster; everything that decides its step is a menu. The
    arguments are the starting values.

    zoom: 'whole step, by ops', 'whole step, by layers', or one op of rank 0 ('0F0'), layer by
    layer.
    """

    def __init__(
        self,
        model: str = "llama-2-13b",
        cluster: str = "dgx-a100",
        *,
        nodes: int = 4,
        dp: int = 2,
        tp: int = 4,
        pp: int = 4,
        cp: int = 1,
        zero: int = 1,
        recompute: str = "none",
        schedule: str = "1f1b",
        microbatches: int = 16,
    ) -> None:
        style = {"style": {"description_width": "7em"}, "layout": widgets.Layout(width="19em")}

        def menu(name: str, options: Iterable[Any], value: Any) -> widgets.Dropdown:
            return widgets.Dropdown(options=list(options), value=value, description=name, **style)

        self.model = menu("model", sl.catalogue(), model)
        self.cluster = menu("cluster", clusters(), cluster)
        self.nodes = menu("nodes", (1, 2, 4, 8, 16, 32, 64, 128), nodes)
        self.dp, self.tp, self.pp, self.cp = (
            menu(n, DEGREES, v) for n, v in (("dp", dp), ("tp", tp), ("pp", pp), ("cp", cp))
        )
        self.zero = menu("ZeRO", (0, 1, 2, 3), zero)
        self.recompute = menu("recompute", RECOMPUTE, recompute)
        self.schedule = menu(
            "schedule",
            [name for name in SCHEDULES if name not in ("zb-auto", "dualpipe")],
            schedule,
        )
        self.microbatches = widgets.IntSlider(
            microbatches, 1, 128, description="microbatches", **style, continuous_update=False
        )
        self.zoom = menu("zoom", (WHOLE_STEP, WHOLE_STEP_LAYERS), WHOLE_STEP)
        self.table = widgets.HTML()
        self.prediction = self._predicted()
        self._zoom_options()
        trace, window = self._zoomed()
        self.picture = figure(self.prediction, trace, window=window, make=go.FigureWidget)
        self.picture.update_layout(autosize=True)
        self.table.value = _table(self.prediction)
        columns = (
            (self.model, self.cluster, self.nodes),
            (self.dp, self.tp, self.pp, self.cp),
            (self.zero, self.recompute, self.schedule, self.microbatches),
            (self.zoom,),
        )
        for control in (control for column in columns[:3] for control in column):
            control.observe(self._redraw, names="value")
        self.zoom.observe(self._show, names="value")
        super().__init__(
            [widgets.HBox([widgets.VBox(column) for column in columns]), self.table, self.picture]
        )

    def plan(self) -> sl.Plan:
        """The `Plan` that the menus say; `InputError` if there is none."""
        return sl.Plan(
            dp=self.dp.value,
            tp=self.tp.value,
            pp=self.pp.value,
            cp=self.cp.value,
            zero=self.zero.value,
            recompute=self.recompute.value,
            schedule=self.schedule.value,
            microbatches=self.microbatches.value,
        )

    def _predicted(self) -> sl.Prediction:
        cluster = sl.load_cluster(self.cluster.value, nodes=self.nodes.value)
        return sl.predict(sl.load_model(self.model.value), self.plan(), cluster)

    def _zoomed(self) -> tuple[sl.Trace, tuple[float, float] | None]:
        """(trace, window) that the menu `zoom` says: all of the op trace, or an op's time in the
        layer trace."""
        shown = self.prediction
        if self.zoom.value == WHOLE_STEP:
            return shown.trace, None
        layers = sl.layer_trace(shown.model, shown.plan, shown.cluster)
        return layers, None if self.zoom.value == WHOLE_STEP_LAYERS else layers.window(
            self.zoom.value
        )

    def _zoom_options(self) -> None:
        ops = [str(op) for op in self.prediction.program.ranks[0]]
        kept = (
            self.zoom.value
            if self.zoom.value in ops or self.zoom.value == WHOLE_STEP_LAYERS
            else WHOLE_STEP
        )
        self.zoom.options = (WHOLE_STEP, WHOLE_STEP_LAYERS, *ops)
        self.zoom.value = kept

    def _redraw(self, _: Any) -> None:
        try:
            self.prediction = self._predicted()
        except sl.SimlabError as error:  # what was drawn last stays
            self.table.value = f"<b>{html.escape(str(error))}</b>"
            return
        self.zoom.unobserve(self._show, names="value")
        self._zoom_options()
        self.zoom.observe(self._show, names="value")
        self._show()

    def _show(self, _: Any = None) -> None:
        trace, window = self._zoomed()
        update(self.picture, self.prediction, trace, window=window)
        self.table.value = _table(self.prediction)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and a still picture for where no widget can live (a page on GitHub)."""
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["image/png"] = b64encode(
            shares([self.prediction], [self.model.value])._repr_png_()
        ).decode()
        return bundle


def _table(prediction: sl.Prediction) -> str:
    """The prediction's figures in one line of HTML."""
    held = sum(prediction.memory_bytes.values()) / GIB
    capacity = prediction.cluster.gpu.memory_bytes / GIB
    fits = "fits" if prediction.fits else "<b>does not fit</b>"
    mfu, hfu = percent(prediction.mfu, prediction.hfu)
    cells = (
        ("step", seconds_text(prediction.step_s)),
        (f"MFU ({MFU_CONVENTION})", mfu),
        ("HFU", hfu),
        ("tokens/s", f"{prediction.tokens_per_s:,.0f}"),
        ("fullest GPU", f"{held:.1f} of {capacity:.0f} GiB, {fits}"),
    )
    return "&emsp;".join(f"{name}: <b>{value}</b>" for name, value in cells)

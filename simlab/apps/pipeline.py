"""Sliders over a pipeline schedule: timeline, memory strip and bubble figures, redrawn in place."""

import html
from base64 import b64encode
from collections.abc import Sequence
from io import BytesIO
from typing import Any

import ipywidgets as widgets

import simlab as sl
from simlab.schedules import SCHEDULES
from simlab.studies.pipeline import PipelineCase
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import MS, seconds_text
from simlab.views import timeline
from simlab.views.canvas import CanvasTimeline

FORWARD_S = 0.02
MOST_STAGES, MOST_MICROBATCHES = 8, 32
HEIGHT = 460  # CSS pixels: with the controls on one screen of a laptop


class PipelineExplorer(widgets.VBox):
    """Schedules under each other on one time axis, with a slider for each thing that decides their
    step.

    schedules: names that `simlab.generate` knows.
    choose:    whether there shall be a menu for each schedule, and a slider for how the backward
               divides into I and W.
    The others are the sliders' starting values; a forward takes 20 ms.
    """

    children: Any  # `widgets.VBox` has no types

    def __init__(
        self,
        schedules: Sequence[str] = ("gpipe", "1f1b"),
        *,
        stages: int = 4,
        microbatches: int = 8,
        backward_over_forward: float = 2.0,
        link_ms: float = 0.0,
        choose: bool = False,
    ) -> None:
        style = {
            "style": {"description_width": "11em"},
            "layout": widgets.Layout(width="30em"),
            "continuous_update": True,
        }
        menu = {name: style[name] for name in ("style", "layout")}
        self.menus = [
            widgets.Dropdown(options=list(SCHEDULES), value=name, description="schedule", **menu)
            for name in schedules
        ]
        self.stages = widgets.IntSlider(stages, 1, MOST_STAGES, description="stages p", **style)
        self.microbatches = widgets.IntSlider(
            microbatches, 1, MOST_MICROBATCHES, description="microbatches m", **style
        )
        self.ratio = widgets.FloatSlider(
            backward_over_forward,
            min=0.5,
            max=3,
            step=0.25,
            description="backward / forward",
            **style,
        )
        self.weight_share = widgets.FloatSlider(
            0.5, min=0, max=0.9, step=0.1, description="W / backward", **style
        )
        self.link_ms = widgets.FloatSlider(
            link_ms, min=0, max=20, step=1, description="link time, ms", **style
        )
        self.table = widgets.HTML()
        traces = self.traces()
        self.picture = CanvasTimeline(traces, ranks=MOST_STAGES, height=HEIGHT)
        self.table.value = _table(traces)
        shown = (self.stages, self.microbatches, self.ratio, self.link_ms)
        if choose:
            shown = (*self.menus, *shown, self.weight_share)
        for control in shown:
            control.observe(self._redraw, names="value")
        super().__init__([widgets.HBox([widgets.VBox(shown), self.table]), self.picture])

    def traces(self) -> list[Trace]:
        """The simulated trace of each schedule at the controls' values; `InputError` if a schedule
        cannot do them."""
        cases = [
            PipelineCase(
                schedule=menu.value,
                stages=self.stages.value,
                microbatches=self.microbatches.value,
                forward_s=FORWARD_S,
                backward_s=FORWARD_S * self.ratio.value,
                weight_share=self.weight_share.value,
                link_s=self.link_ms.value * MS,
            )
            for menu in self.menus
        ]
        return [case.trace() for case in cases]

    def _redraw(self, _: Any) -> None:
        try:
            traces = self.traces()
        except sl.InputError as error:  # what was drawn last stays
            self.table.value = f"<b>{html.escape(str(error))}</b>"
            return
        self.picture.update(traces)
        self.table.value = _table(traces)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and a still picture of it for where no widget can live (a page on GitHub)."""
        bundle = super()._repr_mimebundle_(**kwargs)
        png = BytesIO()
        timeline(self.traces()).savefig(png, format="png", dpi=80)
        bundle["image/png"] = b64encode(png.getvalue()).decode()
        return bundle


def _table(traces: Sequence[Trace]) -> str:
    """The figures of each schedule as an HTML table."""
    heads = ("", "step", "idle / ideal", "idle / makespan", "most held by a rank")
    head = "".join(f"<th style='text-align: left'>{text}</th>" for text in heads)
    rows = "".join(
        f"<tr><td><b>{trace.metadata['name']}</b></td><td>{seconds_text(trace.step_s)}</td>"
        f"<td>{sl.bubble(trace).idle_over_ideal:.3f}</td><td>{sl.bubble(trace).idle_over_makespan:.3f}</td>"
        f"<td>{max(sl.peak_memory(trace, ACTIVATIONS)):.3g} microbatches</td></tr>"
        for trace in traces
    )
    style = "border-spacing: 1em 0.2em; white-space: nowrap"
    return f"<table style='{style}'><tr>{head}</tr>{rows}</table>"

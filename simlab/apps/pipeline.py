"""Sliders over a pipeline schedule: timeline, memory strip and bubble figures, redrawn in place."""

import html
from base64 import b64encode
from io import BytesIO

import ipywidgets as widgets
import plotly.graph_objects as go

import simlab as sl
from simlab.program import WEIGHT_GRAD_MEMORY
from simlab.schedules import SCHEDULES
from simlab.survey import rank_shares, search_options
from simlab.trace import ACTIVATIONS
from simlab.units import MS, seconds_text
from simlab.views import quick_renderer, timeline
from simlab.views.interactive import figure, update
from simlab.views.scene import COLOURS

FORWARD_S = 0.02
MOST_STAGES, MOST_MICROBATCHES = 8, 32


class PipelineExplorer(widgets.VBox):
    """Schedules under each other on one time axis, with a slider for each thing that decides their step.

    schedules: names that `simlab.generate` knows.
    choose:    whether there shall be a menu for each schedule, and a slider for how the backward divides into I and W.
    The others are the sliders' starting values; a forward takes 20 ms.
    """

    def __init__(self, schedules=("gpipe", "1f1b"), *, stages=4, microbatches=8, backward_over_forward=2.0, link_ms=0.0, choose=False):
        style = {"style": {"description_width": "11em"}, "layout": widgets.Layout(width="30em"), "continuous_update": True}
        menu = {name: style[name] for name in ("style", "layout")}
        self.menus = [widgets.Dropdown(options=list(SCHEDULES), value=name, description="schedule", **menu) for name in schedules]
        self.stages = widgets.IntSlider(stages, 1, MOST_STAGES, description="stages p", **style)
        self.microbatches = widgets.IntSlider(microbatches, 1, MOST_MICROBATCHES, description="microbatches m", **style)
        self.ratio = widgets.FloatSlider(backward_over_forward, min=0.5, max=3, step=0.25, description="backward / forward", **style)
        self.weight_share = widgets.FloatSlider(0.5, min=0, max=0.9, step=0.1, description="W / backward", **style)
        self.link_ms = widgets.FloatSlider(link_ms, min=0, max=20, step=1, description="link time, ms", **style)
        self.table = widgets.HTML()
        traces = self.traces()
        self._kinds, self._pictures = COLOURS if choose else None, {}
        self.picture = self._picture(traces)
        self.table.value = _table(traces)
        shown = (self.stages, self.microbatches, self.ratio, self.link_ms)
        if choose:
            shown = (*self.menus, *shown, self.weight_share)
        for control in shown:
            control.observe(self._redraw, names="value")
        super().__init__([widgets.HBox([widgets.VBox(shown), self.table]), self.picture])

    def traces(self):
        """The simulated trace of each schedule at the controls' values; `InputError` if a schedule cannot do them."""
        backward_s, weight_share = FORWARD_S * self.ratio.value, self.weight_share.value
        split = {"input_grad_s": backward_s * (1 - weight_share), "weight_grad_s": backward_s * weight_share}
        times = sl.OpTimes(forward_s=FORWARD_S, backward_s=backward_s, **split)
        link = sl.Link(latency_s=self.link_ms.value * MS)
        traces = []
        for menu in self.menus:
            options = search_options(times, link, WEIGHT_GRAD_MEMORY) if menu.value == "zb-auto" else {}
            program = sl.generate(menu.value, self.stages.value, self.microbatches.value, **options)
            stage_times, memory = rank_shares(program, times)
            traces.append(sl.simulate(program, stage_times, link=link, memory=memory))
        return traces

    def _picture(self, traces):
        """The picture that follows the sliders, showing `traces`: one of plotly, or above some number of ops a canvas."""
        renderer = quick_renderer(traces)
        if renderer in self._pictures:
            picture = self._pictures[renderer]
            picture.update(traces) if renderer == "canvas" else update(picture, traces)
        elif renderer == "canvas":
            picture = timeline(traces, renderer=renderer, ranks=MOST_STAGES)
        else:
            picture = figure(traces, make=go.FigureWidget, ranks=MOST_STAGES, kinds=self._kinds)
            picture.update_layout(autosize=True)  # as wide as the page
        self._pictures[renderer] = picture
        return picture

    def _redraw(self, _):
        try:
            traces = self.traces()
        except sl.InputError as error:  # what was drawn last stays
            self.table.value = f"<b>{html.escape(str(error))}</b>"
            return
        self.picture = self._picture(traces)
        if self.children[1] is not self.picture:
            self.children = (self.children[0], self.picture)
        self.table.value = _table(traces)

    def _repr_mimebundle_(self, **kwargs):
        """The widget, and a still picture of it for where no widget can live (a page on GitHub)."""
        bundle = super()._repr_mimebundle_(**kwargs)
        png = BytesIO()
        timeline(self.traces()).savefig(png, format="png", dpi=80)
        bundle["image/png"] = b64encode(png.getvalue()).decode()
        return bundle


def _table(traces):
    """The figures of each schedule as an HTML table."""
    head = "<tr><th></th><th>step</th><th>idle / ideal</th><th>idle / makespan</th><th>most held by a rank</th></tr>"
    rows = "".join(
        f"<tr><td><b>{trace.metadata['name']}</b></td><td>{seconds_text(trace.step_s)}</td>"
        f"<td>{sl.bubble(trace).idle_over_ideal:.3f}</td><td>{sl.bubble(trace).idle_over_makespan:.3f}</td>"
        f"<td>{max(sl.peak_memory(trace, ACTIVATIONS)):.3g} microbatches</td></tr>"
        for trace in traces
    )
    return f"<table style='border-spacing: 1em 0.2em'>{head}{rows}</table>"

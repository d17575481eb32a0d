"""Sliders over a pipeline schedule: timeline, memory strip and bubble figures, redrawn in place."""

from base64 import b64encode
from io import BytesIO

import ipywidgets as widgets
import plotly.graph_objects as go

import simlab as sl
from simlab.units import MS, seconds_text
from simlab.views import timeline
from simlab.views.interactive import figure, update

FORWARD_S = 0.02
MOST_STAGES, MOST_MICROBATCHES = 8, 32


class PipelineExplorer(widgets.VBox):
    """Schedules under each other on one time axis, with a slider for each thing that decides their step.

    schedules: names that `simlab.generate` knows. The others are the sliders' starting values; a forward takes 20 ms.
    """

    def __init__(self, schedules=("gpipe", "1f1b"), *, stages=4, microbatches=8, backward_over_forward=2.0, link_ms=0.0):
        style = {"style": {"description_width": "11em"}, "layout": widgets.Layout(width="30em"), "continuous_update": True}
        self.schedules = schedules
        self.stages = widgets.IntSlider(stages, 1, MOST_STAGES, description="stages p", **style)
        self.microbatches = widgets.IntSlider(microbatches, 1, MOST_MICROBATCHES, description="microbatches m", **style)
        self.ratio = widgets.FloatSlider(backward_over_forward, min=0.5, max=3, step=0.25, description="backward / forward", **style)
        self.link_ms = widgets.FloatSlider(link_ms, min=0, max=20, step=1, description="link time, ms", **style)
        self.table = widgets.HTML()
        traces = self.traces()
        self.picture = figure(traces, make=go.FigureWidget, ranks=MOST_STAGES).update_layout(autosize=True)  # as wide as the page
        self.table.value = _table(traces)
        sliders = (self.stages, self.microbatches, self.ratio, self.link_ms)
        for slider in sliders:
            slider.observe(self._redraw, names="value")
        super().__init__([widgets.HBox([widgets.VBox(sliders), self.table]), self.picture])

    def traces(self):
        """The simulated trace of each schedule at the sliders' values."""
        times = sl.OpTimes(forward_s=FORWARD_S, backward_s=FORWARD_S * self.ratio.value)
        link = sl.Link(latency_s=self.link_ms.value * MS)
        programs = [sl.generate(name, self.stages.value, self.microbatches.value) for name in self.schedules]
        return [sl.simulate(program, times, link=link) for program in programs]

    def _redraw(self, _):
        traces = self.traces()
        update(self.picture, traces)
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
        f"<td>{max(sl.peak_memory(trace))} microbatches</td></tr>"
        for trace in traces
    )
    return f"<table style='border-spacing: 1em 0.2em'>{head}{rows}</table>"

"""Sliders over ring attention: what each rank computes and sends, step by step, for both
layouts."""

import html
from base64 import b64encode
from dataclasses import replace
from typing import Any

import ipywidgets as widgets

import simlab as sl
from simlab.trace import Trace
from simlab.units import seconds_text

ACROSS = {"a node (NVLink)": True, "nodes (network)": False}


class RingExplorer(widgets.VBox):
    """Contiguous above zigzag, for one layer's forward attention of `model` on a ring within a node
    of `cluster`, or across its nodes."""

    def __init__(
        self,
        model: str = "llama-3-8b",
        cluster: str = "dgx-h100",
        *,
        ranks: int = 4,
        tokens: int = 32_768,
    ) -> None:
        style = {"style": {"description_width": "11em"}, "layout": widgets.Layout(width="30em")}
        self.model, self.cluster = sl.load_model(model), sl.load_cluster(cluster)
        self.ranks = widgets.SelectionSlider(
            options=(2, 4, 8), value=ranks, description="ranks in the ring", **style
        )
        self.tokens = widgets.SelectionSlider(
            options=[2**k for k in range(12, 18)], value=tokens, description="tokens", **style
        )
        self.link = widgets.Dropdown(options=list(ACROSS), description="within", **style)
        self.verdict, self.picture = widgets.HTML(), widgets.Image(format="png")
        for control in (self.ranks, self.tokens, self.link):
            control.observe(self._redraw, names="value")
        self._redraw()
        super().__init__([self.ranks, self.tokens, self.link, self.verdict, self.picture])

    def traces(self) -> list[Trace]:
        """The traces of both layouts at the controls' values."""
        ranks, inside = self.ranks.value, ACROSS[self.link.value]
        plan = sl.Plan(
            cp=ranks,
            seq=self.tokens.value,
            dp=1 if inside else self.cluster.gpus_per_node,
            order="dp-cp-tp-pp",
        )
        cluster = sl.load_cluster(self.cluster.name, nodes=1 if inside else ranks)
        return [
            sl.ring_trace(self.model, replace(plan, cp_layout=layout), cluster)
            for layout in ("contiguous", "zigzag")
        ]

    def _redraw(self, _: Any = None) -> None:
        contiguous, zigzag = traces = self.traces()
        times = (
            f"contiguous {seconds_text(contiguous.step_s)}, zigzag {seconds_text(zigzag.step_s)}"
        )
        ratio = contiguous.step_s / zigzag.step_s
        self.verdict.value = f"<b>{html.escape(times)}: {ratio:.2f} times as long</b>"
        self.picture.value = sl.layer_timeline(traces)._repr_png_()

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and the last picture for where no widget can live."""
        bundle = super()._repr_mimebundle_(**kwargs)
        bundle["image/png"] = b64encode(self.picture.value).decode()
        return bundle

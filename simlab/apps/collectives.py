"""An all-reduce round by round, and what it takes on a cluster: sliders over `simlab.replay` and
`simlab.all_reduce_curve`."""

import html
from base64 import b64encode
from io import BytesIO
from typing import Any

import ipywidgets as widgets
import plotly.graph_objects as go

import simlab as sl
from simlab.collectives import ALL_REDUCE
from simlab.collectives.replay import RoundState
from simlab.units import MIB, bytes_text
from simlab.views.interactive.rounds import figure, update
from simlab.views.rounds import sends

MOST_RANKS = 16
LINES = 8  # of who sends what


class CollectiveExplorer(widgets.VBox):
    """Who sends what to whom in each round of an all-reduce, and what every rank then holds; beside
    it time and bus bandwidth on a cluster.

    algorithm: 'ring', 'tree', 'halving-doubling', 'hierarchical' (on two nodes) or 'star'.
    ranks:     of the rounds; the buffer is 1 MiB for each.
    cluster:   a name in the catalogue; `nodes` of them, all of whose GPUs take part in the
               all-reduce on the right.
    """

    def __init__(
        self,
        algorithm: str = "ring",
        ranks: int = 4,
        *,
        step: int = 1,
        cluster: str = "dgx-a100",
        nodes: int = 16,
    ) -> None:
        style = {"style": {"description_width": "7em"}, "layout": widgets.Layout(width="26em")}
        names = [
            "ring",
            "tree",
            "halving-doubling",
            "hierarchical",
            *(name for name in ALL_REDUCE if name == "star"),
        ]
        self.algorithm = widgets.Dropdown(
            options=names, value=algorithm, description="algorithm", **style
        )
        self.ranks = widgets.IntSlider(ranks, 2, MOST_RANKS, description="ranks", **style)
        self.round = widgets.IntSlider(0, 0, 0, description="round", **style)
        self.cluster = widgets.Dropdown(
            options=list(sl.clusters()), value=cluster, description="cluster", **style
        )
        self.nodes = widgets.SelectionSlider(
            options=[2**k for k in range(7)], value=nodes, description="its nodes", **style
        )
        self.note = widgets.HTML()
        self.picture = figure(make=go.FigureWidget)
        self.picture.update_layout(autosize=True)  # as wide as the page
        self._replay()
        self.round.value = step
        self._time()
        self._redraw()
        for control, callback in (
            (self.algorithm, self._on_rounds),
            (self.ranks, self._on_rounds),
            (self.round, self._redraw),
            (self.cluster, self._on_cluster),
            (self.nodes, self._on_cluster),
        ):
            control.observe(callback, names="value")
        controls = widgets.VBox([self.algorithm, self.ranks, self.round, self.cluster, self.nodes])
        super().__init__([widgets.HBox([controls, self.note]), self.picture])

    def _replay(self) -> None:
        ranks = range(self.ranks.value)
        rounds = sl.all_reduce_rounds(self.algorithm.value, ranks, MIB * len(ranks))
        self.steps = sl.replay(rounds, ranks)
        self.round.max = len(rounds)

    def _time(self) -> None:
        cluster = sl.load_cluster(self.cluster.value, nodes=self.nodes.value)
        self.points = sl.all_reduce_curve(
            sl.GroupShape(cluster.gpus, cluster.gpus_per_node), cluster
        )

    def _on_rounds(self, _: Any) -> None:
        try:
            self._replay()
        except sl.InputError as error:  # what was drawn last stays
            self.note.value = f"<b>{html.escape(str(error))}</b>"
            return
        self._redraw()

    def _on_cluster(self, _: Any) -> None:
        self._time()
        self._redraw()

    @property
    def step(self) -> RoundState:
        """The `RoundState` that is shown."""
        return self.steps[self.round.value]

    @property
    def title(self) -> str:
        """What the right half shows."""
        return f"all-reduce on {self.nodes.value} x {self.cluster.value}"

    def _redraw(self, _: Any = None) -> None:
        update(self.picture, self.step, self.points, self.title)
        self.note.value = _note(self.step, len(self.steps) - 1)

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and a still picture of it for where no widget can live (a page on GitHub)."""
        from simlab.views.still.rounds import explorer_figure

        bundle = super()._repr_mimebundle_(**kwargs)
        png = BytesIO()
        picture: Any = explorer_figure(self.step, self.points, self.title)
        picture.savefig(png, format="png")
        bundle["image/png"] = b64encode(png.getvalue()).decode()
        return bundle


def _note(step: RoundState, rounds: int) -> str:
    """What the round does, as HTML."""
    lines = sends(step)
    if len(lines) > LINES:
        lines = [*lines[:LINES], f"… and {len(lines) - LINES} more"]
    most = bytes_text(max(step.sent_bytes(rank) for rank in step.ranks))
    complete = sum(step.complete.values())
    head = f"<b>round {step.number} of {rounds}</b>: a rank sends {most} at most"
    return "<br>".join(
        [
            f"{head}; {complete} of {len(step.ranks) * len(step.parts)} sums are complete",
            *map(html.escape, lines),
        ]
    )

"""What a training does while it runs, in a notebook: its loss, its speed, and how long each rank
computes and waits."""

from base64 import b64encode
from collections.abc import Callable
from functools import partial
from typing import Any

import ipywidgets as widgets
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from realrun.run.progress import Said, figures
from simlab.apps.screen import leaving, still_html
from simlab.lessons.phrases import phrase
from simlab.lessons.words import language, rendered
from simlab.views.chart import Boxes
from simlab.views.language import CHINESE_PNG, LANGUAGE
from simlab.views.still.marks import filling
from simlab.views.still.picture import Picture, own_style
from simlab.views.still.wording import say_in_chinese

COMPUTES, SLOW = LANGUAGE["marks"]["computes"], LANGUAGE["marks"]["slow"]
LOSS: str = LANGUAGE["lines"][0]
IDLE = filling(Boxes.at([], "waiting", pattern=LANGUAGE["work"]["waiting"]["pattern"]))
TEXT_SHARE = 0.7
"""From which share of its time on a slow rank's bar has room for what is said of it."""


class TrainingMonitor(widgets.VBox):
    """A bar of the steps that are done, and a picture of the loss of each step and of how every
    rank spends its time, with the slow ranks marked.

    `show` takes what `realrun.run.progress.TrainingProgress` says: Pool(ranks, show=monitor.show)
    while it trains. A new training begins it anew, until `freeze`: then it keeps what it shows.
    """

    def __init__(self) -> None:
        self.bar = widgets.IntProgress(value=0, min=0, max=1, layout=widgets.Layout(width="22em"))
        self.text = widgets.HTML(phrase("nothing is running"))
        self.picture = widgets.Image(format="png", layout=widgets.Layout(max_width="100%"))
        self.losses: list[float] = []
        self.now: Said | None = None
        self.frozen = False
        self._leave: Callable[[], None] = lambda: None
        super().__init__([widgets.HBox([self.bar, self.text]), self.picture])

    def show(self, now: Said) -> None:
        """Show what is said: see `realrun.run.progress.TrainingProgress.said`."""
        if self.frozen:
            return
        goes_on = self.now and (self.now["name"], self.now["step"] + len(now["losses"])) == (
            now["name"],
            now["step"],
        )
        self.losses = [*self.losses, *now["losses"]] if goes_on else now["losses"]
        self.now = now
        self.bar.max, self.bar.value = now["steps"], now["step"]
        self.text.value = " · ".join(map(phrase, figures(now)))
        self.picture.value = self._png(now, language())
        if now["step"] == now["steps"]:
            self._leave()

    def freeze(self) -> None:
        """Keep what is shown: trainings that come later do not change it."""
        self.frozen = True

    def _png(self, now: Said, tongue: str) -> bytes:
        picture = self._picture(now)
        if tongue == "zh":
            say_in_chinese(picture, partial(phrase, tongue=tongue))
        return picture._repr_png_()

    @own_style
    def _picture(self, now: Said) -> Picture:
        size = 9.5, 1.5 + 0.24 * len(now["ranks"])
        picture = Picture(figsize=size, layout="constrained", dpi=80)
        curve, bars = picture.subplots(1, 2)
        curve.plot(
            range(now["step"] - len(self.losses) + 1, now["step"] + 1), self.losses, color=LOSS
        )
        curve.set(xlabel="training step", ylabel="loss", xlim=(0.5, now["steps"] + 0.5))
        curve.xaxis.set_major_locator(MaxNLocator(integer=True))
        curve.grid(alpha=0.3)
        self._shares(bars, now)
        return picture

    def _shares(self, bars: Axes, now: Said) -> None:
        """Draw the share of its time in which each rank computes and waits."""
        slow = dict(now["slow"])
        for rank, spent in enumerate(now["ranks"]):
            whole_s = spent["computed_s"] + spent["waited_s"]
            share = spent["computed_s"] / whole_s if whole_s else 0.0
            bars.barh(rank, 100 * share, color=SLOW if rank in slow else COMPUTES)
            bars.barh(rank, 100 * (1 - share), left=100 * share, **IDLE)
            if rank in slow:
                text = f"computes {slow[rank]:.2f} times as long as its peers"
                inside = share > TEXT_SHARE
                at, color = (1.0, "white") if inside else (100 * share + 1, "black")
                bars.text(at, rank, text, va="center", fontsize=8, color=color)
        bars.set_yticks(
            range(len(now["ranks"])), [f"rank {rank}" for rank in range(len(now["ranks"]))]
        )
        bars.invert_yaxis()
        bars.set(xlim=(0, 100), xlabel="% of its time: computes (colour), waits (hatched)")

    def _ipython_display_(self, **kwargs: Any) -> None:
        """The widget, and what it leaves: the training that it showed last."""
        bundle = self._repr_mimebundle_(**kwargs)
        if not rendered():
            bundle.pop("image/png", None)
        self._leave = leaving(self._left, bundle)

    def _left(self) -> str:
        picture = b64encode(self.picture.value).decode() if self.now else ""
        return f"<p>{self.text.value}</p>{still_html(picture)}"

    def _repr_mimebundle_(self, **kwargs: Any) -> dict[str, Any]:
        """The widget, and its picture for where no widget can live, as on a page on GitHub."""
        bundle = super()._repr_mimebundle_(**kwargs)
        if self.now:
            bundle["image/png"] = b64encode(self.picture.value).decode()
            if rendered():
                bundle[CHINESE_PNG] = b64encode(self._png(self.now, "zh")).decode()
        return bundle

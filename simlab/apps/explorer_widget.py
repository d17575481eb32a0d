"""It shows an explorer as a widget: the browser sends the state, and Python sends the answer."""

import logging
from base64 import b64encode
from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import traitlets

import simlab.views
from simlab.apps.screen import leaving, session, still_html
from simlab.errors import InputError, SimlabError
from simlab.explorers.explorer import Answer, Explorer
from simlab.lessons.phrases import phrase
from simlab.lessons.words import language, rendered
from simlab.views.chart import Chart, Words, plotly_figure
from simlab.views.language import CHINESE_PNG, refusal

LOGGER = logging.getLogger(__name__)
BUNDLE = Path(simlab.views.__file__).with_name("bundle")


def _named(error: Exception) -> str:
    """What `error` is, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(".: ")


class ExplorerWidget(anywidget.AnyWidget):
    """Shows an `Explorer`; keyword arguments are the values that its controls start with. A model, a
    cluster or a schedule may be an object of one's own instead of a name (`Explorer.taking`).

    hidden: the controls that are not shown; they stay as they start.
    tongue: 'en' or 'zh'; None: the learner's language, which the lesson's cells can change.
    given:  other arguments of the class, which its call in Python repeats.

    `state` is what the controls say, {name: value}; setting it moves them. `shown` is the last
    `Answer`, and `refused` says why the present state has none; else it is None.

    Raises `InputError` for a control or a value that does not exist, and for a start that is
    refused.
    """

    _esm = BUNDLE / "explorer.js"
    about = traitlets.Dict().tag(sync=True)
    call = traitlets.Unicode().tag(sync=True)
    tongue = traitlets.Enum(("en", "zh"), "en").tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    answer = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        explorer: Explorer,
        *,
        tongue: str | None = None,
        hidden: Sequence[str] = (),
        given: Mapping[str, Any] | None = None,
        **values: Any,
    ) -> None:
        explorer, values = explorer.taking(values)
        self._explorer, self._count = explorer, 0
        self.shown = Answer()
        self.refused: Words | None = None
        state = explorer.start(**values)
        answer = self._answered(state)
        if self.refused:
            raise InputError(self.refused.en)
        super().__init__(
            about=explorer.to_dict() | {"hidden": [*hidden], "given": dict(given or {})},
            call=type(self).__name__,
            tongue=tongue or language(),
            state=state,
            answer=answer,
        )
        self.observe(self._moved, names="state")
        if tongue is None:
            session().retold.append(lambda: self.set_trait("tongue", language()))

    def _moved(self, change: Any) -> None:
        try:
            self.answer = self._answered(change.new)
        except (
            Exception
        ) as error:  # a mistake of ours; the browser waits for an answer all the same
            LOGGER.exception("the explorer %s has no answer", self.about["name"])
            self.refused = Words(
                f"This state has no picture because of a mistake in simlab: {_named(error)}.",
                f"这个状态没有图，因为 simlab 有错误：{_named(error)}。",
            )
            self.answer = self._sent()

    def _answered(self, state: dict[str, Any]) -> dict[str, Any]:
        """The answer for `state` as the front end takes it; `count` makes each one another."""
        self._count += 1
        try:
            self.shown, self.refused = self._explorer.ask(state), None
        except SimlabError as error:  # what was drawn last stays
            self.refused = refusal(error)
        return self._sent()

    def _sent(self) -> dict[str, Any]:
        refused = self.refused._asdict() if self.refused else None
        return self.shown.to_dict() | {"refused": refused, "count": self._count}

    @property
    def meant(self) -> dict[str, Any]:
        """`state` with the objects of one's own that its names mean."""
        return self._explorer.meant(self.state)

    def __repr__(self) -> str:
        """The call that makes this widget as it is now."""
        starts = {control.name: control.start for control in self._explorer.controls}
        changed = [(name, value) for name, value in self.state.items() if value != starts[name]]
        shown = [*self.about["given"].items(), *changed]
        return f"{self.call}({', '.join(f'{name}={value!r}' for name, value in shown)})"

    def charts(self) -> list[Chart]:
        """What the still shows: all charts that are shown."""
        return [picture for picture in self.shown.pictures if isinstance(picture, Chart)]

    def still(self, tongue: str | None = None) -> Any:
        """A matplotlib Figure of all that is shown; None if there is nothing. tongue: "en" or "zh";
        None: the widget's own. It is English where no font here has Chinese characters."""
        from simlab.views.still.chart import charts
        from simlab.views.still.wording import drawable

        shown = self.charts()
        columns = 1 if len(shown) <= 2 else 2
        return (
            charts(shown, columns=columns, tongue=drawable(tongue or self.tongue))
            if shown
            else None
        )

    def plotly(self, *, tongue: str | None = None, theme: str = "light") -> Any:
        """All charts that are shown as a Figure of plotly, see `simlab.views.chart.Chart.plotly`.
        tongue: "en" or "zh"; None: the widget's own."""
        return plotly_figure(self.charts(), tongue=tongue or self.tongue, theme=theme)

    def in_tongue(self, figure: Any, tongue: str | None) -> Any:
        """`figure`, whose texts are English, in `tongue`; None: in the widget's own."""
        from simlab.views.still.wording import say_in_chinese

        if (tongue or self.tongue) == "zh":
            say_in_chinese(figure, partial(phrase, tongue="zh"))
        return figure

    def _ipython_display_(self, **kwargs: Any) -> None:
        """The widget, and its still picture as what it leaves in the notebook."""
        data, _ = self._repr_mimebundle_(**kwargs)
        picture = "" if rendered() else still_html(data.pop("image/png", ""))
        head = f"<p><code>{escape(repr(self))}</code></p>"
        leaving(lambda: head + picture, data)

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        """The widget, and a still picture of all that it shows for where no widget can live, such
        as a page on GitHub."""
        data, metadata = super()._repr_mimebundle_(**kwargs) or ({}, {})
        figure = self.still()
        if figure is not None:
            data["image/png"] = b64encode(figure._repr_png_()).decode()
            if rendered():
                data[CHINESE_PNG] = b64encode(self.still("zh")._repr_png_()).decode()
        return data, metadata

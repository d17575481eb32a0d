"""The drill and the interview in a notebook: one question at a time, kept after each answer."""

import html
from collections.abc import Callable
from random import SystemRandom
from typing import Any

import ipywidgets as widgets

from simlab.apps.lesson_cells import as_html
from simlab.apps.screen import leaving, session
from simlab.errors import InputError
from simlab.lessons.drill.advice import advice_text
from simlab.lessons.drill.posed import Posed
from simlab.lessons.drill.session import Session
from simlab.lessons.prediction import Choice
from simlab.lessons.words import word


class Drill(widgets.VBox):
    """Questions whose numbers change, on-call cases, and answers to say aloud.

    It goes on with the drill that was left, also the one at the terminal (`python -m simlab
    drill`), unless `only`, `kinds`, `interview` or another seed is given.

    questions: how many a new drill has.
    only:      the ids to ask about; None: all.
    kinds:     the kinds to ask, such as "board", a whiteboard case, "chain" or "artefact"; None: a mix.
    interview: 45 minutes, mixed and timed, that end in advice; then all of the above is left out.
    seed:      the same seed asks the same questions again.

    Raises `InputError` for an id that nothing is asked about, and for another kind.
    """

    def __init__(
        self,
        questions: int = 20,
        *,
        only: list[str] | None = None,
        kinds: list[str] | None = None,
        interview: bool = False,
        seed: str | None = None,
    ) -> None:
        self.children: tuple[widgets.Widget, ...]
        super().__init__(layout=widgets.Layout(border="1px solid #888", padding="8px"))
        self._new = questions, only, kinds, interview, seed
        left = None if only or kinds or interview else Session.kept(seed)
        self.drill = left or self._begun()
        self.fields: dict[str, widgets.ValueWidget] = {}
        self._leave: Callable[[], None] = lambda: None
        self._ask()
        session().retold.append(self._ask)

    def _begun(self) -> Session:
        questions, only, kinds, interview, seed = self._new
        drawn = seed or str(SystemRandom().randrange(10**9))
        return (
            Session.interview(drawn) if interview else Session(questions, drawn, only, kinds=kinds)
        )

    def _ipython_display_(self, **kwargs: Any) -> None:
        """The drill, and what it leaves: how many of its questions are answered."""
        data = super()._repr_mimebundle_(**kwargs)
        self._leave = leaving(lambda: f"<p>{self._done()}</p>", data)

    def _done(self) -> str:
        done = self.drill
        return word("drill.left", right=done.right, answered=done.at, count=done.count)

    def answer(self, **texts: str) -> None:
        """Answer the question that is shown, {field: text}, as the button does. `InputError` for a
        text that is no value of its field."""
        _, said = self.drill.answer(texts, self._hinted)
        after = self._button("begin" if self.drill.is_over else "next", self._go_on)
        if self.drill.is_over:
            advice = self.drill.advice()
            said = [*said, self.drill.ended(), advice_text(advice) if advice else ""]
        verdict = widgets.HTML("".join(map(as_html, said)))
        self.children = (*self.children[:-1], verdict, after)
        for field in self.fields.values():
            field.disabled = True
        self._leave()

    def _ask(self) -> None:
        """Show the question to answer now; at the end, what is on the screen stays."""
        asked = self.drill.question()
        if asked is None:
            return
        self.fields = {name: _field(asked, name) for name in asked.fields}
        self._hinted = 0
        parts = [
            widgets.HTML(
                f"<i>{self.drill.head()}</i>{as_html(asked.about)}{_rows_html(asked.about_rows)}"
                f"{as_html(asked.text)}{_rows_html(asked.rows)}"
            )
        ]
        if asked.shown:
            name = "show_points" if asked.at_least else "show_answer"
            show = self._button(name, lambda: self._show_points(asked))
            self.children = (*parts, show)
            return
        self.children = (*parts, *self._entry(asked))

    def _show_points(self, asked: Posed) -> None:
        points = widgets.HTML(as_html(asked.shown))
        self.children = (self.children[0], points, *self._entry(asked))

    def _entry(self, asked: Posed) -> list[widgets.Widget]:
        wide = widgets.Layout(width="24em")
        lines = [
            widgets.HBox([widgets.HTML(html.escape(asked.labels[name]), layout=wide), field])
            for name, field in self.fields.items()
        ]
        self.told = widgets.HTML()
        shown = widgets.HTML()
        hint = self._button("hint", lambda: self._hint(asked, shown, hint))
        hint.layout.display = None if asked.hints else "none"
        return [*lines, shown, hint, self.told, self._button("check", self._check)]

    def _hint(self, asked: Posed, shown: widgets.HTML, button: widgets.Button) -> None:
        """Show one hint more."""
        self._hinted += 1
        shown.value = "".join(map(as_html, asked.hints[: self._hinted]))
        button.disabled = self._hinted == len(asked.hints)

    def _check(self) -> None:
        try:
            self.answer(**{name: str(field.value) for name, field in self.fields.items()})
        except InputError as error:
            self.told.value = f"<b>{html.escape(str(error))}</b>"

    def _go_on(self) -> None:
        if self.drill.is_over:
            self.drill = self._begun()
        self._ask()

    def _button(self, name: str, do: Callable[[], None]) -> widgets.Button:
        button = widgets.Button(
            description=word(f"drill.{name}"), layout=widgets.Layout(width="auto")
        )
        button.on_click(lambda _: do())
        return button


def _field(asked: Posed, name: str) -> widgets.ValueWidget:
    taken = asked.fields[name]
    if isinstance(taken, Choice):
        pairs = [(f"– {word('form.choose')} –", "")]
        pairs += [(asked.options.get(one, one), one) for one in taken.options]
        return widgets.Dropdown(options=pairs, value="", layout=widgets.Layout(width="24em"))
    return widgets.Text("", placeholder=asked.unit(name), layout=widgets.Layout(width="12em"))


def _rows_html(rows: list[list[str]]) -> str:
    lines = (
        "<tr>" + "".join(f"<td style='padding:0 1em 0 0'>{html.escape(cell)}</td>" for cell in row)
        for row in rows
    )
    return f"<table>{''.join(lines)}</table>" if rows else ""

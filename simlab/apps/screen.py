"""What is on the screen of a notebook: what waits for a prediction, texts that follow the language, and
what a widget leaves there for when its kernel is gone."""

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

import ipywidgets as widgets
from IPython import get_ipython
from IPython.display import display

from simlab.lessons.words import rendered, word

MARKDOWN, HTML = "text/markdown", "text/html"
_CHILD, _OUTPUT = ".jp-OutputArea-child", "> .jp-OutputArea-output"
_LEFT, _LIVES = f"{_CHILD}:has({_OUTPUT} > .simlab-left)", ".jp-OutputArea-output .lm-Widget"
STYLE = f"""<style>
.simlab-left {{ display: none }}
{_CHILD}:not(:has(+ {_CHILD} {_LIVES})) {_OUTPUT} > .simlab-left {{ display: block }}
{_LEFT}:has(+ {_CHILD} {_LIVES}), {_LEFT} + {_CHILD}:not(:has({_LIVES})) {{ display: none }}
</style>"""
"""JupyterLab shows a widget only while its kernel lives, and says "model not found" from then on. So
before each widget stands an output of plain HTML, which says what it was and how it comes back. Of the
two, JupyterLab shows the widget where one lives below the HTML. Elsewhere the HTML is hidden where styles
are taken, and read where they are not."""


class Session:
    """What is on the screen of one notebook: what waits for a prediction, and what follows the
    language."""

    def __init__(self) -> None:
        self.waiting: dict[str, list[Callable[[], None]]] = {}
        self.told: set[str] = set()
        self.retold: list[Callable[[], None]] = []
        self.texts: dict[str, Callable[[], dict[str, str]]] = {}  # {id of a display: its data}
        self.holding = False

    def release(self, identifier: str) -> None:
        """Show what waits for the prediction `identifier`, and hold nothing back for it any
        more."""
        self.told.add(identifier)
        for show in self.waiting.pop(identifier, []):
            show()

    def hold_again(self, identifier: str) -> None:
        """Hold back from now on what gives the prediction `identifier` away."""
        self.told.discard(identifier)

    def retell(self) -> None:
        """Say everything that is on the screen again, for the language has changed."""
        for say in self.retold:
            say()


def session() -> Session:
    """The `Session` of the notebook that runs this; a new one where there is no notebook."""
    shell = get_ipython()
    if shell is None:
        return Session()
    return vars(shell).setdefault("simlab_session", Session())


def in_notebook() -> bool:
    """Whether there is a notebook that can show something, or a copy for reading is made."""
    return get_ipython() is not None or rendered()


def show(text: Callable[[], str], kind: str = HTML) -> Callable[[], None]:
    """Show a text that follows the language, HTML or Markdown by its `kind`; outside of a notebook,
    and in a copy for reading, as it is. Returns what shows it anew."""

    def data() -> dict[str, str]:
        return {kind: text()}

    if get_ipython() is None or rendered():
        display(data(), raw=True)
        return lambda: None
    place = display(data(), raw=True, display_id=True)
    session().texts[place.display_id] = data

    def again() -> None:
        place.update(data(), raw=True)

    session().retold.append(again)
    return again


def say_what_is_missing() -> None:
    """From now on have the notebook say of a name that no cell has made: run the cell above."""
    shell = get_ipython()
    if shell is not None:
        shell.set_custom_exc((NameError,), _missing)


def _missing(
    shell: Any,
    kind: type[NameError],
    error: NameError,
    trace: TracebackType,
    tb_offset: int | None = None,
) -> None:
    shell.showtraceback((kind, error, trace), tb_offset=tb_offset)
    if kind is NameError and error.name:
        print(word("form.no_name", name=error.name))


def leaving(
    text: Callable[[], str], shown: widgets.Widget | Mapping[str, Any], how: str = "cell"
) -> Callable[[], None]:
    """Show a widget, or the data of its display, and leave `text`, HTML, for when it is gone; in a
    copy for reading, the widget alone. Returns what leaves the text anew.

    how: the words of `form.left` that say how the widget comes back.
    """

    def left() -> str:
        return f"{STYLE}<div class='simlab-left'>{text()}<p><i>{word(f'form.left.{how}')}</i></p></div>"

    again = (lambda: None) if rendered() else show(left)
    display(shown, raw=isinstance(shown, Mapping))
    return again


def still_html(png: str) -> str:
    """A picture, PNG in base64, as a part of a text; "" for none."""
    return f"<img style='max-width: 100%' src='data:image/png;base64,{png}'>" if png else ""

"""It puts timelines into an HTML file that needs nothing else: the canvas's script, and its data.

A file that is opened from a disk can load no other file, so the script lies in the page as text.
All timelines of a page share it.
"""

import json
from collections.abc import Sequence
from pathlib import Path

import simlab.views
from simlab.views.language import LANGUAGE
from simlab.views.packing import Panel
from simlab.views.page import recorded

BUNDLE = Path(simlab.views.__file__).with_name("bundle") / "timeline.js"
THEME_WORDS = {"background": "background", "ink": "ink", "muted": "muted", "line": "grid"}
"""{the end of a CSS variable's name, which begins with --simlab-: the word of the theme it has}"""
NO_SCRIPT = "The timeline is drawn by a script, which this browser does not run."
# what a notebook gives a widget: a model with a state, and an element to render into
SHOW = """
const { source, timelines } = JSON.parse(document.getElementById("simlab-timelines").textContent);
const revive = (value) => {
  if (Array.isArray(value)) return value.map(revive);
  if (value === null || typeof value !== "object") return value;
  if (value.base64 !== undefined) return Uint8Array.from(atob(value.base64), (letter) => letter.charCodeAt(0));
  return Object.fromEntries(Object.entries(value).map(([name, item]) => [name, revive(item)]));
};
const address = URL.createObjectURL(new Blob([source], { type: "text/javascript" }));
const { default: widget } = await import(address);
timelines.forEach((panels, number) => {
  const room = Math.max(...panels.map(({ ranks }) => ranks));
  const state = { panels: revive(panels), room, height: 0, serial: 1 };
  const model = { get: (name) => state[name], on() {}, off() {} };
  widget.render({ model, el: document.querySelector(`[data-timeline="${number}"]`) });
});
"""


def place(number: int) -> str:
    """The element in which timeline `number` of the page's `script` is drawn."""
    return f'<div data-timeline="{number}"><noscript>{NO_SCRIPT}</noscript></div>'


def script(timelines: Sequence[Sequence[Panel]]) -> str:
    """The end of a page that draws each of `timelines`, [the panels under each other], in its
    `place`."""
    data = {
        "source": BUNDLE.read_text(encoding="utf-8"),
        "timelines": [[recorded(panel._asdict()) for panel in panels] for panels in timelines],
    }
    # in JSON "<" occurs in texts only, and a text may not end the element or begin a comment
    text = json.dumps(data, ensure_ascii=False).replace("<", r"\u003c")
    head = '<script type="application/json" id="simlab-timelines">'
    return f'{head}{text}</script>\n<script type="module">{SHOW}</script>'


def style() -> str:
    """CSS: the themes' colours as variables, dark where the reader's system is."""

    def variables(theme: str) -> str:
        words = LANGUAGE["themes"][theme]
        return "; ".join(f"--simlab-{name}: {words[word]}" for name, word in THEME_WORDS.items())

    return (
        f":root {{ color-scheme: light dark; {variables('light')} }}\n"
        f"@media (prefers-color-scheme: dark) {{ :root {{ {variables('dark')} }} }}"
    )

"""Explorers in a page of their own, and what a browser draws of a chart, held against what Python says."""

import re
from contextlib import contextmanager
from math import log

import pytest

from simlab.explorers import explorer
from simlab.views.chart import Boxes, Dots
from simlab.views.language import LANGUAGE
from simlab.views.stream_rows import short_label
from tests.support.browser import show_explorer, watched
from tests.support.patience import PATIENCE_S

SIZES = [(1366, 768), (1920, 1080)]
LAB = {(1366, 768): (1190, 640), (1920, 1080): (1740, 950)}  # of which a notebook's cell has this
LIVE_S = PATIENCE_S  # Pyodide starts in 4 s on a quiet machine
# [[text, left, top, right, bottom]] of all that one sees; a px of leading above and below is air
TEXTS = """root => [...root.querySelectorAll('text, label, output, th, td, button, p, figcaption, .simlab-legend span')]
    .filter((e) => e.textContent.trim() && e.getClientRects().length)
    .map((e) => {
        const range = document.createRange();
        range.selectNodeContents(e);
        const box = e.tagName === 'text' ? e.getBoundingClientRect() : range.getBoundingClientRect();
        return [e.textContent, box.left, box.top + 1.5, box.right, box.bottom - 1.5];
    })"""
CLASHES = f"""root => {{
    const texts = ({TEXTS})(root), found = [];
    texts.forEach((a, i) => {{
        if (a[1] < -0.5 || a[3] > innerWidth + 0.5) found.push([a, 'outside']);
        for (const b of texts.slice(i + 1)) {{
            if (a[1] < b[3] - 0.5 && b[1] < a[3] - 0.5 && a[2] < b[4] && b[2] < a[4]) found.push([a, b]);
        }}
    }});
    for (const svg of root.querySelectorAll('.simlab-plot svg')) {{
        const frame = svg.getBoundingClientRect();
        for (const text of svg.querySelectorAll('text')) {{
            const box = text.getBoundingClientRect();
            if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.bottom > frame.bottom + 1)
                found.push([text.textContent, 'out of its picture']);
        }}
        const legend = svg.closest('figure').querySelector('.simlab-legend').getBoundingClientRect();
        if (legend.bottom > frame.top + 0.5) found.push(['legend', svg.getAttribute('aria-label')]);
    }}
    return found;
}}"""
# every chart is as wide as its place
FITTED = """() => [...document.querySelectorAll('.simlab-plot svg')].every(
    (svg) => Number(svg.getAttribute('width')) === svg.parentElement.clientWidth)"""
DRAWN = """figure => {
    const svg = figure.querySelector('.simlab-plot svg');
    const numbers = (text) => text.split(' ').map(Number);
    return {
        x: numbers(svg.dataset.x), y: numbers(svg.dataset.y),
        legend: [...figure.querySelectorAll('.simlab-legend span')].map((e) => e.textContent),
        title: figure.querySelector('figcaption').textContent,
        labels: [...svg.querySelectorAll('text[data-part=label]')].map((e) => e.textContent),
        marks: [...svg.querySelectorAll('g[data-mark]')].map((g) => ({
            kind: g.dataset.mark,
            rects: [...g.querySelectorAll('rect')].map((r) => ['x', 'y', 'width', 'height'].map((n) => Number(r.getAttribute(n)))),
            paths: [...g.querySelectorAll('path')].map((p) => p.getAttribute('d')),
            fill: g.firstElementChild?.getAttribute('fill'),
        })),
    };
}"""


@contextmanager
def shown(browser, name, size=(1366, 768), **values):
    """(the page, the element of the explorer), in a page without errors."""
    page = browser.new_page()
    asked, complaints = watched(page)
    page.set_viewport_size(dict(zip(("width", "height"), LAB.get(size, size))))
    page.goto("data:text/html,<body style='margin: 0'></body>")
    try:
        yield page, show_explorer(page, explorer(name), **values)
        assert not complaints
        assert all(url.startswith(("data:", "blob:")) for url in asked)
    finally:
        page.close()


def scaled(axis, drawn):
    """The function from a position on `axis` to px."""
    least, most, start, end = drawn
    bent = log if axis.scale != "linear" else float
    return lambda value: (
        start + (end - start) * (bent(value) - bent(least)) / (bent(most) - bent(least))
    )


def colour(mark, theme):
    """The colour in which boxes are shown; black ones could not be seen on a dark background."""
    colours = LANGUAGE["themes"][theme]
    black = theme == "dark" and mark.colour == "#000000"
    return colours["black"] if black else colours.get(mark.colour, mark.colour)


def check(chart, drawn, theme="light"):
    """What is drawn of `chart` is what it says: counts, colours, labels and positions."""
    assert drawn["title"] == chart.title.en
    assert drawn["legend"] == [name.en for name, _ in chart.legend()]
    assert [mark["kind"] for mark in drawn["marks"]] == [
        type(mark).__name__.lower() for mark in chart.marks
    ]
    x, y = scaled(chart.x, drawn["x"]), scaled(chart.y, drawn["y"])
    allowed = set()
    for mark, painted in zip(chart.marks, drawn["marks"], strict=True):
        labels = [*(getattr(mark, "labels", None) or ())]
        allowed |= {*labels, *map(short_label, labels)}
        if isinstance(mark, Boxes):
            expected = [
                (min(x(a), x(b)), min(y(c), y(d)), abs(x(b) - x(a)), abs(y(d) - y(c)))
                for a, b, c, d in zip(mark.x0, mark.x1, mark.y0, mark.y1)
            ]
            assert len(painted["rects"]) == len(expected)
            for one, other in zip(painted["rects"], expected):
                assert one == pytest.approx(other, abs=0.02)
            plain = mark.pattern == "plain"
            assert (
                painted["fill"] == colour(mark, theme)
                if plain
                else painted["fill"].startswith("url(")
            )
        elif isinstance(mark, Dots):
            assert len(painted["paths"]) == len(mark.x)
            for path, at, height in zip(painted["paths"], mark.x, mark.y):
                across = [float(part.split(",")[0]) for part in re.findall(r"[ML]([-\d.,]+)", path)]
                if mark.symbol in ("circle", "ring"):
                    across.append(across[0] + 2 * mark.radius)
                assert (min(across) + max(across)) / 2 == pytest.approx(x(at), abs=0.02)
                assert y(height) == pytest.approx(
                    float(re.match(r"M[-\d.]+,([-\d.]+)", path)[1]), abs=mark.radius + 0.02
                )
        elif painted["kind"] in ("line", "area", "rule"):
            assert len(painted["paths"]) == 1
    assert set(drawn["labels"]) <= allowed

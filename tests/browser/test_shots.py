"""SHOTS=folder keeps a picture of every page and every explorer of the site, at both sizes, in both
themes and both languages, for a reader to look at. The recorded pictures are enough for that."""

import os
from contextlib import closing
from itertools import product
from pathlib import Path

import pytest

from tests.support.browser import PAGES, PAINT_S, chromium_page, needs_chromium, needs_node

SIZES = [(1366, 768), (1920, 1080)]
# those in view; a picture of the other language is not shown, and never loaded
PICTURES = """() => [...document.images].every((each) =>
    each.complete || !each.getClientRects().length || each.getBoundingClientRect().top > innerHeight)"""
LESSON = "lessons/04_collectives_and_dp"
pytestmark = [
    needs_node,
    needs_chromium,
    pytest.mark.skipif(
        "SHOTS" not in os.environ,
        reason="screenshots of every page are kept in SHOTS=folder, where it is set",
    ),
]


@pytest.fixture(scope="module")
def browser():
    with chromium_page() as page:
        yield page.context.browser


@pytest.mark.parametrize("path", [*PAGES, LESSON])
def test_a_page_is_kept_at_both_sizes_in_both_themes_and_languages(browser, address, path):
    folder = Path(os.environ["SHOTS"])
    folder.mkdir(parents=True, exist_ok=True)
    for size, theme, tongue in product(SIZES, ("light", "dark"), ("en", "zh")):
        viewport = dict(zip(("width", "height"), size))
        with closing(browser.new_context(viewport=viewport)) as context:
            chosen = {"tongue": tongue, "theme": theme}
            for name, value in chosen.items():
                context.add_init_script(f"localStorage.setItem('simlab-{name}', '{value}')")
            context.route(
                "**/worker.js", lambda route: route.fulfill(body="", content_type="text/javascript")
            )
            page, complaints = context.new_page(), []
            page.on("pageerror", lambda error, found=complaints: found.append(str(error)))
            page.goto(f"{address}{path}.html")
            page.wait_for_function("tongue => document.documentElement.lang === tongue", arg=tongue)
            painted = {"index": "canvas[data-step-s]", "explorers": "[data-answers]"}
            first = path if "/" not in path else path.split("/")[0]
            if first in painted and path != "explorers/index":
                page.wait_for_selector(painted[first], timeout=PAINT_S * 1e3)
            name = f"{path.replace('/', '-')}-{size[0]}-{theme}-{tongue}.png"
            page.wait_for_function(PICTURES)
            page.screenshot(path=folder / name)
            assert complaints == []

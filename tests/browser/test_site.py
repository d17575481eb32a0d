"""The page from a plain file server: live without a network, as CPython computes it, and readable at
both sizes, in both themes and languages."""

import gzip
import json
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import random_steps

from simlab.schedules import SCHEDULES
from simlab.studies.pipeline import PipelineCase
from simlab.views import page as page_module
from tests.support.browser import (
    ROOT,
    WEB,
    assert_texts_stand_apart,
    chromium_page,
    corner,
    needs_chromium,
    needs_node,
    watched,
)
from tests.support.patience import PATIENCE_S

pytestmark = [needs_node, needs_chromium]
LIVE_S = PATIENCE_S  # Pyodide starts in 4 s on a quiet machine
LIVE = "() => document.querySelector('#timeline').dataset.live === 'true'"
GO = "hash => { location.hash = hash; }"
SET = "([id, value]) => { const e = document.getElementById(id); e.value = value; e.oninput(); }"
ON_ONE_SCREEN = (
    "() => document.querySelector('#timeline').getBoundingClientRect().bottom <= innerHeight"
)
# of the page's texts that one sees: [text, left, top, right, bottom]
TEXTS = """() => [...document.querySelectorAll('nav *, header *, .lead, .controls *, .results *')]
    .filter((e) => [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && e.tagName !== 'OPTION')
    .map((e) => {
        const range = document.createRange();
        range.selectNodeContents(e);
        const { left, top, right, bottom } = range.getBoundingClientRect();
        return [e.textContent, left, top, right, bottom];
    }).filter(([, left, , right]) => right > left)"""


def test_the_first_visit_loads_less_than_6_mb_and_the_page_of_docs_says_how_much(site):
    paths = [path for part in (site, site / "python") for path in part.glob("*.*")]
    sizes = [len(gzip.compress(path.read_bytes())) for path in paths]
    assert sum(sizes) < 6e6
    said = re.search(r"loads ([\d.]+) MB in all", (ROOT / "docs" / "web.md").read_text())[1]
    assert float(said) == pytest.approx(sum(sizes) / 1e6, abs=0.06)  # it is rounded to a tenth


@pytest.mark.parametrize("folder", ["lessons", "jupyterlite"])
def test_the_page_of_docs_says_how_large_the_parts_are_that_load_only_when_opened(site, folder):
    size = sum(path.stat().st_size for path in (site / folder).rglob("*") if path.is_file())
    rows = (ROOT / "docs" / "web.md").read_text().splitlines()
    (row,) = (row for row in rows if row.startswith(f"| `{folder}/` |"))
    said = float(re.search(r"([\d.]+) MB in all", row)[1])
    assert said == pytest.approx(size / 1e6, rel=0.05)


@pytest.fixture(scope="module")
def opened(address):
    """(the page once it is live, [addresses it asked for], [what it complained of])."""
    with chromium_page() as page:
        page.set_viewport_size({"width": 1366, "height": 768})
        asked, complaints = watched(page)
        page.goto(address)
        page.wait_for_selector("canvas[data-step-s]", timeout=LIVE_S * 1e3)
        assert not page.evaluate(LIVE)  # the recorded picture is there before Python is
        page.wait_for_function(LIVE, timeout=LIVE_S * 1e3)
        yield page, asked, complaints


@pytest.fixture
def page(opened, address):
    """The live page as one finds it, at 1366 x 768."""
    page, _, _ = opened
    page.set_viewport_size({"width": 1366, "height": 768})
    # a change of the language paints what was there once more, so these wait for the step itself
    with changing(page, "data-step-s"):
        start = json.loads((WEB / "site" / "start.json").read_text())
        page.evaluate(GO, hash_of(start | {"link_ms": 9.5}, "en"))
    with changing(page, "data-step-s"):
        page.evaluate(GO, hash_of(start, "en"))
    page.select_option("#theme", "light")
    return page


def hash_of(start, tongue):
    first, second = start["schedules"]
    numbers = zip("pmvfbl", (start[name] for name in page_module.NUMBERS))
    return f"a={first}&b2={second}&lang={tongue}&" + "&".join(f"{k}={v}" for k, v in numbers)


@contextmanager
def changing(page, what="data-painted"):
    """What is done within gives another picture: returns when it is painted. what: the attribute of
    the picture that changes; "data-step-s" where an earlier change may be painted once more."""
    seen = page.locator("canvas").get_attribute(what)
    yield
    page.wait_for_function(
        "([what, seen]) => document.querySelector('canvas').getAttribute(what) !== seen",
        arg=[what, seen],
        timeout=LIVE_S * 1e3,
    )


def step_s(page):
    return float(page.locator("canvas").get_attribute("data-step-s"))


def expected(schedule, **change):
    start = json.loads((WEB / "site" / "start.json").read_text()) | change
    chunks = start["chunks"] if SCHEDULES[schedule].chunked else None
    return PipelineCase(
        schedule=schedule, stages=start["stages"], microbatches=start["microbatches"], chunks=chunks,
        forward_s=start["forward_ms"] * 1e-3, backward_s=start["backward_ms"] * 1e-3, link_s=start["link_ms"] * 1e-3,
    ).trace()  # fmt: skip


def test_it_is_live_without_a_complaint_and_asks_for_nothing_elsewhere(opened, address):
    page, asked, complaints = opened
    assert complaints == []
    assert all(url.startswith((address, "data:", "blob:")) for url in asked)
    assert len(asked) < 20 and page.locator("#status").inner_text() == "Live"
    assert step_s(page) == expected("1f1b").step_s


@pytest.mark.parametrize(
    ("slider", "field", "value"),
    [("stages", "stages", 7), ("microbatches", "microbatches", 31), ("link_ms", "link_ms", 2.5)],
)
def test_a_slider_repaints_what_cpython_simulates(page, slider, field, value):
    before = page.locator("canvas").screenshot()
    with changing(page):
        page.evaluate(SET, [slider, str(value)])
    trace = expected("1f1b", **{field: value})
    assert step_s(page) == trace.step_s
    assert page.locator("canvas").screenshot() != before
    figures = page.locator("#figures tr").first.inner_text().split("\t")
    assert figures[:2] == ["1f1b", f"{trace.step_s * 1e3:.1f} ms"]


def test_the_address_restores_what_is_shown_and_what_cannot_be_is_said(page):
    with changing(page):
        page.select_option("#first", "interleaved-1f1b")
    with changing(page):
        page.evaluate(SET, ["chunks", "4"])
    assert step_s(page) == expected("interleaved-1f1b", chunks=4).step_s
    assert "a=interleaved-1f1b" in page.url and "v=4" in page.url
    with changing(page):
        page.select_option("#second", "dualpipe")
    with changing(page):
        page.evaluate(SET, ["stages", "3"])
    assert "dualpipe on 3 ranks" in page.locator("#refused").inner_text()
    page.click("#tongue")
    assert page.locator("#refused").inner_text().startswith("无法执行：3 个 rank、")


@pytest.mark.parametrize("size", [(1366, 768), (1920, 1080)], ids=str)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_both_schedules_are_on_one_screen_and_no_text_is_over_another(page, size, theme, tongue):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.select_option("#theme", theme)
    if tongue == "zh":
        with changing(page):
            page.click("#tongue")
    with changing(page, "data-step-s"):
        page.evaluate(SET, ["stages", "8"])
    canvas = page.locator("canvas")
    page.wait_for_function(ON_ONE_SCREEN)
    parts = assert_texts_stand_apart(canvas)
    assert len(parts["title"]) == 2 and len(parts["rows"]) == 16
    assert corner(canvas) == ([255, 255, 255] if theme == "light" else [17, 17, 17])
    texts = page.evaluate(TEXTS)
    assert len(texts) > 20
    for number, (text, left, top, right, bottom) in enumerate(texts):
        assert left >= 0 and right <= size[0], text
        for other, *box in texts[:number]:
            within = text in other or other in text  # one element inside the other
            apart = right <= box[0] or box[2] <= left or bottom <= box[1] + 1 or box[3] <= top + 1
            assert within or apart, (text, other)
    if "SHOTS" in os.environ:
        name = f"page-{size[0]}-{theme}-{tongue}.png"
        page.screenshot(path=Path(os.environ["SHOTS"]) / name)


@pytest.mark.parametrize("width", [390, 1366])
@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_nothing_is_wider_than_the_window(page, width, tongue):
    page.set_viewport_size({"width": width, "height": 844})
    if tongue == "zh":
        with changing(page):
            page.click("#tongue")
    assert page.evaluate("() => document.documentElement.scrollWidth") == width


def test_the_theme_and_the_language_are_kept_on_the_next_visit(page):
    page.select_option("#theme", "dark")
    page.click("#tongue")
    page.goto(page.url.split("#")[0])
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    page.wait_for_function("() => document.documentElement.lang === 'zh'")
    assert page.title() == "流水线调度，在你的浏览器里仿真"
    page.click("#tongue")
    page.wait_for_function(LIVE, timeout=LIVE_S * 1e3)


def test_every_control_has_a_name_and_the_page_is_used_with_the_keys(page):
    controls = "() => [...document.querySelectorAll('button, select, input, canvas')].filter((e) => !e.hidden && e.offsetParent)"
    named = f"() => ({controls})().map((e) => (e.labels?.[0]?.textContent ?? e.getAttribute('aria-label') ?? e.textContent).trim())"
    assert all(page.evaluate(named))
    page.locator("#stages").focus()
    with changing(page):
        page.keyboard.press("ArrowRight")
    assert step_s(page) == expected("1f1b", stages=5).step_s


def test_the_browsers_python_gives_cpythons_numbers_to_the_last_digit(site):
    arguments = 16, 170, 60, sys.version_info < (3, 12)  # see random_steps of `sum` before 3.12
    here = random_steps.steps(*arguments)
    code = Path(random_steps.__file__).read_text(encoding="utf-8")
    code += f"\nimport json\njson.dumps(steps{arguments})"
    command = ["node", WEB / "run_python.mjs", site, code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == here
    numbers = [step for step in here if step.replace(".", "").replace("e-", "").isdigit()]
    assert len(numbers) >= 200 and len({*numbers}) > 150

"""The timeline in a real browser: keys, locking, themes, sizes, and that no text is over another."""

from contextlib import contextmanager

import pytest

import simlab as sl
from simlab.studies.survey import rank_shares
from simlab.views.language import LANGUAGE
from tests.support.browser import (
    assert_texts_stand_apart,
    chromium_page,
    corner,
    needs_chromium,
    show_canvas,
)

pytestmark = needs_chromium
TIMES = sl.OpTimes(forward_s=0.02, backward_s=0.04, input_grad_s=0.02, weight_grad_s=0.02)
SIZES = [(1366, 768), (1920, 1080), (640, 480)]
SETTLED = """async () => {
    for (let frames = 0; frames < 5; frames++) await new Promise(requestAnimationFrame);
}"""
SET_STYLE = "arguments => document.body.style.setProperty(...arguments)"


def trace(name, stages=4, microbatches=8):
    program = sl.generate(name, stages, microbatches)
    times, memory = rank_shares(program, TIMES)
    return sl.simulate(program, times, link=sl.Link(latency_s=0.002), memory=memory)


@pytest.fixture(scope="module")
def browser_page():
    with chromium_page() as opened:
        yield opened


@pytest.fixture
def page(browser_page):
    browser_page.goto("data:text/html,<body></body>")
    browser_page.set_viewport_size({"width": 1366, "height": 768})
    return browser_page


def shown(page, *traces, **options):
    return show_canvas(page, sl.timeline(list(traces), renderer="canvas", **options))


def said(page):
    return page.locator(".simlab-tip").inner_text()


@contextmanager
def repainting(page):
    """What is done within makes the timeline paint anew: returns when it has. What it paints as an
    element that is new in the page is painted before."""
    page.evaluate(SETTLED)
    page.evaluate("() => { delete document.querySelector('canvas').dataset.range; }")
    yield
    page.wait_for_function("() => document.querySelector('canvas').dataset.range")


@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("names", [("1f1b", "zb-v"), ("interleaved-1f1b",), ("gpipe", "dualpipe")])
def test_no_text_is_over_another_and_all_are_inside_at_every_size(page, size, names):
    page.set_viewport_size({"width": size[0], "height": size[1]})
    canvas = shown(page, *(trace(name, 8, 16) for name in names), critical_path=True)
    parts = assert_texts_stand_apart(canvas)
    assert len(parts["title"]) == len(names) and len(parts["rows"]) == 8 * len(names)


def test_the_canvas_lies_on_whole_pixels_for_between_them_it_would_be_blurred(page):
    page.evaluate(SET_STYLE, ["padding-top", "0.3px"])
    canvas = shown(page, trace("1f1b", 3, 7))
    edges = "c => { const b = c.getBoundingClientRect(); return [b.left, b.top, b.height]; }"
    assert canvas.evaluate(edges) == pytest.approx([8, 8, canvas.evaluate("c => c.height")])


def test_the_legend_lists_what_is_drawn_and_nothing_else(page):
    legend = assert_texts_stand_apart(shown(page, trace("1f1b")))["legend"]
    assert legend == ["F forward", "B backward", "idle"]
    page.reload()
    legend = assert_texts_stand_apart(shown(page, trace("gpipe"), trace("zb-v")))["legend"]
    kinds = ["F forward", "B backward", "I input gradient", "W weight gradient"]
    assert legend == [*kinds, "shades: chunks 0, 1", "idle"]
    page.reload()
    legend = assert_texts_stand_apart(shown(page, trace("gpipe", 1, 2), critical_path=True))
    assert legend["legend"] == [
        "F forward",
        "B backward",
        "critical path",
    ]  # one rank is never idle


def test_the_arrow_keys_go_from_op_to_op_and_escape_leaves_them(page):
    run = trace("1f1b")
    canvas = shown(page, run)
    canvas.focus()
    names = []
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp"):
        page.keyboard.press(key)
        names.append(said(page).split(":")[0])
    assert names == ["0F0", "0F1", "1F0", "1F0", "0F1"]
    assert page.locator(".simlab-tip").get_attribute("role") == "status"
    page.keyboard.press("Escape")
    assert page.locator(".simlab-tip").is_hidden()


def test_a_click_locks_the_description_and_another_one_elsewhere_unlocks_it(page):
    run = trace("1f1b")
    canvas = shown(page, run)
    span = run.compute(3)[1]
    middle_s = (span.start_s + span.end_s) / 2
    page.mouse.click(*canvas.evaluate("(c, at) => c.place(0, 3, at)", middle_s))
    locked = said(page)
    assert locked.startswith(f"{span.op}: ")
    page.mouse.move(*canvas.evaluate("c => c.place(0, 0, 0.01)"))
    assert said(page) == locked
    page.mouse.click(*canvas.evaluate("(c, at) => c.place(0, 0, at)", run.step_s))
    assert not said(page).startswith(span.op)


def test_an_op_says_what_it_waited_for(page):
    run = sl.simulate(sl.generate("1f1b", 4, 8), TIMES, link=sl.Link(latency_s=0.1))
    canvas = shown(page, run)
    gap = next(gap for gap in sl.gaps(run) if gap.rank == 2 and gap.reason == "message")
    page.mouse.move(*canvas.evaluate("(c, at) => c.place(0, 2, at)", gap.end_s + 0.005))
    assert said(page).startswith(f"{gap.op}: ")
    assert f"waited for {gap.waited_for} of rank {gap.holder}, whose message" in said(page)


def test_a_change_of_theme_repaints_in_its_colours(page):
    canvas = shown(page, trace("zb-v"))
    assert corner(canvas) == [255, 255, 255]
    with repainting(page):
        page.evaluate(SET_STYLE, ["--jp-layout-color0", "rgb(17, 17, 17)"])
    assert corner(canvas) == [17, 17, 17]
    assert_texts_stand_apart(canvas)
    ink = LANGUAGE["themes"]["dark"]["ink"]
    found = "(c, [x, y, w, h]) => Array.from(c.getContext('2d').getImageData(x, y, w, h).data)"
    title = next(text for text in canvas.evaluate("c => c.texts()") if text["part"] == "title")
    box = [title["left"], title["top"], 40, 12]
    brightest = max(canvas.evaluate(found, box)[::4])
    assert brightest == pytest.approx(int(ink[1:3], 16), abs=24)


@pytest.mark.parametrize("width", [900, 1700])
def test_after_a_resize_the_picture_is_sharp_and_as_wide_as_its_place(page, width):
    canvas = shown(page, trace("1f1b"))
    with repainting(page):
        page.set_viewport_size({"width": width, "height": 700})
    drawn, wide = canvas.evaluate("c => [c.width, c.clientWidth]")
    assert drawn == wide and width - 40 < wide <= width
    assert_texts_stand_apart(canvas)


def test_the_element_has_the_steps_seconds_to_the_last_digit_once_they_are_painted(page):
    run = trace("zb-v", 3, 7)
    assert float(shown(page, run).get_attribute("data-step-s")) == run.step_s

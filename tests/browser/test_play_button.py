"""In a real browser: from a plan to the rounds of one collective of a layer, by pointer and by keys; and
Play, which goes through rounds, or uncovers what has time from its start to its end."""

from contextlib import closing

import pytest

from simlab.explorers import explorer
from tests.support.browser import PAINT_S, VISIBLE, needs_chromium, needs_node
from tests.support.chinese import english_words
from tests.support.drawn import CLASHES, DRAWN, FITTED, LAB, LIVE_S, SIZES, check, shown

pytestmark = needs_chromium
OP, NAME = "0F0", "layer 0 output reduce"
TIMED = ("pipeline", "plan", "ring", "buckets", "puzzle")
# the middle of the first box that a click opens, in the browser's window
OPENS = """() => {
    const box = document.querySelector('[data-key=op] rect[cursor=pointer]').getBoundingClientRect();
    return [box.left + box.width / 2, box.top + box.height / 2];
}"""
LEFTS = "() => [...document.querySelectorAll('.simlab-veil')].map((e) => e.getBoundingClientRect().left)"


def answers(page, count):
    page.wait_for_selector(f"[data-answers='{count}']", timeout=PAINT_S * 1e3)


def check_rounds(page, **values):
    """What is drawn of the plan is what Python says of it in the state with `values`."""
    found = explorer("plan")
    pictures = found.answer(found.start(zoom=OP, **values)).pictures
    assert [picture.key for picture in pictures] == ["op", "circle", "cells"]
    for chart in pictures:
        check(chart, page.locator(f'[data-key="{chart.key}"]').evaluate(DRAWN))


def test_a_click_on_a_collective_of_a_layer_shows_its_rounds_and_play_goes_through_them(browser):
    with shown(browser, "plan", zoom=OP) as (page, element):
        page.mouse.move(*page.evaluate(OPENS))
        assert "click: its rounds" in page.locator("[data-key=op] .simlab-tip").inner_text()
        page.mouse.down()
        page.mouse.up()
        answers(page, 2)
        first = page.locator("[data-control=collective] select").evaluate("e => e.value")
        check_rounds(page, collective=first)
        page.wait_for_function(FITTED)
        page.wait_for_timeout(250)
        assert element.bounding_box()["height"] <= LAB[SIZES[0]][1], "not on one screen"
        assert element.evaluate(CLASHES) == []
        page.locator(".simlab-buttons button").first.click()
        last = "() => document.querySelector('[data-control=round] output').textContent === '6'"
        page.wait_for_function(last, timeout=PAINT_S * 1e3)
        page.wait_for_selector("button[aria-pressed=false]", timeout=PAINT_S * 1e3)
        check_rounds(page, collective=first, round=6)
        assert element.bounding_box()["height"] <= LAB[SIZES[0]][1], "not on one screen"
        page.locator("[data-control=collective] select").select_option("none")
        page.wait_for_selector("[data-key=memory]", timeout=PAINT_S * 1e3)
        assert page.locator("[data-control=round]").is_hidden()


def test_the_keys_open_a_collective_too(browser):
    with shown(browser, "plan", zoom=OP, unit="layer 0") as (page, _):
        plot, tip = (page.locator(f"[data-key=op] .simlab-{part}") for part in ("plot", "tip"))
        plot.focus()
        page.keyboard.press("End")
        while NAME not in tip.inner_text():
            before = tip.inner_text()
            page.keyboard.press("ArrowLeft")
            assert tip.inner_text() != before
        page.keyboard.press("Enter")
        answers(page, 2)
        check_rounds(page, unit="layer 0", collective=NAME)


@pytest.mark.parametrize("kind", ["gather", "output reduce"])
def test_in_chinese_the_rounds_of_a_collective_have_no_english_word(browser, kind):
    chosen = {"zoom": OP, "zero": 3, "collective": f"layer 1 {kind}", "round": 1}
    with shown(browser, "plan", **chosen) as (page, _):
        page.locator(".simlab-buttons button").last.click()
        page.wait_for_function("() => document.querySelector('.simlab-explorer').lang === 'zh'")
        page.wait_for_timeout(150)
        assert page.locator("[data-key=cells] rect").count() > 0
        wrong = {text: words for text in page.evaluate(VISIBLE) if (words := english_words(text))}
        assert wrong == {}


@pytest.mark.parametrize("name", TIMED)
def test_play_uncovers_what_has_time_and_its_slider_goes_to_a_moment(browser, name):
    with shown(browser, name) as (page, element):
        play, slider = (
            page.locator(".simlab-buttons button").first,
            page.locator(".simlab-sweep input"),
        )
        assert play.inner_text() == "▶ Play" and slider.is_hidden() and page.evaluate(LEFTS) == []
        play.focus()
        page.keyboard.press("Enter")
        page.wait_for_function("() => document.querySelector('.simlab-veil')")
        before = page.evaluate(LEFTS)
        page.wait_for_function(
            f"before => ({LEFTS})()[0] > before + 10", arg=before[0], timeout=PAINT_S * 1e3
        )
        play.click()
        assert play.get_attribute("aria-pressed") == "false" and play.inner_text() == "▶ Play"
        paused = page.evaluate(LEFTS)
        assert element.evaluate(CLASHES) == []
        slider.press("ArrowRight")
        assert page.evaluate(LEFTS)[0] > paused[0] and page.locator("output").last.inner_text()
        slider.press("End")
        assert page.evaluate(LEFTS) == []


def test_play_ends_with_everything_uncovered(browser):
    with shown(browser, "pipeline") as (page, _):
        page.locator(".simlab-buttons button").first.click()
        page.wait_for_selector(".simlab-veil", timeout=PAINT_S * 1e3)
        page.wait_for_selector(".simlab-veil", state="detached", timeout=PAINT_S * 1e3)
        assert page.locator(".simlab-sweep").is_hidden()
        assert page.locator("button[aria-pressed=true]").count() == 0


def test_an_explorer_without_rounds_and_time_has_no_play(browser):
    with shown(browser, "zero_grid") as (page, _):
        assert page.locator(".simlab-buttons button").first.is_hidden()


@needs_node
def test_the_address_of_a_round_restores_it_on_the_page(browser, address):
    with closing(browser.new_page()) as page:
        page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
        page.goto(f"{address}explorers/plan.html#zoom={OP}&collective={NAME}&round=2")
        page.wait_for_selector("[data-key=cells] rect", timeout=LIVE_S * 1e3)
        check_rounds(page, collective=NAME, round=2)
        page.wait_for_timeout(250)
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


@needs_node
def test_the_first_page_plays_its_timeline(browser, address):
    with closing(browser.new_page()) as page:
        page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
        page.route(
            "**/worker.js", lambda route: route.fulfill(body="", content_type="text/javascript")
        )
        page.goto(f"{address}index.html")
        page.wait_for_selector("canvas[data-step-s]", timeout=PAINT_S * 1e3)
        page.click("#play")
        page.wait_for_selector(".simlab-veil", timeout=PAINT_S * 1e3)
        page.click("#play")
        assert len(page.evaluate(LEFTS)) == 2
        page.locator(".simlab-sweep input").press("End")
        assert page.evaluate(LEFTS) == []


@needs_node
@pytest.mark.parametrize("path", ["index", "explorers/pipeline", "explorers/buckets"])
def test_the_address_of_a_moment_restores_it(browser, address, path):
    """The slider is let go in the middle, and the address opened in another window."""
    found = []
    with closing(browser.new_context()) as context:
        context.route(
            "**/worker.js", lambda route: route.fulfill(body="", content_type="text/javascript")
        )
        first, second = context.new_page(), context.new_page()
        for page in (first, second):
            page.set_viewport_size({"width": SIZES[0][0], "height": SIZES[0][1]})
            page.goto(f"{address}{path}.html" if page is first else first.url)
            page.wait_for_selector("canvas[data-step-s], [data-answers]", timeout=PAINT_S * 1e3)
            if page is first:
                play = page.locator("#play, .simlab-buttons button").first
                play.click()
                page.wait_for_selector(".simlab-veil", timeout=PAINT_S * 1e3)
                play.click()
                page.locator(".simlab-sweep input").press("PageUp")
            page.wait_for_selector(".simlab-veil", timeout=PAINT_S * 1e3)
            page.wait_for_timeout(150)
            found.append((page.evaluate(LEFTS), page.locator(".simlab-sweep output").inner_text()))
        assert (
            "moment=0." in first.url
            and found[0][0] == found[1][0] != []
            and found[0][1] == found[1][1]
        )
        first.locator(".simlab-sweep input").press("End")
        assert "moment" not in first.url

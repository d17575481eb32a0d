"""Every explorer in a real browser: what is drawn is what Python says, no text is over another, at two
sizes, in both themes and languages, after a resize; sliders and keys move it."""

import re
from contextlib import closing

import pytest

from simlab.explorers import NAMES, explorer
from simlab.views.chart import Chart
from simlab.views.language import said
from tests.support.browser import (
    BUNDLE,
    PAINT_S,
    SHOW_EXPLORER,
    needs_chromium,
    needs_node,
)
from tests.support.chinese import english_words
from tests.support.drawn import CLASHES, DRAWN, FITTED, LAB, LIVE_S, SIZES, check, shown

pytestmark = needs_chromium
DARK = "document.body.style.setProperty('--jp-layout-color0', 'rgb(17, 17, 17)')"
NARROW = (700, 900)
RECORD_NUMBERS = """() => {
    window.numbers = [];
    const write = CanvasRenderingContext2D.prototype.fillText;
    CanvasRenderingContext2D.prototype.fillText = function (text, ...at) {
        if (this.textBaseline === 'middle') window.numbers.push(text);
        write.call(this, text, ...at);
    };
}"""


@pytest.mark.parametrize("name", NAMES)
def test_what_is_drawn_is_what_python_says_on_one_screen_with_no_text_over_another(browser, name):
    found = explorer(name)
    with shown(browser, name) as (page, element):
        charts = [p for p in found.answer(found.start()).pictures if isinstance(p, Chart)]
        for chart in charts:
            check(chart, page.locator(f'[data-key="{chart.key}"]').evaluate(DRAWN))
        for size in SIZES:
            width, height = LAB[size]
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(FITTED)
            assert element.evaluate(CLASHES) == []
            assert element.bounding_box()["height"] <= height, "not on one screen"
        page.set_viewport_size({"width": NARROW[0], "height": NARROW[1]})
        page.wait_for_function(FITTED)
        assert element.evaluate(CLASHES) == []


@pytest.mark.parametrize("name", NAMES)
def test_in_the_dark_and_in_chinese_it_is_as_readable(browser, name):
    found = explorer(name)
    with shown(browser, name) as (page, element):
        page.evaluate(DARK)
        page.locator(".simlab-buttons button").last.click()
        page.wait_for_timeout(150)
        assert element.evaluate(CLASHES) == []
        assert element.evaluate("e => getComputedStyle(e).backgroundColor") == "rgb(17, 17, 17)"
        assert element.get_attribute("lang") == "zh"
        titles = [
            said(picture.title.zh, "zh")
            for picture in found.answer(found.start()).pictures
            if isinstance(picture, Chart)
        ]
        assert page.locator("figcaption").all_inner_texts() == titles
        labels = [control.label.zh for control in found.controls if control.shown]
        assert page.locator(".simlab-control label").all_inner_texts() == labels


@pytest.mark.parametrize("name", NAMES)
def test_a_key_moves_a_control_and_the_pictures_follow(browser, name):
    found = explorer(name)
    with shown(browser, name) as (page, _):
        state = found.start()
        slider = page.locator("[data-control] input[type=range]:not([disabled])").first
        if slider.count() == 0:
            pytest.skip("it has menus only")
        control = slider.evaluate("e => e.closest('[data-control]').dataset.control")
        values = next(each.values for each in found.controls if each.name == control)
        at = list(values).index(state[control])
        step = 1 if at + 1 < len(values) else -1
        slider.press("ArrowRight" if step > 0 else "ArrowLeft")
        page.wait_for_selector("[data-answers='2']", timeout=PAINT_S * 1e3)
        answer = found.answer(state | {control: values[at + step]})
        for chart in (picture for picture in answer.pictures if isinstance(picture, Chart)):
            check(chart, page.locator(f'[data-key="{chart.key}"]').evaluate(DRAWN))


def test_two_explorers_of_one_notebook_do_not_share_an_id(browser):
    """Each loads the front end anew. An id that both have cuts and colours one as the other, and a
    label names the other's control."""
    with shown(browser, "collectives") as (page, _):
        found = explorer("collectives")
        source = (BUNDLE / "explorer.js").read_text(encoding="utf-8")
        page.evaluate(SHOW_EXPLORER, [source, found.to_dict(), found.start(ranks=8)])
        both = "() => document.querySelectorAll('.simlab-explorer[data-answers]').length === 2"
        page.wait_for_function(both, timeout=PAINT_S * 1e3)
        ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map((e) => e.id)")
        assert len(ids) == len({*ids}) > 10


@pytest.mark.parametrize("name", ["collectives", "causal_mask", "plan", "buckets"])
def test_pictures_that_get_room_stand_beside_each_other_again(browser, name):
    """JupyterLab opens a notebook beside its list of files, which the learner then closes."""
    with shown(browser, name, size=(860, 640)) as (page, element):
        width, height = LAB[SIZES[0]]
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(FITTED)
        page.wait_for_timeout(250)
        assert element.bounding_box()["height"] <= height


def test_the_keys_go_from_item_to_item_and_say_what_each_is(browser):
    with shown(browser, "collectives", step=1) as (page, _):
        plot = page.locator("[data-key=cells] .simlab-plot")
        plot.focus()
        page.keyboard.press("ArrowRight")
        tip = page.locator("[data-key=cells] .simlab-tip")
        first = tip.inner_text()
        assert first.startswith("rank ") and tip.get_attribute("role") == "status"
        page.keyboard.press("ArrowRight")
        assert tip.inner_text() != first
        page.keyboard.press("Escape")
        assert tip.is_hidden()


def test_every_kernel_of_a_layer_is_named_and_every_cell_of_16_ranks_is_numbered(browser):
    with shown(browser, "plan", size=SIZES[1], zoom="0F0") as (page, _):
        labels = page.locator("[data-key=op] text[data-part=label]").all_text_contents()
        assert labels.count("QKV…") == labels.count("MLP") == 10
    with shown(browser, "collectives", ranks=16, algorithm="halving-doubling", step=3) as (page, _):
        numbers = page.locator("[data-key=cells] text[data-part=label]").all_text_contents()
        assert sorted(numbers) == sorted([*"1" * 128, *"2" * 64, *"4" * 32, *"8" * 32])


def test_every_op_of_a_plan_is_numbered_in_the_width_of_a_notebook(browser):
    """Two digits are too wide for its forwards in the size that the backwards have."""
    with shown(browser, "plan") as (page, _):
        page.evaluate(RECORD_NUMBERS)
        page.set_viewport_size({"width": LAB[SIZES[0]][0] - 2, "height": 640})
        page.wait_for_function("() => window.numbers.length")
        assert page.evaluate("() => window.numbers.length") == 4 * 16 * 2


def test_plots_beside_each_other_lie_at_one_height_also_where_one_legend_has_two_lines(browser):
    with shown(browser, "buckets") as (page, _):
        page.set_viewport_size({"width": 1150, "height": 640})
        page.wait_for_function(FITTED)
        page.wait_for_timeout(250)
        lines = page.evaluate(
            "() => [...document.querySelectorAll('.simlab-legend')].slice(0, 2)"
            ".map((e) => new Set([...e.children].map((each) => each.offsetTop)).size)"
        )
        assert lines == [2, 1]
        tops = page.evaluate(
            "() => [...document.querySelectorAll('.simlab-plot')].slice(0, 2)"
            ".map((e) => e.getBoundingClientRect().top)"
        )
        assert tops[0] == tops[1]


def test_the_label_of_a_peak_lies_on_no_area(browser):
    with shown(browser, "memory") as (page, _):
        text, areas = page.locator("[data-key=step]").evaluate(
            """figure => [
                figure.querySelector('text[data-part=label]').getBoundingClientRect().bottom,
                [...figure.querySelectorAll('g[data-mark=area]')].map((g) => g.getBoundingClientRect().top),
            ]"""
        )
        assert text <= min(areas) + 1


def test_what_the_pointer_says_of_a_plan_in_chinese_has_no_english_word(browser):
    with shown(browser, "plan") as (page, _):
        page.locator(".simlab-buttons button").last.click()
        page.wait_for_timeout(150)
        canvas, tip = page.locator("canvas"), page.locator("[data-picture=timeline] .simlab-tip")
        for place in [(0, 2, 0.9), (0, 0, 0.3), (0, 1, 2.2)]:  # an op, a wait, the end
            page.mouse.move(*canvas.evaluate("(e, place) => e.place(...place)", place))
            assert "stage" in tip.inner_text() and english_words(tip.inner_text()) == []
        box = canvas.bounding_box()
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 50)
        assert "持有的 micro-batch" in tip.inner_text() and english_words(tip.inner_text()) == []


def test_hover_says_what_lies_there_and_a_click_locks_it(browser):
    with shown(browser, "memory") as (page, _):
        box = page.locator("[data-key=step] .simlab-plot").bounding_box()
        tip = page.locator("[data-key=step] .simlab-tip")
        page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] - 50)
        assert re.search(r": [\d.,]+ GiB", tip.inner_text())
        page.mouse.down()
        page.mouse.up()
        locked = tip.inner_text()
        page.mouse.move(box["x"] + 200, box["y"] + box["height"] - 50)
        assert tip.inner_text() == locked


def test_a_control_that_changes_nothing_is_disabled_and_says_why(browser):
    with shown(browser, "pipeline") as (page, _):
        chunks = page.locator("[data-control=chunks]")
        assert chunks.locator("input").is_disabled()
        assert "Neither schedule" in chunks.get_attribute("title")
        page.locator("[data-control=second] select").select_option("interleaved-1f1b")
        page.wait_for_selector("[data-control=chunks] input:enabled", timeout=PAINT_S * 1e3)
        assert chunks.get_attribute("title") == ""


# the puzzle's two rows are as high as rows get
@pytest.mark.parametrize("name", [name for name in NAMES if name != "puzzle"])
def test_the_pictures_grow_with_the_height_of_the_window(browser, name):
    """With 1080 px they end in the lowest third of the window, with 2 px more they do not jump."""
    with shown(browser, name) as (page, element):
        heights = []
        for height in (640, 950):
            page.set_viewport_size({"width": 1740, "height": height})
            page.wait_for_timeout(250)
            heights.append(element.locator(".simlab-main").bounding_box()["height"])
        assert heights[1] > heights[0]
        assert 2 / 3 * 950 < heights[1] <= 950


def test_every_rank_and_every_slice_of_a_large_group_is_labelled(browser):
    with shown(browser, "zero_grid", ranks=16, group=16, zero=3) as (page, _):
        ticks = page.locator("[data-key=grid] text[data-part=y-tick]").all_text_contents()
        assert sorted(ticks) == sorted(f"rank {rank}" for rank in range(16))
        labels = page.locator("[data-key=grid] text[data-part=label]").all_text_contents()
        # of the optimizer states; slices of parameters and gradients are narrower than numbers
        assert {*labels} == {str(number) for number in range(16)}
    width, height = LAB[SIZES[0]]
    with shown(browser, "zero_grid", ranks=16, group=4, zero=3) as (page, element):
        page.set_viewport_size({"width": width, "height": height})
        page.wait_for_function(FITTED)
        assert element.bounding_box()["height"] <= height, "not on one screen"
        assert element.evaluate(CLASHES) == []


def test_lines_can_be_seen_in_the_dark(browser):
    """WCAG 2.2 asks of graphics a contrast of 3; thin lines have 4.5 here, as texts have."""
    with shown(browser, "collectives") as (page, _):
        page.evaluate(DARK)
        page.wait_for_timeout(150)
        strokes = "[data-key=time] g[data-mark=line] path"
        colours = page.locator(strokes).evaluate_all(
            "all => all.map((e) => e.getAttribute('stroke'))"
        )
        assert len(colours) == 3
        assert all(contrast(each, "#111111") >= 4.5 for each in colours)


def contrast(one, other):
    """The contrast of two colours by WCAG 2.2."""
    lighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def luminance(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    bent = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * bent[0] + 0.7152 * bent[1] + 0.0722 * bent[2]


def test_play_goes_through_the_rounds_and_stops_at_the_last(browser):
    with shown(browser, "collectives", ranks=2, step=0) as (page, _):
        play = page.locator(".simlab-buttons button").first
        play.click()
        assert play.get_attribute("aria-pressed") == "true"
        last = "() => document.querySelector('[data-control=step] output').textContent === '2'"
        page.wait_for_function(last, timeout=PAINT_S * 1e3)
        page.wait_for_selector("button[aria-pressed=false]", timeout=PAINT_S * 1e3)


def test_a_control_that_moves_twice_before_an_answer_comes_ends_with_the_pictures_of_its_place(
    browser,
):
    # the round is beyond the last one of 15 ranks, and further beyond that of 4
    with shown(browser, "collectives", ranks=16, step=30) as (page, _):
        move = """(slider, ranks) => ranks.forEach((count) => {
            slider.value = String(count - 2);
            slider.dispatchEvent(new Event('input'));
        })"""
        page.locator("[data-control=ranks] input").evaluate(move, [15, 4])
        four = "document.querySelectorAll('[data-key=circle] [data-mark=dots] path').length === 4"
        page.wait_for_function(four, timeout=PAINT_S * 1e3)
        answer = explorer("collectives").answer(explorer("collectives").start(ranks=4, step=6))
        for chart in answer.pictures:
            check(chart, page.locator(f'[data-key="{chart.key}"]').evaluate(DRAWN))


def test_what_is_refused_is_said_and_the_pictures_stay(browser):
    with shown(browser, "plan") as (page, _):
        before = page.locator("[data-key=step] svg").last.evaluate("e => e.outerHTML")
        page.locator("[data-control=tp] select").select_option("8")
        page.wait_for_selector("[data-refused=true]", timeout=PAINT_S * 1e3)
        assert "there are 32 GPUs" in page.locator(".simlab-refused").inner_text()
        assert page.locator("[data-key=step] svg").last.evaluate("e => e.outerHTML") == before
        page.get_by_role("button", name="中文").click()
        assert "而 GPU 有 32 块" in page.locator(".simlab-refused").inner_text()


def test_the_language_that_python_sets_is_followed_by_what_is_refused_too(browser):
    with shown(browser, "collectives", ranks=8) as (page, element):
        page.locator("[data-control=algorithm] select").select_option("halving-doubling")
        page.wait_for_selector("[data-answers='2']", timeout=PAINT_S * 1e3)
        page.locator("[data-control=ranks] input").press("ArrowLeft")
        page.wait_for_selector("[data-refused=true]", timeout=PAINT_S * 1e3)
        page.evaluate("put('tongue', 'zh')")
        assert element.get_attribute("lang") == "zh"
        refused = page.locator(".simlab-refused").inner_text()
        assert refused.startswith("7 个 rank 的 halving-doubling：")
        page.evaluate("put('tongue', 'en')")
        assert "halving-doubling on 7 ranks" in page.locator(".simlab-refused").inner_text()


def test_a_text_over_another_would_be_noticed(browser):
    with shown(browser, "memory") as (page, element):
        page.evaluate("document.querySelector('.simlab-legend').style.marginTop = '-12px'")
        assert element.evaluate(CLASHES) != []


@needs_node
def test_a_page_of_the_site_answers_by_itself_and_its_address_restores_the_state(browser, address):
    asked, complaints = [], []
    with closing(browser.new_page()) as page:
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.set_viewport_size({"width": 1366, "height": 768})
        page.goto(f"{address}explorers/collectives.html#ranks=8&step=3")
        page.wait_for_selector("#explorer[data-live=true]", timeout=LIVE_S * 1e3)
        element = page.locator(".simlab-explorer")
        page.wait_for_selector("[data-answers]", timeout=LIVE_S * 1e3)
        found = explorer("collectives")
        answer = found.answer(found.start(ranks=8, step=3))
        for chart in answer.pictures:
            check(chart, page.locator(f'[data-key="{chart.key}"]').evaluate(DRAWN))
        assert element.evaluate(CLASHES) == []
        assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        page.locator("[data-control=step] input").press("ArrowRight")
        page.wait_for_function("() => location.hash.includes('step=4')")
    assert not complaints and all(url.startswith((address, "data:", "blob:")) for url in asked)


@needs_node
def test_a_page_whose_python_does_not_start_says_why_and_goes_on_saying_it(browser, address):
    with closing(browser.new_page()) as page:
        page.route("**/python/*", lambda route: route.abort())
        page.goto(f"{address}explorers/collectives.html")
        page.wait_for_selector("#progress", state="hidden", timeout=LIVE_S * 1e3)
        for step in (1, 2):  # the second move is not left waiting for the first
            page.locator("[data-control=step] input").press("ArrowRight")
            page.wait_for_function("() => document.querySelector('.simlab-refused').textContent")
            assert f"step={1 + step}" in page.evaluate("location.hash")
            page.evaluate("document.querySelector('.simlab-refused').textContent = ''")


def test_ops_of_the_puzzle_are_dragged_and_moved_by_keys_and_judged_at_once(browser):
    with shown(browser, "puzzle", level=4) as (page, _):
        tiles = page.locator(".simlab-tiles").first.locator("button")
        verdict = page.locator(".simlab-said .simlab-note")
        order = ["F0", "I0", "W0", "F1"]
        assert tiles.all_inner_texts()[:4] == order and "28.0\xa0ms" in verdict.inner_text()
        moved, before = tiles.nth(3).bounding_box(), tiles.nth(1).bounding_box()
        page.mouse.move(moved["x"] + moved["width"] / 2, moved["y"] + 10)
        page.mouse.down()
        page.mouse.move(before["x"] + 4, before["y"] + 10, steps=8)
        page.mouse.up()
        page.wait_for_selector("[data-answers='2']", timeout=PAINT_S * 1e3)
        assert tiles.all_inner_texts()[:4] == ["F0", "F1", "I0", "W0"]
        assert "26.0\xa0ms" in verdict.inner_text()
        page.keyboard.press("ArrowLeft")  # from F1, which was dragged, to F0
        page.keyboard.press("Shift+ArrowRight")
        page.keyboard.press("Shift+ArrowRight")
        # the second move may overtake the answer to the first
        verdict.get_by_text("rank 0 stops at I0, which needs F0").wait_for(timeout=PAINT_S * 1e3)
        assert tiles.all_inner_texts()[:4] == ["F1", "I0", "F0", "W0"]
        assert page.locator("canvas").count() == 0
        assert "forward, microbatch 0, place 3 of 12" in tiles.nth(2).get_attribute("aria-label")
        page.keyboard.press("Shift+ArrowLeft")
        verdict.get_by_text("rank 0 stops at I0, which needs F0").wait_for(
            state="detached", timeout=PAINT_S * 1e3
        )
        page.wait_for_selector("canvas", timeout=PAINT_S * 1e3)
        page.locator("[data-control=level] select").select_option("1: fill the pipeline")
        page.wait_for_function(
            "() => document.querySelectorAll('.simlab-tiles').length === 2", timeout=PAINT_S * 1e3
        )
        assert tiles.all_inner_texts() == ["F0", "B0", "F1", "B1", "F2", "B2"]

"""The site in Chinese: no visible text has an English word that is not a name or a term of the field;
and the first Tab leads past the navigation."""

import re
from contextlib import closing

import pytest

from simlab.explorers import NAMES
from tests.support.browser import PAGES, PAINT_S, VISIBLE, chromium_page, needs_chromium, needs_node
from tests.support.chinese import CODE, english_words
from tests.support.chinese import LOANS as SHOWN

pytestmark = [needs_node, needs_chromium]
# what the questions and the page of notebooks say as the field does
CHINESE = re.compile("[\u4e00-\u9fff]")
HALVES = re.compile("^[a-z][^\u4e00-\u9fff\\n]* · [^·\\n]*[\u4e00-\u9fff]", re.IGNORECASE)
LOANS = {
    *("AFAB", "GPipe", "All-Reduce", "DP", "TP", "PP", "CP", "loss", "scaling", "RoPE"),
    *("DistributedDataParallel", "DataParallel", "Ring", "Attention", "Offload"),
    *("NVMe", "no", "sync", "MB", "make", "lab"),
}
CHOOSE_CHINESE = "localStorage.setItem('simlab-tongue', 'zh')"
OPEN = """() => [...document.querySelectorAll('article details')]
    .filter((each) => each.firstElementChild.textContent === '中文').map((each) => each.open)"""
WITHOUT_CODE = """all => all.map((element) => {
    const copy = element.cloneNode(true);
    copy.querySelectorAll(':not(pre) > code').forEach((each) => each.remove());
    return copy.textContent;
})"""


@pytest.fixture(scope="module")
def context():
    with chromium_page() as page, closing(page.context.browser.new_context()) as opened:
        opened.add_init_script(CHOOSE_CHINESE)
        # the recorded pictures are enough
        opened.route(
            "**/worker.js", lambda route: route.fulfill(body="", content_type="text/javascript")
        )
        yield opened


@pytest.mark.parametrize("path", PAGES)
def test_a_page_in_chinese_has_no_english_word(context, address, path):
    with closing(context.new_page()) as page:
        page.goto(f"{address}{path}.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        if path.split("/")[-1] in NAMES:
            page.wait_for_selector("[data-answers]", timeout=PAINT_S * 1e3)
        texts = {*page.evaluate(VISIBLE)}
        assert len(texts) > 8
        wrong = {text: words for text in texts if (words := english_words(text, LOANS))}
        assert wrong == {}


def test_a_lesson_in_chinese_has_chinese_titles_and_its_chinese_texts_unfolded(context, address):
    """The texts between them are in both languages, one after the other."""
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/04_collectives_and_dp.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        titles = page.locator("aside a, article h1, article h2").all_inner_texts()
        assert len(titles) > 15
        wrong = {text: words for text in titles if (words := english_words(text, LOANS))}
        assert wrong == {}
        assert "b03 · All-Reduce 内部是怎么跑的" in page.locator("aside").inner_text()
        folded = page.locator("article details", has=page.locator("summary", has_text="中文"))
        assert folded.count() > 8 and page.evaluate(OPEN) == [True] * folded.count()
        heads = page.locator("article th:visible")
        assert heads.all_inner_texts()[:2] == ["id", "问题"]
        page.click("#tongue")
        assert heads.all_inner_texts()[:2] == ["id", "question"]
        assert page.evaluate(OPEN) == [False] * folded.count()
        assert page.locator("h1").inner_text().startswith("Lesson 4: ")


@pytest.mark.parametrize("lesson", ["01_pipeline_bubbles", "04_collectives_and_dp"])
def test_of_a_lesson_in_chinese_the_english_texts_are_folded(context, address, lesson):
    """What stays is what has no Chinese beside it: code, outputs, tables with both languages."""
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/{lesson}.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        page.evaluate(
            "document.querySelectorAll('article details:not(.english)').forEach((e) => (e.open = true))"
        )
        texts = page.locator("article .text_cell_render :is(p, li):visible").all_inner_texts()
        assert len(texts) > 40
        english = [text for text in texts if len(text) > 40 and not CHINESE.search(text)]
        assert english == []
        folds = page.locator("article details.english")
        shown = "all => all.filter((e) => e.open).length"
        assert folds.count() > 20 and folds.evaluate_all(shown) == 0
        page.click("#tongue")
        assert folds.evaluate_all(shown) == folds.count()
        assert folds.first.locator("summary").is_hidden()


@pytest.mark.parametrize("lesson", ["03_memory_and_zero", "11_choosing_a_plan", "12_running_it"])
def test_tables_sentences_and_reports_of_a_lesson_are_in_the_language_of_the_page(
    context, address, lesson
):
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/{lesson}.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        shown = page.locator(".said:visible")
        assert shown.count() > 8
        texts = page.locator(".said:visible :is(td, th, p, pre)").evaluate_all(WITHOUT_CODE)
        lines = [CODE.sub("", line) for text in texts for line in text.split("\n")]
        wrong = {line: words for line in lines if (words := english_words(line, SHOWN))}
        assert wrong == {} and any(CHINESE.search(line) for line in lines)
        heads = page.locator("article :is(.simlab-compared th, summary, li, b):visible")
        assert not [text for text in heads.all_inner_texts() if HALVES.search(text)]
        count = shown.count()
        page.click("#tongue")
        texts = shown.all_inner_texts()
        assert len(texts) == count and not any(CHINESE.search(text) for text in texts)
        assert not [text for text in heads.all_inner_texts() if HALVES.search(text)]


def test_the_first_key_leads_past_the_navigation_to_the_first_control(context, address):
    with closing(context.new_page()) as page:
        page.goto(f"{address}explorers/memory.html")
        page.wait_for_selector("[data-answers]", timeout=PAINT_S * 1e3)
        page.keyboard.press("Tab")
        assert page.evaluate("document.activeElement.id") == "skip"
        assert page.locator("#skip").bounding_box()["y"] >= 0
        page.keyboard.press("Enter")
        control = "document.activeElement.closest('[data-control]')?.dataset.control"
        assert page.evaluate(control) == "model"

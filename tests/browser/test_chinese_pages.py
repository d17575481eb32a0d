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
# what a reader sees of a cell, from above to below
PARTS = """cell => [...cell.children].filter((each) => each.getClientRects().length).map((each) =>
    each.tagName === 'DETAILS' ? each.firstElementChild.textContent : each.tagName)"""
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


def test_a_lesson_in_chinese_has_chinese_titles(context, address):
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/04_collectives_and_dp.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        titles = page.locator("aside a, article h1, article h2").all_inner_texts()
        assert len(titles) > 15
        wrong = {text: words for text in titles if (words := english_words(text, LOANS))}
        assert wrong == {}
        assert "b03 · All-Reduce 内部是怎么跑的" in page.locator("aside").inner_text()
        heads = page.locator("article th:visible")
        assert heads.all_inner_texts()[:2] == ["编号", "问题"]
        page.click("#tongue")
        assert heads.all_inner_texts()[:2] == ["id", "question"]
        assert page.locator("h1").inner_text().startswith("Lesson 4: ")


@pytest.mark.parametrize(
    ("lesson", "cell", "english", "chinese"),
    [  # the table, the code, the formula and the list of a cell are for both
        ("01_pipeline_bubbles", "h1", "H1 P P TABLE P P P 中文", "H1 DIV TABLE English"),
        ("01_pipeline_bubbles", "h2", "H2 P P UL P P P DIV 中文", "H2 P DIV DIV English"),
        ("05_tensor_and_context", "p:has-text('Ring or all-to-all?')", "P P P P 中文", "DIV P P English"),
        ("07_data_parallel_for_real", "p:has-text('Even smaller gradients.')", "P P 中文", "DIV English"),
        ("08_inside_a_layer", ":is(h2:has-text('小结'), h2:has-text('What to rem'))", "H2 OL 中文", "H2 DIV English"),
    ],
)  # fmt: skip
def test_a_cell_begins_with_the_texts_of_the_pages_language_and_folds_the_others_behind_them(
    context, address, lesson, cell, english, chinese
):
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/{lesson}.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        found = page.locator(f".text_cell_render:has(> {cell})").first
        assert found.evaluate(PARTS) == chinese.split()
        assert CHINESE.search(found.locator("> div.only-zh").inner_text())
        page.click("#tongue")
        assert found.evaluate(PARTS) == english.split()
        assert not CHINESE.search(found.locator("> .only-en:not(details)").first.inner_text())


@pytest.mark.parametrize("lesson", ["01_pipeline_bubbles", "04_collectives_and_dp"])
def test_of_a_lesson_the_texts_of_the_other_language_are_folded(context, address, lesson):
    """What stays is what has no Chinese beside it: code, formulas, outputs, tables with both languages."""
    with closing(context.new_page()) as page:
        page.goto(f"{address}lessons/{lesson}.html")
        page.wait_for_function("() => document.documentElement.lang === 'zh'")
        page.evaluate(
            "document.querySelectorAll('article details:not([lang])').forEach((e) => (e.open = true))"
        )
        texts = page.locator(
            "article .text_cell_render :is(p, li):not(:has(> .katex-display)):visible"
        )
        chinese = texts.all_inner_texts()
        assert len(chinese) > 30
        assert [text for text in chinese if len(text) > 40 and not CHINESE.search(text)] == []
        folds = page.locator("article .text_cell_render > details[lang]:visible")
        assert folds.count() > 20
        assert {*folds.locator("summary").all_inner_texts()} == {"English"}
        page.click("#tongue")
        assert {*folds.locator("summary").all_inner_texts()} == {"中文"}
        shown = texts.all_inner_texts()  # a list with both languages in each line has English first
        assert [text for text in shown if CHINESE.search(text[:30])] == []


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

"""The pages of the questions: a phone asks, takes a prediction, and answers as the lessons do."""

import json
import re
import tomllib
from contextlib import closing
from pathlib import Path
from urllib.parse import parse_qsl, urldefrag

import pytest
from bs4 import BeautifulSoup

from simlab.explorers import explorer
from simlab.explorers.challenge import CHALLENGES
from simlab.lessons import book, progress, words
from simlab.lessons.prediction import Number, off_by
from tests.support.browser import ROOT, chromium_page, needs_chromium, needs_node, watched
from tests.support.patience import PATIENCE_S

pytestmark = [needs_node, needs_chromium]
ASKED = [*book.questions()]
LIVE = json.loads((ROOT / "web/site/pages/questions/live.json").read_text(encoding="utf-8"))
LIBRARIES = tomllib.loads((ROOT / "web/site/pages/questions/libraries.toml").read_text("utf-8"))
PHONE = {"width": 390, "height": 844}
WIDE = "() => document.documentElement.scrollWidth - innerWidth"


@pytest.fixture(scope="module")
def context(address):
    with chromium_page() as page:
        yield page.context.browser.new_context(viewport=PHONE, accept_downloads=True, locale="en")


@pytest.fixture
def page(context):
    """A page of a visitor who has done nothing yet, and [what it complained of]."""
    with closing(context.new_page()) as page:
        _, complaints = watched(page)
        yield page
        assert complaints == []
        page.evaluate("() => localStorage.clear()")


def asked_on(path):
    """What the page at `path` asks, as its script reads it."""
    found = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")
    return json.loads(found.select_one("#asked").string)


def test_every_question_has_a_page_with_its_words_and_the_value_that_its_lesson_found(site):
    pages = {path.stem: path for path in (site / "questions").glob("*.html")}
    assert {*pages} == {*ASKED, "index", "drill"}
    for name in ASKED:
        text = BeautifulSoup(pages[name].read_text(encoding="utf-8"), "html.parser")
        form, prediction = asked_on(pages[name]), book.prediction(name)
        assert [field["name"] for field in form["fields"]] == [*prediction.fields]
        for field, its in zip(form["fields"], prediction.fields.values()):
            assert isinstance(its, Number) == isinstance(field["found"], int | float)
            assert isinstance(its, Number) or field["found"] in its.options
        for tongue in words.LANGUAGES:
            shown = text.get_text() + " ".join(tag[f"data-{tongue}"] for tag in text.select("h1 *"))
            for key in ("headline", "spoken", "wrong", "refuted", "title"):
                first = re.split(r"[`*]", words.word(f"{name}.{key}", tongue=tongue))[0]
                assert " ".join(first.split()) in " ".join(shown.split()), (name, tongue, key)


def test_a_page_names_what_libraries_have_of_its_question_and_leads_to_the_file(site):
    for name in ASKED:
        page = (site / f"questions/{name}.html").read_text(encoding="utf-8")
        found = BeautifulSoup(page, "html.parser").select(".libraries dd")
        entries = LIBRARIES["questions"].get(name, [])
        assert len(found) == len(entries), name
        for shown, (place, names, *said) in zip(found, entries):
            assert [code.string for code in shown.select("code")] == names
            texts = shown.select("span")
            assert [text[key] for text in texts for key in ("data-en", "data-zh")] == said
            assert shown.small.get_text() == place
            links = [link["href"] for link in shown.select("a")]
            if "/" in place:
                _, repository, commit = LIBRARIES["read"][place.split("/")[0]]
                assert links == [f"https://github.com/{repository}/blob/{commit}/{place}"]
            else:
                assert links == []


@pytest.mark.parametrize("name", ["w06", "d07"])
def test_the_longest_names_of_libraries_break_on_a_phone(page, address, name):
    page.goto(f"{address}questions/{name}.html")
    page.click("#skip-prediction")
    page.click("#said")
    for _ in words.LANGUAGES:
        assert page.locator(".libraries").is_visible() and page.evaluate(WIDE) <= 0
        page.click("#tongue")


def test_a_value_that_a_page_compares_with_is_the_figure_that_the_cell_is_held_to(site):
    """b09's cell asserts both of its bubbles, w11's formula gives (p - 1) / (m + p - 1)."""
    found = [asked_on(site / f"questions/{name}.html")["fields"] for name in ("b09", "w11")]
    bubbles = book.figures()["b09"]
    assert [field["found"] for field in found[0]] == [its.value for its in bubbles.values()]
    assert found[1][0]["found"] == pytest.approx(100 * 7 / 15, abs=0.05)


def test_every_link_to_an_explorer_opens_a_state_that_it_has(site):
    assert {*LIVE} <= {*ASKED}
    for name, given in LIVE.items():
        path, state = urldefrag(given)
        assert (site / path).is_file(), name
        if path == "index.html":
            continue
        controls = {its["name"]: its for its in explorer(Path(path).stem).to_dict()["controls"]}
        for key, value in parse_qsl(state):
            offered = [json.dumps(its).strip('"') for its in controls[key]["values"]]
            assert value in offered, (name, key, value)


def test_an_entry_is_judged_as_in_a_lesson(page, address, monkeypatch):
    """The page's own reading of numbers gives the sentences that Python gives."""
    monkeypatch.setenv("SIMLAB_LANG", "en")
    page.goto(f"{address}questions/w11.html")
    (name, field), *_ = book.prediction("w11").fields.items()
    for text in ("", "many", "0.3", "1e400", "27,3", "1234,567", "0,125"):
        page.fill(f"input[name='{name}']", text)
        page.click("button[type=submit]")
        with pytest.raises(Exception) as said:
            book.prediction("w11").commit({name: text})
        assert page.inner_text("#wrong-entry") == str(said.value)
        assert page.locator("#found").is_hidden()
    found = float(page.evaluate("() => JSON.parse(asked.textContent).fields[0].found"))
    for text in ("46.7", "47 %", "40", "93.4", "1,234.5", "−3", "0", "5"):
        page.fill(f"input[name='{name}']", text)
        page.click("button[type=submit]")
        shown = page.locator("#rows td").all_inner_texts()
        assert shown[-1] == off_by(field.read(text), found), text
        assert page.locator("form .buttons").is_hidden()
        page.click("#again")


def test_a_question_is_asked_answered_said_and_ticked_on_a_phone(page, address, tmp_path):
    page.goto(f"{address}questions/index.html#b09")
    page.wait_for_url("**/questions/b09.html")
    assert page.locator("#found, #say, #told").filter(visible=True).count() == 0
    page.fill("input[name='1f1b']", "180")
    page.fill("input[name='zb-v']", "100")
    page.click("button[type=submit]")
    assert page.locator("#rows td").all_inner_texts()[2::3] == ["✓", "✗"]
    assert page.locator("#found").is_visible() and page.locator("#told").is_hidden()
    picture = page.locator("#found img:visible")
    assert picture.evaluate("(image) => image.decode().then(() => image.naturalWidth)") >= 700
    page.click("#start")
    page.wait_for_function("() => clock.textContent !== '0:00'")
    page.click("#said")
    assert page.locator("#told").is_visible()
    page.check(".points li:nth-child(2) input")
    assert page.evaluate(WIDE) <= 0
    page.click("#tongue")
    assert "气泡" in page.inner_text("#told") and page.evaluate(WIDE) <= 0
    page.click("#tongue")
    page.goto(f"{address}questions/index.html")
    assert page.inner_text("[data-id=b09] .mark") == "✓ 1/5"
    done = page.inner_text("#done")
    assert done.startswith(f"Questions predicted: 1 of {len(ASKED)}. Said aloud and ticked: 1. ")
    assert done.endswith(f"Challenges solved: 0 of {len(CHALLENGES)}.")
    with page.expect_download() as download:
        page.click("#export")
    kept = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert kept["points"] == {"b09": [1]} and {*kept} == {*progress.PARTS}
    assert kept["predictions"]["b09"]["values"] == {"1f1b": 180, "zb-v": 100}


def test_a_file_of_progress_goes_from_jupyterlab_to_the_page_and_back(
    page, address, tmp_path, monkeypatch
):
    file = tmp_path / "progress.json"
    monkeypatch.setenv("SIMLAB_PROGRESS", str(file))
    monkeypatch.setenv("SIMLAB_LANG", "en")
    book.prediction("w11").commit({next(iter(book.prediction("w11").fields)): "40"})
    progress.keep_try("w11", True)
    progress.keep("challenges", CHALLENGES[0].id, {"at_s": 1})
    page.goto(f"{address}questions/index.html")
    page.set_input_files("#import", file)
    page.wait_for_function(
        "() => document.querySelector('[data-id=w11] .mark').textContent === '✓'"
    )
    assert "Exercises solved: 1. Challenges solved: 1 of" in page.inner_text("#done")
    page.click("details summary")
    page.select_option("#mine", "done")
    assert page.locator("#list li:visible").count() == 1
    with page.expect_download() as download:
        page.click("#export")
    file.write_bytes(Path(download.value.path()).read_bytes())
    assert book.prediction("w11").committed() and progress.load()["exercises"]["w11"]["solved"]
    (tmp_path / "other.json").write_text("[1]")
    page.set_input_files("#import", tmp_path / "other.json")
    page.wait_for_function("() => moved.textContent.includes('no file of progress')")
    assert page.locator("#list li:visible").count() == 1  # nothing is lost


def test_questions_are_found_by_words_and_by_choices(page, address):
    page.goto(f"{address}questions/index.html")
    assert page.inner_text("#count") == f"{len(ASKED)} of {len(ASKED)} questions"
    page.fill("#search", "zigzag rotary")
    shown = page.locator("#list li:visible").evaluate_all("(all) => all.map((e) => e.dataset.id)")
    assert "b12" in shown and len(shown) < 6
    page.fill("#search", "")
    page.click("details summary")
    page.select_option("#verdict", "wrong")
    page.select_option("#lesson", "2")
    shown = page.locator("#list li:visible").evaluate_all("(all) => all.map((e) => e.dataset.id)")
    assert {"b07", "b08", "t3", "d05"} == {*shown}  # of lesson 1
    assert page.evaluate(WIDE) <= 0


def test_python_asks_and_judges_on_the_page_and_goes_on_after_a_reload(page, address):
    """A whiteboard case on a phone: a hint, an entry that is no number, an answer, the reload, Chinese."""
    ready = "#choice button[data-kind=board]:enabled"
    page.goto(f"{address}questions/drill.html")
    page.wait_for_selector(ready, timeout=PATIENCE_S * 1e3)
    assert page.locator("#go-on").is_hidden() and page.inner_text("#status") == "Live"
    page.click("[data-kind=board]")
    page.wait_for_selector("#asked:visible", timeout=PATIENCE_S * 1e3)
    page.click("#hint")
    assert len(page.inner_text("#hints")) > 10
    for entry in page.locator("#fields input").all():
        entry.fill("some")
    for menu in page.locator("#fields select").all():
        menu.select_option(index=1)
    page.click("#answer [type=submit]")
    answered = "() => document.querySelector('#wrong-entry').textContent || verdict.textContent"
    page.wait_for_function(answered, timeout=PATIENCE_S * 1e3)
    if page.locator("#fields input").count():
        assert page.inner_text("#wrong-entry").startswith("'some' is no number")
        for entry in page.locator("#fields input").all():
            entry.fill("0")
        page.click("#answer [type=submit]")
    page.wait_for_function("() => verdict.textContent", timeout=PATIENCE_S * 1e3)
    assert page.inner_text("#wrong-entry") == "" and page.evaluate(WIDE) <= 0
    page.reload()
    page.wait_for_selector(ready, timeout=PATIENCE_S * 1e3)
    page.click("#go-on")
    page.wait_for_selector("#asked:visible", timeout=PATIENCE_S * 1e3)
    assert ", part 2." in page.inner_text("#head")
    page.click("#tongue")
    page.wait_for_function("() => head.textContent.includes('题')", timeout=PATIENCE_S * 1e3)
    assert page.evaluate(WIDE) <= 0

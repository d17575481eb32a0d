"""The lessons as pages to read: whole, with their pictures, from files that lie beside them."""

import json
import os
import re
from functools import cache
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote, urldefrag, urljoin, urlparse

import numpy as np
import pytest
import yaml
from bs4 import BeautifulSoup
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from simlab.views.language import colours
from tests.support.browser import ROOT, chromium_page, needs_chromium, needs_node, watched

pytestmark = [needs_node, needs_chromium]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
# those of the page's language
SHOWN = "[...document.images].filter((e) => getComputedStyle(e.parentElement).display !== 'none')"
LOAD_ALL = f"""() => Promise.all({SHOWN}.map((image) => {{
    image.loading = 'eager';
    return image.decode().then(() => image.naturalWidth);
}}))"""
WIDE = "() => document.documentElement.scrollWidth - innerWidth"
# texts that a box without a scroll bar cuts off
CUT = """() => [...document.querySelectorAll('nav *, h1, h2, p, li, td, th')]
    .filter((e) => e.scrollWidth > e.clientWidth + 1 && getComputedStyle(e).overflowX !== 'visible')
    .map((e) => e.textContent)"""


@cache
def parsed(path):
    """An HTML file, which takes a second or two and which many links lead to."""
    return BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser")


def parts(path):
    """[(tag, attribute, address)] of what an HTML file links to or loads."""
    pairs = [(tag, name) for tag in parsed(path).find_all(True) for name in ("href", "src", "data")]
    return [(tag.name, name, tag[name]) for tag, name in pairs if tag.has_attr(name)]


@cache
def ids(path):
    """The places in an HTML file that a link may name."""
    return {tag["id"] for tag in parsed(path).find_all(id=True)}


def test_every_link_leads_to_a_file_of_the_site_and_to_a_place_in_it(site):
    pages = [site / "index.html", site / "notebooks/index.html", *site.glob("lessons/*.html")]
    pages += site.glob("questions/*.html")
    assert len(pages) == 2 + 1 + len(NOTEBOOKS) + 2 + 65
    for page in pages:
        for tag, _, given in parts(page):
            if given.startswith("data:"):
                continue
            if given.startswith("https://github.com/"):  # to read on; nothing is loaded from there
                assert tag == "a" and page.parent.name == "questions", (page.name, given)
                continue
            target, place = urldefrag(urljoin(page.as_uri(), given))
            path = Path(unquote(urlparse(target).path))
            assert path.is_file() and path.is_relative_to(site), (page.name, given)
            if (
                place and "=" not in place
            ):  # a state is held by the tests of explorers and questions
                # a browser looks for the name as it stands, then for what it means
                assert {place, unquote(place)} & ids(path), (page.name, given)


def test_scripts_and_styles_of_the_lessons_are_the_sites_own(site):
    for page in (site / "lessons").glob("*.html"):
        loaded = [given for tag, _, given in parts(page) if tag in ("script", "link", "img")]
        assert not [given for given in loaded if "//" in given]
        assert [given for given in loaded if given.endswith(".js")] == ["../site.js"]
    for style in [*site.glob("*.css"), *(site / "lessons").rglob("*.css")]:
        for given in re.findall(r"url\(([^)]*)\)", style.read_text()):
            assert given.endswith(".woff2") == (style.parent / given).is_file(), given


def test_the_chinese_of_a_question_stands_in_its_heading_alone(site):
    questions = yaml.safe_load((ROOT / "notebooks/questions.yml").read_text(encoding="utf-8"))
    titles, found = {each["title_zh"] for each in questions}, 0
    for notebook in NOTEBOOKS:
        page = parsed(site / f"lessons/{notebook.stem}.html")
        assert [bold.text for bold in page.select("p > strong") if bold.text in titles] == []
        found += sum(
            head["data-zh"].split(" · ")[-1] in titles for head in page.select("h2 [data-zh]")
        )
    assert found == len(titles)


def test_a_question_of_a_lesson_leads_to_where_it_asks_first_and_to_its_explorer(site):
    """A page to read shows everything at once; every link that there is leads somewhere (see above)."""
    live = json.loads((ROOT / "web/site/pages/questions/live.json").read_text(encoding="utf-8"))
    for each in yaml.safe_load((ROOT / "notebooks/questions.yml").read_text(encoding="utf-8")):
        page = parsed(site / "lessons" / each["notebook"].replace(".ipynb", ".html"))
        (head,) = (h2 for h2 in page.find_all("h2") if h2.text.startswith(f"{each['id']} · "))
        leads = [link["href"] for link in head.find_next_sibling("p", class_="leads").select("a")]
        name = each["id"]
        assert leads == [
            f"../questions/{name}.html",
            *([f"../{live[name]}"] if name in live else []),
        ]


def test_a_picture_of_a_lesson_leads_to_its_file(site):
    for notebook in NOTEBOOKS:
        for image in parsed(site / f"lessons/{notebook.stem}.html").select("article img"):
            assert image.parent.name == "a" and image.parent["href"] == image["src"]


def test_no_cell_of_a_page_only_shows_the_switch_that_the_page_has_itself(site):
    lesson = parsed(site / "lessons/04_collectives_and_dp.html")
    cells = [cell.text.strip() for cell in lesson.select(".code_cell .input")]
    assert len(cells) > 40 and not [cell for cell in cells if cell.endswith("tongue()")]
    # a cell with something else is there as it is
    first = parsed(site / "lessons/01_pipeline_bubbles.html").select_one(".code_cell .input")
    assert "def step(" in first.text and first.text.strip().endswith("tongue()")


@pytest.fixture(scope="module")
def browser(address):
    """(a page, [addresses it asked for], [what it complained of])."""
    with chromium_page() as page:
        page.set_viewport_size({"width": 1366, "height": 768})
        yield page, *watched(page)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_has_its_title_and_every_picture(browser, address, notebook):
    page, asked, complaints = browser
    page.goto(f"{address}lessons/{notebook.stem}.html")
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    title = "".join(cells[0]["source"]).split("\n")[0].removeprefix("# ")
    assert page.locator("h1").inner_text().removesuffix("¶") == title.split(" · ")[0]
    assert page.title() == title.split(" · ")[0]
    outputs = [output for cell in cells for output in cell.get("outputs", ())]
    pictures = [output for output in outputs if "image/png" in output.get("data", {})]
    widths = page.evaluate(LOAD_ALL)
    assert len(widths) == len(pictures) and min(widths) >= 700
    names = page.evaluate(f"() => {SHOWN}.map((image) => image.alt)")
    assert all(name.startswith("Picture: ") for name in names)
    formulas = [cell for cell in cells if "$$" in "".join(cell["source"])]
    assert page.locator("article").inner_text().count("$$") == 0
    assert page.locator(".katex-display math").count() >= len(formulas)
    assert page.evaluate(WIDE) <= 0 and page.evaluate(CUT) == []
    assert complaints == [] and all(url.startswith((address, "data:")) for url in asked)


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_lesson_in_chinese_has_pictures_with_chinese_texts(browser, address, notebook):
    page, _, complaints = browser
    page.goto(f"{address}lessons/{notebook.stem}.html")
    in_english = page.evaluate(LOAD_ALL)
    page.click("#tongue")
    assert page.evaluate("() => document.documentElement.lang") == "zh"
    assert len(page.evaluate(LOAD_ALL)) == len(in_english)
    shown = page.evaluate(f"() => {SHOWN}.map((image) => [image.src, image.alt])")
    for source, name in shown:
        assert source.endswith(".zh.png") and name.startswith("图：")
    page.click("#tongue")
    assert complaints == []


@pytest.mark.parametrize("path", ["index", "01_pipeline_bubbles"])
@pytest.mark.parametrize(("system", "theme"), [("light", "dark"), ("dark", "")])
def test_a_recorded_picture_has_its_colours_in_the_dark_theme(
    browser, address, path, system, theme
):
    """A forward is blue, a backward orange, and what lies around them is light."""
    page, _, _ = browser
    page.emulate_media(color_scheme=system)
    page.goto(f"{address}lessons/{path}.html")
    page.select_option("#theme", theme)
    page.evaluate(LOAD_ALL)
    picture = page.locator("img:visible").nth(1 if path == "index" else 0)
    shown = imread(BytesIO(picture.screenshot()))[..., :3]
    page.emulate_media(color_scheme="light")
    page.select_option("#theme", "light")
    for kind in "FB":
        assert np.isclose(shown, to_rgb(colours("work")[kind]), atol=0.01).all(-1).mean() > 0.02
    assert (shown[4:-4, 4:8] > 0.9).all()


@pytest.mark.parametrize("size", [(1366, 768), (1920, 1080)], ids=str)
@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_the_index_leads_to_all_lessons_in_both_languages(browser, address, size, theme, tongue):
    page, _, complaints = browser
    page.set_viewport_size({"width": size[0], "height": size[1]})
    page.goto(f"{address}lessons/index.html")
    page.select_option("#theme", theme)
    if page.evaluate("() => document.documentElement.lang") != tongue:
        page.click("#tongue")
    titles = page.locator(".lessons h2").all_inner_texts()
    assert len(titles) == len(NOTEBOOKS)
    assert all(("课：" in title) == (tongue == "zh") for title in titles)
    assert (
        page.title()
        == {"en": "Thirteen lessons with their pictures", "zh": "十三堂课与其中的图"}[tongue]
    )
    assert min(page.evaluate(LOAD_ALL)) >= 700
    sources = page.evaluate(f"() => {SHOWN}.map((image) => image.src)")
    assert len(sources) == len(NOTEBOOKS)
    assert all(source.endswith(".zh.png") == (tongue == "zh") for source in sources)
    assert page.evaluate(WIDE) <= 0 and page.evaluate(CUT) == [] and complaints == []
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(17, 17, 17)"}[theme]
    page.locator(".lessons h2 a").nth(4).click()
    page.wait_for_url("**/04_collectives_and_dp.html")
    assert page.evaluate("() => document.documentElement.lang") == tongue
    assert page.evaluate("() => document.documentElement.dataset.theme") == theme
    if "SHOTS" in os.environ:
        page.screenshot(path=f"{os.environ['SHOTS']}/lesson-{size[0]}-{theme}-{tongue}.png")

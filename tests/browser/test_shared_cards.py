"""What a page says where it is shared: a description and a picture with its title, in both languages."""

import json
import os
import re
import subprocess
import sys

import pytest
from bs4 import BeautifulSoup
from PIL import Image

from simlab.explorers import NAMES
from simlab.lessons import book
from tests.support.browser import ROOT, WEB, needs_node

NAVIGATION = json.loads((WEB / "site" / "pages.json").read_text(encoding="utf-8"))
PAGES = {page["path"]: page for page in NAVIGATION}
CHINESE = re.compile("[\u4e00-\u9fff]")
SHARED = [
    *PAGES,
    *(f"explorers/{name}.html" for name in NAMES),
    *(f"questions/{name}.html" for name in book.questions()),
    "lessons/04_collectives_and_dp.html",
]


def cards(path):
    """{name: content} of what the file at `path` says to who shows it elsewhere."""
    head = BeautifulSoup(path.read_text(encoding="utf-8"), "html.parser").head
    return {
        tag.get("name") or tag.get("property"): tag["content"]
        for tag in head.find_all("meta")
        if tag.get("content")
    }


@needs_node
def test_a_page_has_a_title_a_description_and_a_picture_for_both_languages(site):
    for path in SHARED:
        said = cards(site / path)
        for name in ("description", "og:description"):
            text = said[name]
            assert CHINESE.search(text) and re.search("[a-z]{2} [a-z]", text), (path, name)
        assert " · " in said["og:title"]
        assert (site / path).parent.joinpath(said["og:image"]).resolve().is_file(), path
        assert said["twitter:card"] == "summary_large_image" and "og:url" not in said


@pytest.mark.parametrize("name", ["index.html", "questions/index.html", "explorers/index.html"])
def test_the_picture_of_a_page_has_the_title_that_the_page_has(name):
    """Its title is kept in the file: `python assets/share.py` draws it anew."""
    page = PAGES[name]
    with Image.open(ROOT / "assets" / page["image"]) as picture:
        assert picture.size == (1200, 630)
        assert picture.text["Title"] == f"{page['en']} · {page['zh']}"


def test_where_the_site_will_be_is_said_in_full(tmp_path):
    code = (
        "import sys, pathlib; from shell import Shell; shell = Shell(pathlib.Path(sys.argv[1])); "
    )
    code += "shell.write(shell.page('questions/index.html'), '')"
    environment = os.environ | {
        "SITE_URL": "https://example.org/simlab",
        "PYTHONPATH": str(WEB / "site"),
    }
    subprocess.run([sys.executable, "-c", code, tmp_path], env=environment, check=True)
    said = cards(tmp_path / "questions/index.html")
    assert said["og:url"] == "https://example.org/simlab/questions/index.html"
    assert said["og:image"] == "https://example.org/simlab/share/questions.png"

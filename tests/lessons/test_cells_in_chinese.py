"""What the cells of the lessons tabulate, say and draw is in Chinese where the learner is: the tables
and sentences that the copies for reading hold are said in Chinese again."""

import json
import re
from pathlib import Path

import pytest
from matplotlib import pyplot as plt

from simlab.lessons.phrases import phrase, phrases
from simlab.phrasebook import NAME
from simlab.views.still.wording import say_in_chinese
from tests.support.chinese import CODE, LOANS, english_words, needs_chinese_font

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
LESSONS = sorted(NOTEBOOKS.glob("*.ipynb"))
QUOTED = re.compile(r"^```|\b\d[FBIW]\d\b")
"""Code, and reports of the program that quote an op: they are shown as they are."""


def shown(path):
    """[each text that a table's cell or a sentence of the lesson shows]."""
    found = []
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", ()):
            text = "".join(output.get("data", {}).get("text/markdown", ""))
            if text.startswith("| "):
                rows = [line.strip("| ").split(" | ") for line in text.split("\n")]
                found += [each.strip() for row in (rows[0], *rows[2:]) for each in row]
            elif text:
                found.append(text)
    return [text for text in found if not QUOTED.search(text)]


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.stem)
def test_no_table_or_sentence_of_a_lesson_keeps_english_words(path):
    texts = shown(path)
    assert len(texts) > 20
    wrong = {
        text: words
        for text in texts
        if (words := english_words(CODE.sub("", phrase(text, tongue="zh")), LOANS))
    }
    assert wrong == {}


def test_a_text_is_said_in_one_way_and_its_values_are_the_same_in_both_languages():
    said = {}
    for english, chinese in phrases("zh"):
        assert said.setdefault(english, chinese) == chinese
        assert sorted(NAME.findall(english)) == sorted(NAME.findall(chinese))


def test_a_template_takes_what_stands_in_its_place_and_says_that_too():
    known = {"8 microbatches": "8 个 micro-batch", "tree: closed form": "tree：闭式公式"}
    assert {text: phrase(text, tongue="zh") for text in known} == known
    assert phrase("no file of words has this", tongue="zh") == "no file of words has this"
    assert all(phrase(text, tongue="en") == text for text in known)


@needs_chinese_font
def test_a_picture_says_its_texts_in_chinese_ticks_and_legend_too():
    figure, axes = plt.subplots()
    axes.plot([1, 2], [3, 4], label="tree: closed form")
    axes.set(xlabel="buffer", title="Strong scaling falls sooner than weak scaling here")
    axes.set_xticks([1, 2], ["all four", "17"])
    axes.set_yticks([3, 4], [30, 40])  # numbers as labels
    axes.set_title("reduced at the end: 64.4 ms", loc="right")
    axes.legend()
    say_in_chinese(figure, lambda text: phrase(text, tongue="zh"))
    figure.draw_without_rendering()
    ticks = [text.get_text() for text in axes.get_xticklabels()]
    (entry,) = axes.get_legend().get_texts()
    assert ticks == ["四种全开", "17"] and entry.get_text() == "tree：闭式公式"
    assert axes.get_xlabel() == "缓冲区" and "强扩展" in axes.get_title()
    assert [text.get_text() for text in axes.get_yticklabels()] == ["30", "40"]
    assert axes.get_title("right") == "最后才归约：64.4 ms"
    plt.close(figure)

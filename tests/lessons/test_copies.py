"""Copies of the lessons to work in: in one language, with nothing lost, and without results."""

import json
import re
from pathlib import Path

import pytest

from simlab.cli.main import main
from simlab.lessons.copies import HAN, in_tongue
from simlab.lessons.words import LANGUAGES, language

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
WORD = re.compile(r"[a-zA-Z0-9_]+|[\u4e00-\u9fff]")


def cells(folder):
    """{name of each lesson: its cells}."""
    paths = sorted(folder.glob("*.ipynb"))
    return {path.name: json.loads(path.read_text(encoding="utf-8"))["cells"] for path in paths}


def source(cell):
    return "".join(cell["source"])


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """{language: {name of each lesson: the cells of its copy}}."""
    folders = {tongue: tmp_path_factory.mktemp(tongue) for tongue in LANGUAGES}
    for tongue, folder in folders.items():
        assert main(["lessons", "copy", str(folder), "--lang", tongue]) == 0
    return {tongue: cells(folder) for tongue, folder in folders.items()}


@pytest.mark.parametrize("tongue", LANGUAGES)
def test_a_learners_copy_shows_no_result_and_has_all_code(copied, tongue):
    lessons = cells(NOTEBOOKS)
    assert [*copied[tongue]] == [*lessons]
    for name, copy in copied[tongue].items():
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in copy)
        code = [source(cell) for cell in copy if cell["cell_type"] == "code"]
        assert [text.replace(f'tongue("{tongue}")', "tongue()") for text in code] == [
            source(cell) for cell in lessons[name] if cell["cell_type"] == "code"
        ]
        assert sum(f'tongue("{tongue}")' in text for text in code) == 1
        for cell in copy:
            tells = re.search(r"\.compare\(|^assert |title", source(cell), re.MULTILINE)
            if cell["metadata"].get("jupyter", {}).get("source_hidden"):
                assert "after(" in source(cell) and (tells or "folded" in cell["metadata"]["tags"])
            elif source(cell).startswith("after(") and tells:
                assert "# <- change this line" in source(cell), "the answer stands open"
            if "folded" in cell["metadata"].get("tags", ()):
                assert cell["metadata"]["jupyter"]["source_hidden"], "the formula stands open"


def test_a_copy_is_in_one_language_and_nothing_is_lost(copied):
    for name, lesson in cells(NOTEBOOKS).items():
        for both, english, chinese in zip(lesson, *(copied[each][name] for each in LANGUAGES)):
            if both["cell_type"] != "markdown":
                continue
            assert not HAN.search(source(english)), name
            for part in source(chinese).split("\n\n"):
                shared = part.startswith(("$$", "```", "</details>"))
                assert shared or HAN.search(part), f"{name}: {part}"
            words = {*WORD.findall(source(english)), *WORD.findall(source(chinese))}
            assert {*WORD.findall(source(both))} - words <= {"details", "summary", "中", "文"}, name


@pytest.mark.parametrize(
    ("both", "english", "chinese"),
    [
        ("# Lesson 1: a · 第 1 课：甲", "# Lesson 1: a", "# 第 1 课：甲"),
        ("## b07 · Why?\n**为什么？**", "## b07 · Why?", "## b07 · 为什么？"),
        ("## The end · 小结\nAll of it.", "## The end\n\nAll of it.", "## 小结\n\nAll of it."),
        ("1. One. Two. 甲，乙。\n2. Three. ring 丙。", "1. One. Two.\n2. Three.", "1. 甲，乙。\n2. ring 丙。"),
        ("| id | question | 问题 |\n|---|---|---|\n| a | b | 乙 |",
         "| id | question |\n|---|---|\n| a | b |", "| id | 问题 |\n|---|---|\n| a | 乙 |"),
        ("| fast · 快 | 2 · n |", "| fast | 2 · n |", "| 快 | 2 · n |"),
        ("A.\n\n```\ncode\n\nB\n```\n\nC.\n\n<details><summary>中文</summary>\n\n甲\n\n- F0\n\n</details>",
         "A.\n\n```\ncode\n\nB\n```\n\nC.", "甲\n\n- F0\n\n```\ncode\n\nB\n```"),
        ("<details><summary>After · 之后</summary>\n\nA.\n\n甲。\n\n</details>",
         "<details><summary>After</summary>\n\nA.\n\n</details>",
         "<details><summary>之后</summary>\n\n甲。\n\n</details>"),
    ],
)  # fmt: skip
def test_a_text_is_read_in_one_language(both, english, chinese):
    assert (in_tongue(both, "en"), in_tongue(both, "zh")) == (english, chinese)


def test_a_copy_that_is_there_stays_and_a_folder_that_cannot_be_is_named(tmp_path, capsys):
    folder = tmp_path / "a" / "learn"
    assert main(["lessons", "copy", str(folder)]) == 0
    mine = folder / "00_start_here.ipynb"
    mine.write_text("mine")
    (folder / "01_pipeline_bubbles.ipynb").unlink()
    capsys.readouterr()
    assert main(["lessons", "copy", str(folder), "--json"]) == 0
    answer = {"folder": str(folder), "language": "en", "copied": ["01_pipeline_bubbles.ipynb"]}
    assert json.loads(capsys.readouterr().out) == answer and mine.read_text() == "mine"
    assert main(["lessons", "copy", str(mine)]) == 2
    assert "File exists" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("environment", "tongue"),
    [
        ({}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LC_ALL": "de_DE.UTF-8", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"SIMLAB_LANG": "en", "LC_ALL": "zh_TW.UTF-8"}, "en"),
    ],
)
def test_the_language_is_the_locales_where_none_is_chosen(monkeypatch, environment, tongue):
    for name in ("SIMLAB_LANG", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    for name, text in environment.items():
        monkeypatch.setenv(name, text)
    assert language() == tongue

"""The map of the lessons, against notebooks/questions.yml and what a learner has done; and how long
a lesson takes."""

import json
from pathlib import Path

import pytest
import yaml

from simlab.apps import lesson_cells
from simlab.apps.lesson_map import map_html
from simlab.cli.main import main
from simlab.errors import InputError
from simlab.lessons import book, course, progress, words
from tests.support.simlab_commands import answer, refused

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
COURSE = course.lessons(NOTEBOOKS)
LONGEST_SITTING_MIN = 45


def test_the_map_has_every_ready_question_of_the_list_in_its_lesson_with_its_titles():
    listed = yaml.safe_load((NOTEBOOKS / "questions.yml").read_text(encoding="utf-8"))
    ready = {
        (each["notebook"], each["id"], each["title_en"], each["title_zh"])
        for each in listed
        if each["status"] == "ready"
    }
    mapped = [(its.file, each.id, each.en, each.zh) for its in COURSE for each in its.questions]
    assert len(mapped) == len({*mapped}) and {*mapped} == ready


def test_lessons_are_numbered_as_their_files_and_the_first_answers_no_question():
    numbers = [its.number for its in COURSE]
    assert numbers == [*range(len(numbers))]
    assert all(int(its.file[:2]) == its.number for its in COURSE)
    assert COURSE[0].file == "00_start_here.ipynb" and not COURSE[0].questions


def test_the_map_says_what_a_lesson_needs():
    needs = {its.number: (its.processes, its.numpy) for its in COURSE}
    assert needs[0][0] == needs[1][0] == 4 and needs[8][0] == 8
    assert needs[3] == needs[6] == (0, False) and needs[5][1]


def test_levels_are_those_of_the_exercises():
    levels = {each.id: each.level for its in COURSE for each in its.questions}
    assert {name: levels[name] for name in book.exercises()} == {
        name: each.level for name, each in book.exercises().items()
    }


def test_the_map_shows_the_level_of_every_exercise_whoever_judges_it():
    code = pytest.importorskip("realrun.lessons.tasks", reason="needs torch", exc_type=ImportError)
    assert {*code.PRACTICES} == {*book.JUDGED_BY_PROCESSES}
    assert not {*book.exercises()} & {*book.JUDGED_BY_PROCESSES}
    asked = json.dumps([json.loads(path.read_text()) for path in NOTEBOOKS.glob("*.ipynb")])
    for its in COURSE:
        for each in its.questions:
            assert (each.level > 0) == (f"e:{each.id}" in asked), each.id
    shown = map_html(COURSE)
    row = next(line for line in shown.split("<tr>") if "b06 ·" in line)
    assert "●●●" in row and "–</td>" not in shown


def test_a_folder_without_lessons_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no lessons in"):
        course.lessons(tmp_path / "empty")
    (tmp_path / "empty" / "01_x.ipynb").write_text('{"cells": []}')
    with pytest.raises(InputError, match="does not begin with"):
        course.lessons(tmp_path / "empty")


# how long it takes
# -------------------------------------------------------------------------------------------


def cell(kind, source, *tags):
    return {"cell_type": kind, "source": [source], "metadata": {"tags": [*tags]}}


def test_minutes_are_words_at_200_a_minute_and_what_is_done():
    chinese = "\n\n<details><summary>中文</summary>\n\nnot counted 不算\n\n</details>"
    text = cell("markdown", "word " * 400 + chinese)
    assert book.minutes([text]) == pytest.approx(2.0)
    assert book.minutes([text, cell("code", "x = 1 + 1")]) == pytest.approx(2.0)


def test_an_exercise_of_a_higher_level_takes_longer_and_predictions_and_answers_a_minute():
    level = {name: each.level for name, each in book.exercises().items()}
    assert (level["w11"], level["d05"]) == (1, 3)

    def of(name):
        read = len(words.word(f"{name}.exercise.text", tongue="en").split()) / 200
        return book.minutes([cell("code", "", f"e:{name}")]), read

    for name, stated in (("w11", 3), ("t3", 5), ("d05", 8)):
        found, read = of(name)
        assert found == pytest.approx(stated + read, abs=0.1)
    asked = book.minutes([cell("code", 'guess = predict("b08")', "p:b08")])
    assert 1.05 < asked < 1.6
    assert 2 < book.minutes([cell("code", 'closing("b08")', "f:b08")]) < 5


# what a learner sees
# ----------------------------------------------------------------------------------------


def test_the_map_ticks_what_the_learner_has_done_and_speaks_their_language(monkeypatch):
    page = map_html(COURSE)
    assert "✓" not in page and "You have solved 0 of" in page
    progress.keep("predictions", "b07", {"values": {"slot": 5.0}})
    progress.keep("exercises", "b07", {"solved": True, "tries": 2})
    progress.keep("exercises", "w11", {"solved": False, "tries": 1})
    progress.keep("points", "b07", [0, 2, 4])
    page = map_html(COURSE)
    row = page[page.index("b07 · ") :].partition("</tr>")[0]
    assert row.count("✓") == 2 and "3/5" in row and page.count("✓") == 2
    assert "You have solved 1 of" in page and "流水线" not in page
    monkeypatch.setenv("SIMLAB_LANG", "zh")
    assert "流水线" in map_html(COURSE)


def test_what_was_done_of_a_task_that_another_one_replaced_no_longer_counts():
    replaced = [name for name, each in book.exercises().items() if each.version > 1]
    assert {"t4", "w06", "e05", "b15"} <= {*replaced}
    for name in replaced:
        progress.keep("exercises", name, {"solved": True, "tries": 3, "first_s": 1, "last_s": 2})
    assert "You have solved 0 of" in map_html(COURSE)
    lesson_cells.Task(book.exercise("b15")).check(lambda **case: "full")
    kept = progress.load()["exercises"]["b15"]
    assert (kept["version"], kept["solved"], kept["tries"]) == (2, False, 1) and kept["first_s"] > 2
    lesson_cells.Task(book.exercise("b15")).check(book.exercise("b15").solution)
    kept = progress.load()["exercises"]["b15"]
    assert (kept["version"], kept["solved"], kept["tries"]) == (2, True, 2)
    assert "You have solved 1 of" in map_html(COURSE)


def test_a_copy_for_reading_shows_both_languages_and_nobodys_progress(monkeypatch):
    progress.keep("exercises", "b07", {"solved": True})
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    page = map_html(COURSE)
    assert "✓" not in page and "solved 1" not in page
    assert "What is pipeline parallelism" in page and "流水线并行怎么运作" in page


def test_the_map_as_it_is_committed_names_every_lesson_and_every_question():
    cells = json.loads((NOTEBOOKS / COURSE[0].file).read_text(encoding="utf-8"))["cells"]
    (shown,) = [each for each in cells if "".join(each["source"]) == "lesson_map()"]
    page = "".join(shown["outputs"][0]["data"]["text/html"])
    for its in COURSE:
        assert its.file in page and all(f"{each.id} · " in page for each in its.questions)


# sittings
# -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lesson", COURSE, ids=lambda its: its.file)
def test_no_sitting_is_longer_than_45_minutes(lesson):
    assert max(lesson.minutes) <= LONGEST_SITTING_MIN, "mark a second sitting: docs/adding.md"


@pytest.mark.parametrize("lesson", COURSE, ids=lambda its: its.file)
def test_a_sitting_begins_at_a_question_and_says_in_both_languages_where_to_resume(lesson):
    cells = json.loads((NOTEBOOKS / lesson.file).read_text(encoding="utf-8"))["cells"]
    parts = course.sittings(cells)
    assert len(parts) == len(lesson.minutes)
    for part, name in zip(parts[1:], ("Second", "Third")):
        heading, first = ("".join(each["source"]) for each in part[:2])
        assert heading.startswith(f"## {name} sitting · ") and course.HEADING.match(first)
        assert "Run All Above Selected Cell" in heading.partition("<summary>中文</summary>")[2]


def test_a_lesson_is_cut_at_its_sittings():
    cells = [cell("markdown", text) for text in ("# A", "x", "## Second sitting · 第二次", "y")]
    assert [len(part) for part in course.sittings(cells)] == [2, 2]
    assert len(course.sittings(cells[:2])) == 1


def test_make_lab_opens_the_first_lesson():
    makefile = (NOTEBOOKS.parent / "Makefile").read_text(encoding="utf-8")
    assert f"default_url=/lab/tree/{COURSE[0].file}" in makefile


@pytest.mark.parametrize("tongue", ["en", "zh"])
def test_the_list_of_lessons_says_what_each_takes(capsys, tongue):
    found = answer(capsys, ["lessons", "list", "--lang", tongue])["lessons"]
    assert [its["number"] for its in found] == [*range(14)]
    for its, lesson in zip(found, course.lessons()):
        assert (its["minutes"], its["processes"]) == (lesson.minutes, lesson.processes)
        assert its["questions"] == {one.id: getattr(one, tongue) for one in lesson.questions}
    assert main(["lessons", "list", "--lang", tongue]) == 0
    out = capsys.readouterr().out
    assert ["7", "31+31", "4", "-", "4"] in [line.split() for line in out.splitlines()]
    assert f"{found[1]['title']}: b07 w11 d05 b08 t3" in out
    assert all(len(line) <= 80 for line in out.splitlines())


@pytest.mark.parametrize(
    ("line", "said"), [("copy", "give the folder"), ("list x", "'x': it takes no folder")]
)
def test_a_wrong_command_about_lessons_is_one_line(capsys, line, said):
    assert said in refused(capsys, ["lessons", *line.split()])

"""A class's gradebook: who should be there, and a column for each question of the lessons."""

import csv
import json
import shlex
from html import escape
from pathlib import Path

import pytest

from realrun.lessons.lesson import source
from realrun.lessons.tasks import PRACTICES
from simlab.apps import lesson_cells
from simlab.cli.main import main
from simlab.lessons import book, course, words
from simlab.lessons.teaching import apart
from simlab.lessons.teaching.attempts import Attempt

B07 = "task = exercise('b07')\ntask.check(lambda p, m, rank: {})\n"


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A command line in a folder of its own → (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def run(line):
        return main(shlex.split(line)), *capsys.readouterr()

    return run


def hand_in(who, code):
    folder = Path("in") / who
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mine.py").write_text(code, encoding="utf-8")


def sheet_of(file):
    with open(file, encoding="utf-8-sig", newline="") as text:
        return [*csv.DictReader(text)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("class.txt", "\ufeffdora\n\nann\n张伟\n"),
        ("class.csv", "no;Name\n1;dora\n2;ann\n3;张伟\n"),
        ("class.csv", "dora\nann\n张伟\n"),
        ("class.csv", 'username,mail\ndora,"d@x, y"\nann,\n张伟,z\n'),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "gb18030"])
def test_who_is_on_the_roster_has_a_row_whatever_was_handed_in(run, name, text, encoding):
    encoding = "utf-8" if text.startswith("\ufeff") else encoding
    Path(name).write_text(text, encoding=encoding)
    hand_in("ann", B07.format("m"))
    hand_in("eve", B07.format("m"))
    for action in ("collect", "grade"):
        status, out, _ = run(
            f"class {action} in --lessons 1 --roster {name} --by-learner {action}.csv --json"
        )
        found = json.loads(out)
        assert [each["who"] for each in found["learners"]] == ["dora", "ann", "张伟", "eve"]
        said = ["dora: nothing was handed in", "张伟: nothing was handed in"]
        assert status == 1 and found["wrong"][-3:] == [*said, "eve: is not on the roster"]
        (dora, *_) = sheet_of(f"{action}.csv")
        assert Path(f"{action}.csv").read_bytes().startswith(b"\xef\xbb\xbfwho,"), "a spreadsheet"
        assert (dora["who"], dora["tried"], dora["b07"]) == ("dora", "0", "")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("class.txt", "\n \n", "'class.txt' has no names"),
        ("class.txt", "\udcff\udcff", "cannot read 'class.txt': save it as UTF-8 or GB18030"),
        ("class.csv", "no;mail\n1;x\n", "'class.csv' begins with 'no;mail': head the column"),
        ("nowhere.txt", None, "cannot read 'nowhere.txt'"),
    ],
)
def test_a_roster_without_names_is_told_before_anything_is_read(run, name, text, said):
    if text is not None:
        Path(name).write_text(text, errors="surrogateescape")
    status, out, err = run(f"class grade nowhere --roster {name}")
    assert (status, out) == (2, "") and said in err and err.count("\n") == 1


def test_each_question_of_the_lessons_has_a_column_also_one_that_nobody_tried(run):
    hand_in("ann", B07.format("m"))
    of_lesson = {its.number: its.questions for its in course.lessons()}
    exercises = {one.id for one in of_lesson[1] if one.level}
    assert run("class grade in --by-learner a.csv")[0] == 0
    assert {*sheet_of("a.csv")[0]} == {"who", "solved", "tried"} | exercises
    assert run("class grade in --lessons 1,7 --by-learner b.csv")[0] == 0
    more = {one.id for one in of_lesson[7] if one.level}
    assert {*sheet_of("b.csv")[0]} == {"who", "solved", "tried"} | exercises | more
    (row,) = sheet_of("b.csv")
    assert (row["tried"], row["b07"], row["w11"], row["b01"]) == ("1", "0", "", "")
    Path("in/ann.json").write_text(json.dumps({"exercises": {}}))
    run("class collect in --lessons 2 --by-learner c.csv")
    row = sheet_of("c.csv")[0]
    assert row["b09"] == row["b09 prediction"] == row["d07.change prediction"] == ""


def test_only_questions_of_the_chosen_lessons_are_in_columns_and_sums(run):
    hand_in("ann", B07.format("m") + B07.replace("b07", "b09").format("m"))
    done = {"solved": True, "tries": 1}
    Path("in/ann/progress.json").write_text(json.dumps({"exercises": {"b07": done, "b09": done}}))
    for action in ("grade", "collect"):
        run(f"class {action} in --lessons 1 --by-learner {action}.csv")
        (row,) = sheet_of(f"{action}.csv")
        assert row["tried"] == "1" and "b07" in row and "b09" not in row


def test_what_is_left_out_has_a_line_and_stands_on_its_learners_page(run):
    hand_in("ann", B07.format("m"))
    Path("in/ann/more.zip").touch()
    Path("in/ann/answer.docx").touch()
    Path("in/ann/.DS_Store").touch()
    hand_in("bob", "task = exercise('b07')\ndef slot(p, m, rank):\n    return 1\n")
    hand_in("eve", B07.replace("p, m, rank", "p, m").format("m"))
    Path("in/zoe.zip").touch()
    status, out, _ = run("class grade in --lang en --feedback back --json")
    found, pages = (
        json.loads(out),
        {its.stem: its.read_text("utf-8") for its in Path("back").iterdir()},
    )
    said = {
        "ann/more.zip: unpack it first": "ann",
        "ann/answer.docx: it does not end in .ipynb or .py": "ann",
        "bob/mine.py: b07: The exercise is there, and no line `task.check(…)` gives": "bob",
        "eve/mine.py: b07: The function of b07 takes (p, m, rank), and this one does not.": "eve",
        "zoe.zip: unpack it first": "zoe",
    }
    assert status == 1 and {*pages} == {"ann", "bob", "eve", "zoe"}
    assert len(found["wrong"]) == len(said)
    for line, who in said.items():
        assert any(each.startswith(line) for each in found["wrong"]), line
        told = line.rpartition(": ")[2].split("`")[0]
        assert told in pages[who] and pages[who].count(told) == 1
    assert {mark["verdict"] for mark in found["marks"]} == {"wrong", "not_checked", "arguments"}


def test_a_notebook_that_was_handed_in_untouched_gives_its_questions_their_columns(run):
    assert run("class pack in/ann --lessons 2")[0] == 0
    assert run("class grade in --by-learner a.csv --json")[0] == 0
    assert {*sheet_of("a.csv")[0]} == {"who", "solved", "tried", "b09", "d07"}


ON_RANKS = """task = exercise(practice("b01", pool))
def mean(gradient, samples, all_reduce):
    {}
task.check(mean)
"""
MEAN = "return all_reduce(gradient * samples) / all_reduce(torch.tensor(float(samples)))"


def test_an_exercise_on_processes_is_graded_there_within_limits(run):
    pytest.importorskip("torch")
    hand_in("ann", ON_RANKS.format(MEAN))
    hand_in("bob", ON_RANKS.format("return all_reduce(gradient) / 4"))
    hand_in("eve", ON_RANKS.format("return open('/etc/passwd').read()"))
    judge = "all_reduce.__globals__['closest'] = lambda *its: 'right'"
    hand_in("mallory", ON_RANKS.format(f"{judge}; return all_reduce(gradient)"))
    status, out, _ = run("class grade in --lang en --by-learner a.csv --json")
    marks = {each["who"]: each for each in json.loads(out)["marks"]}
    assert status == 0 and {who: its["solved"] for who, its in marks.items()} == {
        "ann": True,
        "bob": False,
        "eve": False,
        "mallory": False,
    }
    assert "it changed what judges it" in marks["mallory"]["text"]
    assert marks["bob"]["verdict"] == "mistake"
    assert "open: a function that is judged may not" in marks["eve"]["text"]
    assert [row["b01"] for row in sheet_of("a.csv")] == ["1", "0", "0", "0"]


def test_what_the_refusals_leave_is_enough_for_every_solution():
    pytest.importorskip("torch")
    with apart.Apart() as there:
        for name, asked in PRACTICES.items():
            text = source(asked.solution, "practice")
            assert there.on_ranks(Attempt(name, None, (), text)).solved, name


def test_an_exercise_on_processes_is_named_where_there_are_none(run, monkeypatch):
    monkeypatch.setattr(apart, "find_spec", lambda name: None)
    hand_in("ann", ON_RANKS.format(MEAN))
    status, out, _ = run("class grade in --lang en --csv m.csv --by-learner a.csv")
    said = " ".join(out.split())
    assert status == 0 and "ann/mine.py: b01: Not graded: this exercise needs processes" in said
    (mark,), (row,) = sheet_of("m.csv"), sheet_of("a.csv")
    assert (mark["solved"], mark["verdict"]) == ("", "needs_processes")
    assert (row["tried"], row["b01"]) == ("0", "not graded: needs processes")


def test_the_first_prediction_counts_however_often_a_learner_predicts_again(run, monkeypatch):
    for who, guesses in (("ann", "453"), ("bob", "54"), ("eve", ""), ("dan", "4-")):
        monkeypatch.setenv("SIMLAB_PROGRESS", f"in/{who}/progress.json")
        asked = book.prediction("b07")
        for again, guess in enumerate(guesses):
            if again:
                asked.forget()
            if guess != "-":
                asked.commit({"slot": guess})
                asked.show_found({"simulated": {"slot": 4.0}})
        guess = lesson_cells.Guess(asked)
        if not guesses:
            guess.show()
            guess.box.children[-2].children[1].click()  # show me without predicting
            assert asked.committed() is None
            asked.commit({"slot": "4"})
            asked.forget()
            asked.forget()
    _, out, _ = run("class collect in --json")
    rows = json.loads(out.splitlines()[-1])["rows"]  # the form was printed before
    assert [(row["who"], row["tries"], row["solved"], row["shown"]) for row in rows] == [
        ("ann", 3, True, False),
        ("bob", 2, False, False),
        ("dan", 1, True, False),
        ("eve", 1, None, True),
    ]


def _broken(rows):
    return [row for row in rows if row["verdict"] == "syntax_error"]


BROKEN = "def f(p, m, rank):\n    return (p + m\ntask.check(f)\n"


@pytest.mark.parametrize(
    ("cells", "question"),
    [
        (["task = exercise('w11')", "task = exercise('b07')", BROKEN], "b07"),
        (["task = exercise(practice('b01', pool))", BROKEN], "b01"),
        (["one = sl.exercise('mine', '?')", BROKEN.replace("task", "one")], "mine"),
        ([BROKEN.replace("task", "exercise('t3')")], "t3"),
        (["task = exercise('b07')", "def helper(:\n    pass"], ""),
        ([BROKEN], ""),
    ],
)
def test_a_syntax_error_stands_in_the_tables_with_its_line(run, cells, question):
    Path("in/ann").mkdir(parents=True)
    notebook = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    Path("in/ann/a.ipynb").write_text(json.dumps(notebook))
    status, out, _ = run("class grade in --csv m.csv --by-learner b.csv --json")
    (mark,) = _broken(json.loads(out)["marks"])
    (row,), (learner,) = _broken(sheet_of("m.csv")), sheet_of("b.csv")
    assert (mark["question"], mark["verdict"], status) == (
        question,
        "syntax_error",
        int(not question or "w11" in cells[0]),
    )
    line = 2 if ".check" in cells[-1] else 1
    assert mark["text"].startswith(f"code cell {len(cells)}, line {line}: SyntaxError: ")
    assert (row["text"], row["file"]) == (mark["text"], "ann/a.ipynb")
    assert mark["solved"] is (False if question else None) and "" not in learner
    assert learner["tried"] == str(int(bool(question)))
    assert not question or learner[question] == "0"


def test_each_function_of_a_file_that_is_no_python_is_named(run):
    twice = "task = exercise('b07')\ntask.check(f)\ntask = exercise('w11')\n"
    hand_in("ann", twice + BROKEN)
    status, out, _ = run("class grade in --json")
    marks = json.loads(out)["marks"]
    assert status == 0 and [mark["question"] for mark in marks] == ["b07", "w11"]
    assert {mark["text"] for mark in marks} == {
        "line 5: SyntaxError: '(' was never closed: 'return (p + m'"
    }


@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("template mine.ipynb", ["mine.ipynb"]),
        ("pack own.zip --lessons 0", ["own.zip"]),
        ("pack shared --lessons 0", ["shared/00_start_here.ipynb"]),
        ("handout a.html --lessons 0 --without-solutions", ["a.html", "a-points.html"]),
        ("collect in --csv a.csv --by-learner b.csv", ["a.csv", "b.csv"]),
        ("grade in --csv a.csv --by-learner b.csv", ["a.csv", "b.csv"]),
    ],
)
def test_a_file_that_is_there_is_overwritten_only_where_that_is_said(run, line, written):
    hand_in("ann", B07.format("m"))
    Path("shared").mkdir()
    for name in written:
        Path(name).write_text("mine")
        status, out, err = run(f"class {line}")
        assert (status, out, err.count("\n")) == (2, "", 1)
        assert f"cannot write '{name}': it is there: give another name, or --force" in err
        assert Path(name).read_text() == "mine"
        assert not any(Path(its).exists() for its in written if its != name)
        assert run(f"class {line} --force")[0] in (0, 1)
        assert not any(Path(its).read_bytes() == b"mine" for its in written)
        for its in written:
            Path(its).unlink()


def test_two_tables_in_one_file_are_refused_and_a_device_is_written_to(run):
    hand_in("ann", B07.format("m"))
    status, out, err = run("class grade in --csv a.csv --by-learner a.csv")
    assert (status, out) == (2, "") and "--by-learner 'a.csv': --csv writes it" in err
    assert run("class grade in --csv /dev/null")[0] == 0


def test_each_learner_gets_a_page_with_what_was_right_and_a_hint(run):
    hand_in("ann", B07.format("(p - 1 + m) + (p - 1 - rank)"))
    hand_in("bob", B07.format("p - 1 + m"))
    hand_in("<eve>", BROKEN.replace("task", "exercise('b07')"))
    assert run("class grade in --lang zh --feedback back/pages")[0] in (0, 1)
    pages = {path.stem: path.read_text("utf-8") for path in Path("back/pages").iterdir()}
    assert {*pages} == {"ann", "bob", "<eve>"}
    assert "<h1>ann: 1 ✓</h1>" in pages["ann"] and "通过" in pages["ann"]
    title, hint = (words.word(f"b07.{key}", tongue="zh") for key in ("title", "exercise.hints.1"))
    assert f"✗ b07 · {title}" in pages["bob"] and escape(hint) in pages["bob"]
    assert escape(hint) not in pages["ann"]
    assert "&lt;eve&gt;" in pages["<eve>"] and "SyntaxError" in pages["<eve>"]
    status, _, err = run("class grade in --feedback back/pages")
    assert status == 2 and "it is there: give another name, or --force" in err
    assert run("class grade in --feedback in/ann/mine.py")[0] == 2


def test_a_class_in_chinese_reads_its_tables_in_chinese(run, monkeypatch):
    monkeypatch.setenv("SIMLAB_LANG", "zh")
    hand_in("ann", B07.format("open('/etc/passwd')"))
    Path("in/bob.zip").touch()
    Path("in/ann/a.json").write_text("{}")
    said = {line: run(f"class {line} in")[1] for line in ("collect", "grade")}
    said |= {"list": run("lessons list")[1]}
    for line, words_of in {
        "collect": "学习者 题目 类型 次数 通过 做过 未计入：",
        "grade": "学习者 题目 通过 判定 做过 未计入： 被判题的函数不能这样做",
        "list": "课 分钟 进程 题数 需要",
    }.items():
        assert [one for one in words_of.split() if one not in said[line]] == []
        assert "left out" not in said[line] and "may not" not in said[line]
        assert said[line].split()[0] in ("学习者", "课")

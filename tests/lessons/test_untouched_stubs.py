"""A function that is as its notebook came with it is no try, whatever it returns."""

import json
import re
from pathlib import Path

import pytest

from simlab.apps import lesson_cells
from simlab.cli.main import main
from simlab.lessons import book, course, progress
from simlab.lessons.exercise import Verdict
from tests.support.notebook_code import stubs

STUBS = stubs()


def test_every_stub_of_the_lessons_is_known_and_a_change_of_it_is_seen():
    assert {*STUBS} >= {*book.exercises(), *book.JUDGED_BY_PROCESSES}
    for name, cell in STUBS.items():
        function = cell[cell.index("def ") : cell.index("task.check")]
        assert course.untouched(name, function), name
        assert course.untouched(name, f"# mine\n{function}\n\n# later"), name
        assert not course.untouched(name, function.rstrip() + "\n    return 0"), name
        assert not course.untouched(name, ""), name
    assert not course.untouched("my-own", "def f():\n    return None")


def test_where_the_notebooks_are_not_there_nothing_is_taken_for_a_stub(tmp_path, monkeypatch):
    monkeypatch.setattr(course, "NOTEBOOKS", tmp_path)
    course._stubs.cache_clear()
    assert not course.untouched("b02", STUBS["b02"])
    course._stubs.cache_clear()


class Ranks:
    """An exercise whose processes find a known mistake in whatever they are given."""

    id, level = "d04", 3

    def judge(self, attempt):
        return Verdict(False, "d04.exercise.mistakes.products_only", "the partial products")


def test_a_stub_that_returns_the_common_answer_is_judged_and_not_counted(tmp_path):
    names, path = {}, tmp_path / "cell.py"
    path.write_text(STUBS["d04"].replace("task.check(mlp)", ""))
    exec(compile(path.read_text(), path, "exec"), names)
    task = lesson_cells.Task(Ranks())
    task.check(names["mlp"])
    assert progress.load()["exercises"] == {}
    path = tmp_path / "changed.py"
    path.write_text(STUBS["d04"].replace("F.gelu(x @ a) @ b", "all_reduce(F.gelu(x @ a) @ b)"))
    exec(compile(path.read_text().replace("task.check(mlp)", ""), path, "exec"), names)
    task.check(names["mlp"])
    assert progress.load()["exercises"]["d04"]["tries"] == 1


@pytest.fixture
def graded(tmp_path, monkeypatch, capsys):
    """What `class grade in --json` with more arguments prints, in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def graded(line=""):
        assert main(["class", "grade", "in", "--lang", "en", "--json", *line.split()]) == 0
        return json.loads(capsys.readouterr().out)

    return graded


def test_a_notebook_that_was_handed_in_as_it_came_has_no_tries(graded, capsys):
    assert main(["class", "pack", "in/ann", "--lessons", "1,7,8,9"]) == 0
    capsys.readouterr()
    found = graded()
    assert {mark["question"] for mark in found["marks"]} >= {"b02", "d04", "b11", "b07"}
    assert {(mark["solved"], mark["verdict"]) for mark in found["marks"]} == {(None, "not_written")}
    assert found["learners"][0]["tried"] == 0


OWN = """import simlab as sl
task = sl.exercise("twice", "?", draw={"a": [1, 2]}, oracle=lambda a: 2 * a)
def twice(a):
    return a  # repair it
task.check(twice)
"""


def test_a_stub_of_ones_own_that_returns_something_is_no_try_either(graded):
    Path("mine.py").write_text(OWN)
    for who, answer in (("ann", "a # mine"), ("bob", "2 * a"), ("eve", "a + 0")):
        Path(f"in/{who}").mkdir(parents=True)
        Path(f"in/{who}/mine.py").write_text(re.sub("a  # repair it", answer, OWN))
    marks = graded("--questions mine.py")["marks"]
    assert {mark["who"]: mark["solved"] for mark in marks} == {
        "ann": None,
        "bob": True,
        "eve": False,
    }

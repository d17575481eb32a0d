"""Lesson 3's exercises as a learner meets them: the stub runs and is not solved, and the solution,
pasted over it, is."""

from itertools import product
from pathlib import Path

import nbformat
import pytest

import simlab as sl
from simlab.apps.lesson_cells import Task
from simlab.lessons import book, progress

CELLS = nbformat.read(
    Path(__file__).parents[2] / "notebooks" / "03_memory_and_zero.ipynb", as_version=4
).cells
IDS = ["w01", "w02", "w04", "w05", "w09", "w07", "d11"]


@pytest.fixture
def verdicts(monkeypatch):
    """The verdicts that a cell gets, in order."""
    given = []

    def check(task, attempt):
        given.append(task.asked.judge(attempt))

    monkeypatch.setattr(Task, "check", check)
    assert progress.load()["exercises"] == {}
    return given


@pytest.mark.parametrize("identifier", IDS)
def test_the_stub_is_not_solved_and_the_solution_pasted_over_it_is(identifier, verdicts):
    (stub,) = [cell.source for cell in CELLS if f"e:{identifier}" in cell.metadata.get("tags", ())]
    asked = book.exercise(identifier)
    names = {"sl": sl, "task": Task(asked), "product": product}
    exec(stub, names)
    assert verdicts[-1].key == "form.not_written"
    names |= {name: getattr(sl, name) for name in sl.__all__}
    exec(asked.solution_text() + "\n" + stub[stub.index("task.check") :], names)
    assert verdicts[-1].solved

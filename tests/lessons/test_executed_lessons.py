"""Lessons that execute: what another lesson simulates is predicted before it is shown, and the groups
that lesson 8 makes are those of the layout."""

import json
import re
from pathlib import Path

import pytest

import simlab as sl
from realrun.lessons.tasks import PRACTICES, practice
from realrun.run.box import Box, Overhead
from realrun.run.job import Job
from simlab.lessons import book

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CODE = {
    path.name: [
        "".join(cell["source"])
        for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]
        if cell["cell_type"] == "code"
    ]
    for path in sorted(NOTEBOOKS.glob("*.ipynb"))
}
EXECUTED = [name for name in book.predictions() if name.endswith(".executed")]


@pytest.mark.parametrize("identifier", EXECUTED)
def test_what_is_executed_is_predicted_first_and_compared(identifier):
    (code,) = [its for its in CODE.values() if any(f'"{identifier}"' in cell for cell in its)]
    asked = next(at for at, cell in enumerate(code) if f'predict("{identifier}")' in cell)
    held = [at for at, cell in enumerate(code) if cell.startswith(f'after("{identifier}")')]
    assert held and min(held) > asked
    assert any("guess.compare(" in code[at] for at in held)


def test_every_question_of_a_lesson_has_one_exercise():
    plain, on_processes = {*book.exercises()}, {*PRACTICES}
    assert not plain & on_processes
    assert plain | on_processes == {*book.questions()}


@pytest.mark.parametrize("name", PRACTICES)
def test_the_last_hint_of_an_exercise_on_processes_does_not_hold_what_its_solution_returns(name):
    asked = practice(name, None)
    returned = re.findall(r"return (.+)", asked.solution_text())
    for tongue in ("en", "zh"):
        hint = asked.hints(tongue)[2]
        assert not [its for its in returned if len(its) > 20 and its in hint]


def test_groups_of_lesson_8_are_those_that_processes_make():
    names = {}
    exec(
        next(cell for cell in CODE["08_inside_a_layer.ipynb"] if "def groups(plan)" in cell), names
    )
    for sizes in ({"tp": 2, "pp": 2, "dp": 2}, {"tp": 2, "dp": 3, "pp": 4}):
        plan = sl.Plan(**sizes, microbatches=8)
        assert {d: sorted(its) for d, its in names["groups"](plan).items()} == {
            d: [list(ranks) for ranks in plan.layout.groups(d)] for d in ("tp", "pp", "dp")
        }


def test_three_times_the_microbatches_gain_what_lesson_10_says_without_what_a_machine_adds():
    """Its cells tell the figure and fail on none, as each run holds what this machine adds to an op."""
    box = {"cluster": "dgx-a100", "nodes": 2, "model": "megatron-7.5b", "time_scale": 8}
    rates = []
    for m in (4, 12):
        job = Job(plan={"pp": 4, "microbatches": m}, sizes={"layers": 8}, box=box)
        rates.append(m / Box(job).predicted(Overhead()).whole_step_s)
    assert book.figures()["b14.change"]["gain"].holds(rates[1] / rates[0])

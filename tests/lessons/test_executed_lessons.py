"""Lessons that execute: predictions kept, exercises checked."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import simlab as sl

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
SEVEN = json.loads((NOTEBOOKS / "07_data_parallel_for_real.ipynb").read_text(encoding="utf-8"))[
    "cells"
]
EIGHT = json.loads((NOTEBOOKS / "08_inside_a_layer.ipynb").read_text(encoding="utf-8"))["cells"]


def sources(cells, kind="code"):
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def tagged(cells, tag):
    (cell,) = [cell for cell in cells if tag in cell["metadata"].get("tags", ())]
    return "".join(cell["source"])


def solution(cells):
    return re.search(
        r"<summary>Solution · 答案</summary>\s*```python\n(.+?)```",
        "".join(sources(cells, "markdown")),
        re.DOTALL,
    )[1]


def verdict_on(cells, attempt, **names):
    """What the lesson's check prints on the function in `attempt`."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(attempt + "\n" + tagged(cells, "exercise-check"), {"sl": sl} | names)
    return printed.getvalue().strip()


def keeps_and_compares(cells, name):
    code = sources(cells)
    kept = next(at for at, source in enumerate(code) if source.startswith(f"my_{name} = "))
    return any(f"my_{name}" in source and "You said" in source for source in code[kept + 1 :])


@pytest.mark.parametrize(
    "name",
    ["b01", "b03_executed", "w03_executed", "t1_executed", "b02", "t4", "w06_executed", "w08"],
)
def test_lesson_7_keeps_predictions_and_compares_them(name):
    assert keeps_and_compares(SEVEN, name)


def test_exercise_of_lesson_7():
    assert "ZeRO-2, n = 4, m = 3" in verdict_on(SEVEN, tagged(SEVEN, "exercise"))
    assert verdict_on(SEVEN, solution(SEVEN)) == "Solved."
    assert "hint 3" in verdict_on(SEVEN, solution(SEVEN).replace("3 * m", "m + 2"))


# lesson 8
# -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name", ["d04", "b05", "t2", "w10_executed", "b06", "d06", "w09_executed", "d12", "d13"]
)
def test_lesson_8_keeps_predictions_and_compares_them(name):
    assert keeps_and_compares(EIGHT, name)


def groups(plan):
    """That the exercise is checked with, as the lesson defines it."""
    names = {}
    exec(next(source for source in sources(EIGHT) if "def groups(plan)" in source), names)
    return names["groups"](plan)


def test_groups_of_lesson_8_are_those_that_processes_make():
    for sizes in ({"tp": 2, "pp": 2, "dp": 2}, {"tp": 2, "dp": 3, "pp": 4}):
        plan = sl.Plan(**sizes, microbatches=8)
        assert {d: sorted(its) for d, its in groups(plan).items()} == {
            d: [list(ranks) for ranks in plan.layout.groups(d)] for d in ("tp", "pp", "dp")
        }


def test_exercise_of_lesson_8():
    assert "hint 1" in verdict_on(EIGHT, tagged(EIGHT, "exercise"), groups=groups)
    assert verdict_on(EIGHT, solution(EIGHT), groups=groups) == "Solved."
    assert "hint 3" in verdict_on(
        EIGHT, solution(EIGHT).replace("(tp * dp, pp)", "(tp, pp)"), groups=groups
    )

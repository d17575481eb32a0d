"""Lesson 6's exercise and predictions."""

import io
import json
import re
from contextlib import redirect_stdout
from pathlib import Path

import pytest

import simlab as sl

LESSON = Path(__file__).parents[2] / "notebooks" / "06_3d_parallel.ipynb"
CELLS = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]


def tagged(tag):
    (cell,) = [cell for cell in CELLS if tag in cell["metadata"].get("tags", ())]
    return "".join(cell["source"])


def verdict_on(attempt):
    """What the lesson's check prints on the function in `attempt`, Python text."""
    printed = io.StringIO()
    with redirect_stdout(printed):
        exec(
            attempt + "\n" + tagged("exercise-check"),
            {"sl": sl, "MODEL": sl.load_model("llama-2-13b")},
        )
    return printed.getvalue().strip()


def solution():
    text = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    return re.search(r"<summary>Solution</summary>\s*```python\n(.+?)```", text, re.DOTALL)[1]


def test_exercise_as_committed_gives_a_hint_and_the_solution_solves_it():
    assert "hint 1" in verdict_on(tagged("exercise"))
    assert verdict_on(solution()) == "Solved."


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("layers * 4 * 2", "layers * 2 * 2"), "tp = 4, pp = 4, m = 8: tp sends"),
        (("2 * state / tp", "state / tp"), "pp sends"),
        (("/ dp * parameters * 4", "/ dp * parameters * 2"), "dp sends"),
    ],
)
def test_exercise_names_the_dimension_that_is_wrong(change, message):
    assert change[0] in solution()
    assert message in verdict_on(solution().replace(*change))


@pytest.mark.parametrize("identifier", ["d01", "d03", "b13", "d02", "b15"])
def test_each_question_keeps_a_prediction_and_compares_it(identifier):
    sources = ["".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "code"]
    kept = next(at for at, source in enumerate(sources) if source.startswith(f"my_{identifier} = "))
    assert any(
        f"my_{identifier}" in source and "you said" in source.lower()
        for source in sources[kept + 1 :]
    )

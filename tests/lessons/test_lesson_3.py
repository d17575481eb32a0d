"""The exercise of the memory lesson: its check against the solution, and against attempts that are
not one."""

import json
import re
from contextlib import redirect_stdout
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

import simlab as sl
from simlab.apps import gib

CELLS = json.loads(
    (Path(__file__).parents[2] / "notebooks" / "03_memory_and_zero.ipynb").read_text(
        encoding="utf-8"
    )
)["cells"]
TEXTS = ["".join(cell["source"]) for cell in CELLS]


def verdict_on(attempt):
    """What the lesson's check prints on `attempt`, Python text that defines my_plan."""
    names = {
        "sl": sl,
        "gib": gib,
        "replace": replace,
        "NODE": sl.load_cluster("dgx-h100"),
        "model": sl.load_model("llama-3-70b"),
    }
    search = next(text for text in TEXTS if "def best_step_s" in text)
    (check,) = [
        "".join(cell["source"])
        for cell in CELLS
        if "exercise-check" in cell["metadata"].get("tags", ())
    ]
    with redirect_stdout(StringIO()) as printed:
        exec("\n".join((search, attempt, check)), names)
    return printed.getvalue().strip()


def plan(text):
    return f"def my_plan():\n    return {text}\n"


def test_the_stub_gets_a_hint_and_the_solution_solves_it():
    assert "hint 1" in verdict_on(plan("None"))
    solution = next(
        re.search(r"```python\n(.+?)```", text, re.DOTALL)[1]
        for text in TEXTS
        if "Solution" in text and "def my_plan" in text
    )
    assert verdict_on(solution) == "Solved."


@pytest.mark.parametrize(
    ("attempt", "words"),
    [
        ("sl.Plan(dp=32, microbatches=2)", "does not fit"),
        ("sl.Plan(dp=16, zero=3, recompute='full', microbatches=4)", "16 GPUs and 64 sequences"),
        (
            "sl.Plan(tp=8, pp=4, microbatches=64, sequence_parallel=True, recompute='full')",
            "times as long as the best",
        ),
    ],
)
def test_an_attempt_that_is_none_is_told_why(attempt, words):
    assert words in verdict_on(plan(attempt))

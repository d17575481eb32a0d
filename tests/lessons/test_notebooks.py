"""The lessons as they are committed: executed, with still pictures, of no particular machine; and
what they claim."""

import base64
import json
import os
import re
from math import ceil
from pathlib import Path

import clean_notebooks
import nbformat
import pytest
from nbclient import NotebookClient

import simlab as sl
from simlab.apps.lesson_cells import _closing_html as closing_html
from simlab.apps.lesson_cells import _exercise_html as exercise_html
from simlab.lessons import book
from simlab.views.language import CHINESE_PNG
from tests.support.patience import PATIENCE_S

ROOT = Path(__file__).parents[2]
PATHS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PICTURES = {
    "00_start_here.ipynb": 3,
    "01_pipeline_bubbles.ipynb": 7, "02_schedule_zoo.ipynb": 7, "03_memory_and_zero.ipynb": 10, "04_collectives_and_dp.ipynb": 12,
    "05_tensor_and_context.ipynb": 10, "06_3d_parallel.ipynb": 11, "07_data_parallel_for_real.ipynb": 9, "08_inside_a_layer.ipynb": 10,
    "09_long_sequences.ipynb": 7, "10_when_it_breaks.ipynb": 4, "11_choosing_a_plan.ipynb": 5, "12_running_it.ipynb": 3,
    "13_experts.ipynb": 6,
}  # fmt: skip
HIDE_TORCH = """
import sys
from importlib.machinery import PathFinder

class NoTorch(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] == "torch" else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = NoTorch
"""


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def code_cells(path):
    return [cell for cell in read(path)["cells"] if cell["cell_type"] == "code"]


def tagged(path, tag):
    """The source of the one cell with `tag`."""
    (cell,) = [cell for cell in code_cells(path) if tag in cell["metadata"].get("tags", ())]
    return "".join(cell["source"])


def pictures(path, kind="image/png"):
    """[the PNG bytes of each picture among the outputs]"""
    data = [output.get("data", {}) for cell in code_cells(path) for output in cell["outputs"]]
    return [base64.b64decode("".join(item[kind])) for item in data if kind in item]


every_notebook = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.name)


@every_notebook
def test_every_code_cell_was_executed_in_order_without_error(path):
    cells = code_cells(path)
    assert [cell["execution_count"] for cell in cells] == [*range(1, len(cells) + 1)]
    assert not [
        output for cell in cells for output in cell["outputs"] if output["output_type"] == "error"
    ]
    assert not [
        output for cell in cells for output in cell["outputs"] if output.get("name") == "stderr"
    ]


@every_notebook
def test_file_is_in_the_form_that_clean_notebooks_writes(path):
    text = path.read_text(encoding="utf-8")
    assert list(clean_notebooks.problems(text)) == []
    assert clean_notebooks.as_text(clean_notebooks.clean(json.loads(text))) == text, (
        "run tests/support/clean_notebooks.py on it"
    )
    assert "widgets" not in read(path)["metadata"]


@every_notebook
def test_pictures_are_there_as_png_and_the_explorer_once_with_a_still_picture(path):
    images = pictures(path)
    assert len(images) >= PICTURES.get(path.name, 1)
    for image in images:
        assert image.startswith(b"\x89PNG\r\n")
        assert int.from_bytes(image[16:20], "big") >= 700, "narrower than 700 pixels"
    in_chinese = pictures(path, CHINESE_PNG)
    assert len(in_chinese) == len(images) and not set(in_chinese) & set(images)
    explorers = [cell for cell in code_cells(path) if "Explorer()" in "".join(cell["source"])]
    assert len(explorers) <= 1, "every FigureWidget sends 5 MB of JavaScript"
    assert all("image/png" in output["data"] for cell in explorers for output in cell["outputs"])


@every_notebook
def test_prose_holds_no_computed_percentage(path):
    for cell in read(path)["cells"]:
        if cell["cell_type"] == "markdown":
            assert not re.search(r"\d\s?%(?! p)", "".join(cell["source"])), "let a cell compute it"


@every_notebook
def test_exercises_and_what_closes_a_question_are_what_the_words_say_today(path, monkeypatch):
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")  # nothing is held back
    for cell in code_cells(path):
        source = "".join(cell["source"])
        asked = re.search(r'^(?:task = )?(closing|exercise)\("(.*)"\)', source, re.MULTILINE)
        if not asked or (asked[1] == "exercise" and asked[2] not in book.exercises()):
            continue
        shown = ["".join(its["data"].get("text/html", "")) for its in cell["outputs"]]
        closes = asked[1] == "closing"
        wanted = closing_html(asked[2]) if closes else exercise_html(book.exercise(asked[2]))
        assert wanted in shown, f"{asked[2]}: put it there, or execute the lesson anew"


# clean_notebooks
# -----------------------------------------------------------------------------------------------


def notebook(**changes):
    output = {
        "output_type": "execute_result",
        "execution_count": 7,
        "metadata": {"x": 1},
        "data": {"text/plain": "1"},
    }
    cell = {"cell_type": "code", "id": "old", "metadata": {"tags": ["a"], "execution": {"iopub": "2026"}}, "execution_count": 7,
            "source": "1", "outputs": [output]}  # fmt: skip
    metadata = {"widgets": {"state": {}}, "language_info": {"name": "python", "version": "3.11.7"}}
    return {"cells": [cell | changes], "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}


def test_cleaning_drops_what_differs_between_runs():
    cleaned = clean_notebooks.clean(notebook())
    (cell,) = cleaned["cells"]
    assert (
        "widgets" not in cleaned["metadata"]
        and "version" not in cleaned["metadata"]["language_info"]
    )
    assert cell["metadata"] == {"tags": ["a"]}
    assert cell["execution_count"] == cell["outputs"][0]["execution_count"] == 1
    assert cell["id"] == clean_notebooks.clean(notebook(id="other"))["cells"][0]["id"] != "old"


def test_cleaning_joins_what_was_printed_in_pieces_and_drops_a_widget_without_state():
    pieces = [
        {"output_type": "stream", "name": "stdout", "text": ["a\n"]},
        {"output_type": "stream", "name": "stdout", "text": "b\nc"},
    ]
    shown = {
        "output_type": "display_data",
        "metadata": {},
        "data": {clean_notebooks.WIDGET_VIEW: {"model_id": "1"}, "image/png": "x"},
    }
    outputs = clean_notebooks.clean(notebook(outputs=[*pieces, shown]))["cells"][0]["outputs"]
    assert outputs[0] == {"output_type": "stream", "name": "stdout", "text": ["a\n", "b\n", "c"]}
    assert outputs[1]["data"] == {"image/png": "x"}


@pytest.mark.parametrize(
    "text",
    [
        "/home/me/x.py",
        "at /tmp/abc",
        "C:\\\\Users\\\\me",
        "<object at 0x7f00aa11bb22>",
        "x" * 1_000_001,
    ],
)
def test_cleaning_fails_on_what_is_of_one_machine_or_too_large(tmp_path, text, capsys):
    path = tmp_path / "n.ipynb"
    path.write_text(json.dumps(notebook(source=text)))
    assert clean_notebooks.main([path]) == 1
    assert "n.ipynb" in capsys.readouterr().err


# what the lesson says
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("p", range(1, 9))
@pytest.mark.parametrize(("forward_s", "backward_s"), [(0.02, 0.04), (0.03, 0.03), (0.05, 0.01)])
def test_closed_forms_with_transfer_time(p, forward_s, backward_s):
    times = sl.OpTimes(forward_s=forward_s, backward_s=backward_s)
    for m in (1, 2, 3, 4, 7, 8, 9, 16, 23):
        for c in (0.0, 0.005, 0.1):
            free_s = (m + p - 1) * (forward_s + backward_s)
            closed = {"gpipe": 2 * c * (p - 1), "1f1b": 2 * c * (p - 1 + m - 1 - ceil((m - 1) / p))}
            for name, transfers_s in closed.items():
                trace = sl.simulate(sl.generate(name, p, m), times, link=sl.Link(latency_s=c))
                assert trace.step_s == pytest.approx(free_s + transfers_s)


def executes(path):
    """Whether a lesson's code names torch or realrun, but for the cell that installs; one that does
    not is the same with and without."""
    return any(
        name in "".join(cell["source"])
        for cell in code_cells(path)
        for name in ("torch", "realrun")
        if "install" not in cell["metadata"].get("tags", ())
    )


ALIKE = ["01_pipeline_bubbles.ipynb", "02_schedule_zoo.ipynb", "11_choosing_a_plan.ipynb"]
"""Lessons that read recorded traces as the first lesson does, or that search for minutes beside the one
cell that replays what a pool did."""


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=[pytest.mark.attack] if path.name in ALIKE else [])
        for path in PATHS
        if executes(path)
    ],
    ids=lambda path: path.name,
)
def test_without_torch_the_lesson_runs_on_the_recorded_traces(path, tmp_path, monkeypatch):
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "hide").mkdir()
    (tmp_path / "hide" / "sitecustomize.py").write_text(HIDE_TORCH)
    search = os.pathsep.join(
        filter(None, (str(tmp_path / "hide"), str(ROOT), os.environ.get("PYTHONPATH")))
    )
    monkeypatch.setenv("PYTHONPATH", search)
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")  # nothing is held back
    monkeypatch.setenv("JUPYTER_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    notebook, folder = nbformat.read(path, 4), str(tmp_path / "notebooks")
    NotebookClient(notebook, timeout=PATIENCE_S, resources={"metadata": {"path": folder}}).execute()
    copy = tmp_path / "notebooks" / path.name
    nbformat.write(notebook, copy)
    text = copy.read_text(encoding="utf-8")
    # where it executes
    assert ("torch is not installed here: these" in text) == (
        "find_spec" in text or "LessonPool" in text
    )
    # all but the first lesson's run with a slow link
    assert len(pictures(copy)) >= PICTURES[path.name] - 1

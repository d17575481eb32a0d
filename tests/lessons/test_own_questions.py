"""Questions of one's own: shown, judged and counted as the lessons', from the template and in ten lines."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import ipywidgets as widgets
import pytest
from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output
from ipywidgets.widgets.widget import _instances as LIVE

import simlab as sl
from simlab.apps import (
    CollectiveExplorer,
    MatrixSplit,
    MemoryExplorer,
    PipelineExplorer,
    PlanExplorer,
)
from simlab.lessons import progress
from simlab.views.chart import Chart

TEMPLATE = json.loads((files("simlab.lessons") / "teaching/template.ipynb").read_text("utf-8"))


@pytest.fixture
def shell():
    """A notebook's interpreter."""
    InteractiveShell.clear_instance()
    widgets.Widget.close_all()
    yield InteractiveShell.instance()
    InteractiveShell.clear_instance()


def shown_by(shell, source):
    """What a cell shows, as one text."""
    with capture_output() as captured:
        result = shell.run_cell(source)
    assert result.success, result.error_in_exec
    return captured.stdout + "".join(str(output.data) for output in captured.outputs)


def test_the_template_runs_and_its_question_is_held_back_judged_and_counted(shell):
    cells = ["".join(each["source"]) for each in TEMPLATE["cells"] if each["cell_type"] == "code"]
    shown = [shown_by(shell, cell) for cell in cells]
    (form,) = [
        one for one in LIVE.values() if "simlab-prediction" in getattr(one, "_dom_classes", ())
    ]
    assert "A pipeline of 4 stages" in form.children[0].value
    held = next(at for at, cell in enumerate(cells) if "hold_back" in cell)
    assert "27.3" not in shown[held]
    assert "Hint 1" in shown[-2] and "as a part of 1" in shown[-2] and "m + p - 1" in shown[-2]
    assert "Not written yet" in shown[-1] and progress.load()["exercises"] == {}
    guess = shell.user_ns["guess"]
    guess.commit(**{"idle share of a step with 1F1B": "50", "a step with GPipe is": "as long"})
    (place,) = [each for each in LIVE.values() if isinstance(each, widgets.Output)]
    assert "27.3 %" in str(place.outputs) and "83% too high" in str(place.outputs)
    assert guess.said.value == "Committed."
    attempts = ("(p - 1) / m", "that is idle over"), ("(p - 1) / (m + p - 1)", "Solved")
    for answer, told in attempts:
        assert told in shown_by(shell, f"task.check(lambda p, m: {answer})")
    kept = progress.load()["exercises"]["my-idle"]
    assert (kept["solved"], kept["tries"]) == (True, 2) and kept["first_s"] <= kept["last_s"]
    assert progress.load()["predictions"]["my-idle"]["found"]["a step with GPipe is"] == "as long"


def test_in_a_copy_for_reading_a_text_in_one_language_is_shown_once(shell, monkeypatch):
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    shown = shown_by(
        shell,
        """import simlab as sl
sl.prediction("mine", "多长？", {"步长": "ms"})
sl.exercise("mine", "写一个函数", draw={"a": [1, 2]}, oracle=lambda a: a, hints=["想一想"])""",
    )
    assert [shown.count(text) for text in ("多长？", "写一个函数", "想一想")] == [1, 1, 1]


def test_a_stub_is_no_try_and_one_that_says_so_is_none_either(capsys):
    task = sl.exercise("double", "Twice a.", draw={"a": [1, 2, 3]}, oracle=lambda a: 2 * a)
    assert not task.asked.hints()

    def unwritten(a):
        raise NotImplementedError("yours")

    for stub in (lambda a: None, lambda a: ..., unwritten, lambda b: 2 * b):
        assert not task.asked.judge(stub).counts
        task.check(stub)
    assert "hint" not in task.asked.judge(unwritten).text
    assert progress.load()["exercises"] == {}
    task.check(lambda a: 2 * a)
    task.check(lambda a: a)
    kept = progress.load()["exercises"]["double"]
    assert (kept["solved"], kept["tries"]) == (True, 2)


DRAWN = {"draw": {"a": [1, 2, 3]}, "oracle": lambda a: a}


@pytest.mark.parametrize(
    ("ask", "said"),
    [
        (
            lambda: sl.exercise("x", "?", draw={"a": [1]}, oracle=lambda q: q),
            "oracle ends in TypeError",
        ),
        (lambda: sl.exercise("x", "?", draw={"a": [1]}, oracle=None), "oracle ends in TypeError"),
        (lambda: sl.exercise("x", "?", draw=[1], oracle=len), "draw = .1.: give a table"),
        (
            lambda: sl.exercise("x", "?", draw={"a": [1]}, oracle=abs, hints="Count"),
            "hints = 'Count'",
        ),
        (
            lambda: sl.exercise(
                "x", "?", draw={"a": [1]}, oracle=lambda a: a, mistakes={"m": lambda a: a / 0}
            ),
            "the mistake 'm' answers nothing",
        ),
        (lambda: sl.prediction("x", "?", ["a"]), "fields = .'a'.: give a table"),
        (lambda: sl.prediction("b09", "How long?", {"a": "ms"}), "'b09': a lesson's question"),
        (lambda: sl.prediction("a b", "How long?", {"a": "ms"}), "'a b': give up to 40 letters"),
        (lambda: sl.prediction("mine", " ", {"a": "ms"}), "text = ' ': give what is asked"),
        (lambda: sl.prediction("mine", "How long?", {}), "'mine' has no fields"),
        (lambda: sl.prediction("mine", "Which?", {"a": ["one"]}), "two options or more"),
        (lambda: sl.exercise("w11", "Do.", **DRAWN), "'w11': a lesson's question"),
        (lambda: sl.exercise("mine", "Do.", level=4, **DRAWN), "level = 4: give 1, 2 or 3"),
        (
            lambda: sl.exercise("mine", "Do.", draw={"a": 3}, oracle=lambda a: a),
            "draw: a = 3: give the values",
        ),
        (
            lambda: sl.exercise("mine", "Do.", mistakes={"No.": lambda a: a}, **DRAWN),
            "the mistake 'No.' answers as the oracle",
        ),
        (
            lambda: sl.exercise("mine", "Do.", solution=lambda a: -a, **DRAWN),
            "its own solution is judged wrong",
        ),
    ],
)
def test_what_cannot_be_asked_is_told_to_the_teacher(ask, said):
    with pytest.raises(sl.InputError, match=said):
        ask()


def test_to_import_simlab_imports_no_widgets():
    code = "import sys, simlab; print({'ipywidgets', 'IPython', 'anywidget'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


# objects in explorers
# ---------------------------------------------------------------------------------------------

GPT = replace(sl.load_model("gpt2"), name="my-gpt", hidden=1024, heads=16, kv_heads=16)
HALF = replace(sl.load_cluster("dgx-a100"), gpus_per_node=4)


def backward_first(ranks, microbatches):
    return sl.Program([[sl.Op(rank, *op) for op in ("B0", "F0")] for rank in range(ranks)])


def all_forwards(ranks, microbatches):
    orders = [(kind, m) for kind in "FB" for m in range(microbatches)]
    return sl.Program([[sl.Op(rank, *op) for op in orders] for rank in range(ranks)])


def test_an_own_schedule_stands_beside_ours_and_follows_the_sliders():
    explorer = PipelineExplorer(("gpipe", all_forwards))
    steps = next(each.values for each in explorer.shown.figures if each.label.en == "makespan")
    assert explorer.shown.heads == ["gpipe", "all-forwards"] and steps[0] == steps[1]
    explorer.state = explorer.state | {"microbatches": 3}
    assert explorer.refused is None and "m=3" not in explorer.shown.heads
    explorer.state = explorer.state | {"second": "1f1b"}
    assert explorer.shown.heads == ["gpipe", "1f1b"]
    assert explorer.still() is not None


def test_a_mistake_in_an_own_schedule_is_told_by_its_name():
    with pytest.raises(sl.InputError, match="the schedule 'lambda': ZeroDivisionError"):
        PipelineExplorer((lambda p, m: 1 / 0,))
    with pytest.raises(sl.InputError, match="gives 3: give a Program"):
        PipelineExplorer((lambda p, m: 3,))
    with pytest.raises(sl.InputError):
        PipelineExplorer((backward_first,))


def test_own_models_and_clusters_are_taken_wherever_a_name_is():
    plan = PlanExplorer(GPT, HALF, nodes=2, dp=8, tp=1, pp=1)
    assert (plan.state["model"], plan.state["cluster"]) == ("my-gpt", "dgx-a100 (yours)")
    step = sl.predict(
        GPT, sl.Plan(dp=8, microbatches=16, zero=1, seq=GPT.seq), replace(HALF, nodes=2)
    ).step_s
    assert any(f"{step * 1e3:.1f} ms" in str(each.values) for each in plan.shown.figures)
    assert all(isinstance(each, Chart) for each in plan.charts())
    memory = MemoryExplorer(GPT, cluster=HALF)
    memory.state = memory.state | {"model": "gpt2"}
    assert memory.refused is None
    split = MatrixSplit(model=replace(sl.load_model("llama-3-8b"), name="mine", kv_heads=4))
    assert "kv_heads" in split.shown.idle and "1" in split.shown.figures[2].values
    assert any("dgx-a100" in each.title.en for each in CollectiveExplorer(cluster=HALF).charts())
    with pytest.raises(sl.InputError, match="unknown model"):
        PlanExplorer(HALF)

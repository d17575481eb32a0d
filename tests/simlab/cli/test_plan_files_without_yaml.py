"""What is written as a plan file is read again, with PyYAML and without; texts are texts."""

import json
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab.cli.main import main
from simlab.cli.plan_options import plan_lines, read_plan_file
from simlab.cli.text_files import plain_yaml
from tests.support.simlab_commands import answer, refused

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000, "gated_mlp": True, "bias": False}
LINES = """dp: 2   # replicas
model: {"layers": 2, "hidden": 64, "heads": 4, "vocab": 1000}
sequence_parallel: no
stage_layers: [1, 1]
pp: 2
# a note
expert_load: 1.5
seq:
"""


def without_yaml(monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)


def test_lines_of_a_plan_file_mean_the_same_without_pyyaml(tmp_path, monkeypatch):
    path = tmp_path / "plan.yaml"
    path.write_text(LINES)
    with_it = plain_yaml(path)
    without_yaml(monkeypatch)
    assert plain_yaml(path) == with_it and with_it["stage_layers"] == [1, 1]


@given(st.data())
def test_what_is_written_is_read_without_pyyaml(tmp_path_factory, data):
    fields = {
        "dp": data.draw(st.sampled_from((1, 2, 4))),
        "microbatches": data.draw(st.integers(1, 1000)),
        "recompute": data.draw(st.sampled_from(("none", "full", "selective"))),
        "precision": data.draw(st.sampled_from(("bf16", "fp16", "fp32", "fp8"))),
        "dp_overlap": data.draw(st.booleans()),
        "seq": data.draw(st.sampled_from((None, 512))),
        "stage_layers": data.draw(st.sampled_from(("auto", "even", (3,)))),
    }
    plan = sl.Plan(**fields)
    path = tmp_path_factory.mktemp("plans") / "plan.yaml"
    path.write_text("\n".join(plan_lines(plan, ("dp",))) + "\n")
    with_it = read_plan_file(path)
    with pytest.MonkeyPatch.context() as patch:
        without_yaml(patch)
        assert read_plan_file(path) == with_it
    assert sl.Plan(**with_it) == plan


@pytest.mark.parametrize(
    "line", ["dp: *a", "- 1", "dp:\n  - 1", "dp: 1\ndp: 2", "dp: [1", "'dp': 1"]
)
def test_other_yaml_is_refused_with_what_to_install(tmp_path, monkeypatch, line):
    path = tmp_path / "plan.yaml"
    path.write_text(line)
    without_yaml(monkeypatch)
    with pytest.raises(sl.InputError, match=r"PyYAML|given twice"):
        plain_yaml(path)


@pytest.mark.parametrize(
    ("line", "says"),
    [("out: 5", "out = 5: give a text"), ("backend: yes", "backend = True: give a text"),
     ("checkpoints: 1.5", "checkpoints = 1.5: give a text"), ("compute: [1]", "compute = [1]: give a text"),
     ("cluster: 5", "cluster = 5: give a name or a path"), ("model: 5", "a table of a model's fields"),
     ("schedule: 5", "schedule 5"), ("recompute: no", "recompute = False")],
)  # fmt: skip
def test_a_text_field_takes_text_only(tmp_path, capsys, line, says):
    path = tmp_path / "plan.yaml"
    path.write_text(line)
    run = ["simulate", "--plan", str(path), "--model", "gpt2", "--cluster", "dgx-h100"]
    assert says in refused(capsys, run)


@pytest.mark.parametrize("name", ["mine.yaml", "mine.json"])
def test_a_model_is_given_by_a_file_of_its_fields(tmp_path, capsys, name):
    (tmp_path / name).write_text(json.dumps(SIZES))
    run = ["simulate", "--cluster", "dgx-h100", "--model", str(tmp_path / name)]
    assert answer(capsys, [*run, "--dp", "8"])["plan"]["dp"] == 8
    assert "mine's heads = 4" in refused(capsys, [*run, "--tp", "8", "--dp", "1"])


@pytest.mark.parametrize(
    ("sizes", "says"),
    [(SIZES | {"hidden_size": 1}, "'hidden_size' is no field of a model, did you mean"),
     ({"layers": 2}, "a model needs hidden, heads, vocab"), (SIZES | {"heads": 5}, "hidden = 64")],
)  # fmt: skip
def test_a_file_that_is_no_model_is_one_clear_line(tmp_path, capsys, sizes, says):
    for name in ("mine.yaml", "mine.json"):
        (tmp_path / name).write_text(json.dumps(sizes))
        run = ["simulate", "--cluster", "dgx-h100", "--model", str(tmp_path / name)]
        error = refused(capsys, run)
        assert says in error and name in error


def test_a_model_stands_in_the_plan_file(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(f"dp: 8\nmodel: {json.dumps(SIZES)}\n")
    run = ["simulate", "--cluster", "dgx-h100", "--plan", str(tmp_path / "plan.yaml")]
    assert main(run) == 0
    assert main([*run, "--model", "gpt2"]) == 0, "the command line stands above it"

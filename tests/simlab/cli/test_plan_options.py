"""The options of a plan: one set of names, defaults and meanings, on the command line as in
Python."""

import json
import sys
from argparse import SUPPRESS
from dataclasses import fields
from pathlib import Path

import pytest

import simlab as sl
from simlab.cli.main import main, parser
from simlab.cli.options import value_text
from tests.support.simlab_commands import answer, refused

ON_TWO_NODES = "simulate --model llama-3-8b --cluster dgx-h100 --nodes 2"


@pytest.mark.parametrize("degrees", [{}, {"tp": 4}, {"tp": 4, "pp": 2}, {"cp": 2, "tp": 2}])
def test_what_is_not_given_is_what_a_plan_has_without_it(capsys, degrees):
    """Every field but dp, which the nodes decide."""
    options = " ".join(f"--{name} {value}" for name, value in degrees.items())
    found = answer(capsys, f"{ON_TWO_NODES} {options}")["plan"]
    plan = sl.Plan(dp=found["dp"], **degrees)
    assert found == {field.name: getattr(plan, field.name) for field in fields(plan)}


def test_the_command_line_and_python_give_one_answer(capsys):
    given = "--dp 2 --tp 4 --pp 2 --microbatches 8"
    found = answer(capsys, f"{ON_TWO_NODES} {given}")
    step = sl.predict(
        sl.load_model("llama-3-8b"),
        sl.Plan(dp=2, tp=4, pp=2, microbatches=8),
        sl.load_cluster("dgx-h100", nodes=2),
    )
    assert found["step_s"] == step.step_s
    assert found["memory_bytes"] == step.memory_bytes


# names
# --------------------------------------------------------------------------------------------------

SIMULATE = parser().commands["simulate"]
ACTIONS = {action.dest: action for action in SIMULATE._actions if action.help != SUPPRESS}
OTHER = {
    "dp": 4, "tp": 2, "pp": 2, "cp": 2, "ep": 2, "expert_load": 1.5, "etp": 1,
    "dispatcher": "once-a-node", "ep_overlap": True, "moment_bytes": 2, "fp8_param_gather": True, "fused_experts": True,
    "fp8_head": True, "cuda_graphs": "parts",
    "compiled_loss": True, "optimizer": "sgd",
    "cp_layout": "contiguous", "cp_kind": "all-gather", "zero": 3, "hybrid": 2,
    "microbatch_size": 2, "microbatches": 3, "seq": 512, "schedule": "gpipe", "chunks": 3, "stage_layers": (5, 7),
    "recompute": "full", "precision": "fp32", "sequence_parallel": True, "attention": "flash-2", "library": "torch",
    "fused": False, "dropout": True, "dp_overlap": False, "tp_overlap": "none", "bucket_bytes": 1000, "gradient_bytes": 2,
    "prefetch": 0, "reshard": False, "offload": "optimizer", "offload_to": "nvme", "order": "dp-tp-cp-pp",
}  # fmt: skip
"""{field: a value that is not its default}."""
NEEDS = {"schedule": {"pp": 2}, "chunks": {"pp": 2, "schedule": "interleaved-1f1b"}, "stage_layers": {"pp": 2},
         "sequence_parallel": {"tp": 2}, "hybrid": {"dp": 4, "zero": 1}, "order": {"dp": 2}, "cp_layout": {"cp": 2},
         "cp_kind": {"cp": 2}, "tp_overlap": {"tp": 2}, "prefetch": {"zero": 3}, "reshard": {"zero": 3},
         "offload_to": {"offload": "optimizer"}, "ep": {"dp": 4}, "expert_load": {"dp": 4, "ep": 2},
         "dispatcher": {"dp": 4, "ep": 2}, "ep_overlap": {"dp": 4, "ep": 2, "microbatches": 2},
         "moment_bytes": {"zero": 1}, "fp8_param_gather": {"zero": 1, "precision": "fp8"},
         "compiled_loss": {"library": "torch"}, "fused_experts": {"precision": "fp8-mx"},
         "fp8_head": {"precision": "fp8-mx"},
         "etp": {"dp": 2, "tp": 2, "ep": 2, "sequence_parallel": True}}  # fmt: skip
"""{field: fields that its value needs}."""


def test_every_field_of_a_plan_is_an_option_of_its_name_and_its_default_is_said():
    for field in fields(sl.Plan):
        action = ACTIONS[field.name]
        assert action.option_strings == [f"--{field.name.replace('_', '-')}"]
        assert action.default is None, "what is not given can be told"
        if field.name not in ("dp", "schedule") and field.default is not None:
            assert action.help.endswith(f"(default {value_text(field.default)})")
    assert set(OTHER) == {field.name for field in fields(sl.Plan)}


@pytest.mark.parametrize("name", OTHER)
def test_every_field_reaches_the_plan_from_the_command_line_and_from_a_file(
    name, tmp_path, monkeypatch
):
    given = NEEDS.get(name, {}) | {name: OTHER[name]}
    seen = []
    monkeypatch.setattr(
        "simlab.cli.commands.step.sl.predict", lambda _, plan, __: seen.append(plan)
    )
    options = [
        part
        for field, value in given.items()
        for part in (f"--{field.replace('_', '-')}", value_text(value))
    ]
    on = ["simulate", "--model", "gpt2", "--cluster", "dgx-h100"]
    file = tmp_path / "plan.yaml"
    content = {
        key: list(value) if isinstance(value, tuple) else value for key, value in given.items()
    }
    file.write_text(json.dumps(content | {"model": "gpt2", "cluster": "dgx-h100"}))
    for command in ([*on, *options], ["simulate", "--plan", str(file)]):
        with pytest.raises(AttributeError):  # of the prediction, which is None
            main(command)
    degrees = {"dp": 8} if not {"dp", "tp", "pp", "cp"} & set(given) else {}
    assert seen == [sl.Plan(**degrees | given)] * 2


def test_the_command_line_overrides_the_file(tmp_path, capsys):
    file = tmp_path / "plan.yaml"
    file.write_text("dp: 2\ntp: 2\nmicrobatches: 4\nmodel: gpt2\ncluster: dgx-h100\nsteps: 9\n")
    assert main(["simulate", "--plan", str(file), "--tp", "4", "--json"]) == 0
    out, err = capsys.readouterr()
    plan = json.loads(out)["plan"]
    assert (plan["dp"], plan["tp"], plan["microbatches"]) == (2, 4, 4)
    assert err == "note: only realrun reads steps\n"


@pytest.mark.parametrize("content, says", [
    ("microbatchs: 2", "unknown name 'microbatchs', did you mean 'microbatches'?"),
    ("a: b: c", "is no plain YAML"),
    ("dp: !!python/object/apply:os.getcwd []", "is no plain YAML"),
    ("nodes: many", "nodes = 'many': give a whole number"),
    ("zero: yes", "zero = True: give"),
    ("model: gpt2\ncluster: [1]", "cluster = [1]: give a name or a path"),
])  # fmt: skip
def test_a_plan_file_that_cannot_be_read_costs_one_line(tmp_path, capsys, content, says):
    file = tmp_path / "plan.yaml"
    rest = "" if "cluster" in content else "model: gpt2\ncluster: dgx-h100\n"
    file.write_text(f"{content}\n{rest}")
    assert says in refused(capsys, ["simulate", "--plan", str(file)])


def test_without_yaml_a_plan_file_says_what_it_needs(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "yaml", None)
    monkeypatch.chdir(tmp_path)
    Path("plan.yaml").write_text("stage_layers:\n  - 1\n")
    assert main(["simulate", "--plan", "plan.yaml"]) == 2
    assert capsys.readouterr().err == (
        "error: plan.yaml: '  - 1': without PyYAML only lines 'name: value' are read; pip install pyyaml\n"
    )


def test_an_earlier_name_still_works_and_is_not_shown(capsys):
    times = "simulate --schedule 1f1b --pp 2 --microbatches 4 --forward-ms 1 --backward-ms 2"
    old, new = (answer(capsys, f"{times} {name} 3") for name in ("--p2p-ms", "--link-ms"))
    assert old == new and "--p2p-ms" not in SIMULATE.format_help()

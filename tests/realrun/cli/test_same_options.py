"""An option that both programs have means the same in both: one name, one help, one default."""

from argparse import SUPPRESS
from dataclasses import fields

import pytest

from realrun.cli.jobs import jobs, values
from realrun.cli.main import parser
from realrun.cli.options import BOX, PIPELINE, RUN, SIZES
from realrun.run.job import Job
from simlab import InputError, Plan
from simlab.cli.main import parser as simlab_parser
from simlab.cli.plan_options import CLUSTER_OPTIONS, FIELDS, REALRUN_ONLY, help_text


def shown(one):
    """{destination: action} of the options that a parser shows."""
    return {
        action.dest: action
        for action in one._actions
        if action.help != SUPPRESS and action.option_strings
    }


OURS, SIMULATE = shown(parser()), shown(simlab_parser().commands["simulate"])
BOTH = sorted(OURS.keys() & SIMULATE.keys())
OTHER_WORDS = {
    "dp": "simlab fills the nodes that are given, realrun starts one process a rank",
    "schedule": "realrun runs several one after the other, and none without a flush",
    "precision": "realrun trains in fp32 unless told otherwise",
    "picture": "simlab draws one timeline, realrun those of all runs",
    "seq": "the length of the byte-level GPT's sequences has a default, a catalogue's model its own",
    "layers": "the byte-level GPT has a default",
    "model": "a box has a default",
    "forward_ms": "padded compute has a default, a simulation must be given the time",
    "backward_ms": "as forward_ms",
    "input_grad_ms": "as forward_ms",
    "weight_grad_ms": "as forward_ms",
    "activation_cap": "a simulation also tells where any other program breaks the cap",
    "explain": "a step that was measured is diagnosed, one that is simulated is explained gap by gap",
}
"""{option of both programs: why its help has other words}."""


def test_both_programs_share_the_options_of_plans_clusters_and_op_times():
    assert set(BOTH) >= {*FIELDS, *CLUSTER_OPTIONS, "plan", "csv", "group", "link_ms", "json"}
    assert set(OTHER_WORDS) <= set(BOTH)


@pytest.mark.parametrize("name", BOTH)
def test_an_option_of_both_programs_has_one_name_type_default_and_help(name):
    ours, theirs = OURS[name], SIMULATE[name]
    assert ours.option_strings == theirs.option_strings
    assert (ours.default, ours.nargs, ours.choices) == (
        theirs.default,
        theirs.nargs,
        theirs.choices,
    )
    if name not in FIELDS:  # their readers are made anew for each parser
        assert ours.type in (theirs.type, None) or theirs.type is None
    assert (ours.help != theirs.help) == (name in OTHER_WORDS)


@pytest.mark.parametrize("name", [name for name in FIELDS if name not in OTHER_WORDS])
def test_an_option_of_a_plan_says_what_its_field_says(name):
    assert OURS[name].help == help_text(FIELDS[name])


def test_a_plan_file_may_have_every_option_that_takes_a_value():
    ours = {*PIPELINE, *BOX, *SIZES, *RUN}
    assert ours <= {*FIELDS, *CLUSTER_OPTIONS, *REALRUN_ONLY}


@pytest.mark.parametrize("given", [["--dp", "2"], ["--pp", "2", "--microbatches", "2"]])
def test_what_is_not_given_is_what_python_has_without_it(given):
    (job,) = jobs(values(parser().parse_args(given)))
    wanted = {"dp": 2} if "--dp" in given else {"pp": 2, "microbatches": 2}
    for name in ("steps", "warmup", "timeout_s", "out", "backend", "predict_on", "keep", "box"):
        assert getattr(job, name) == Job.__dataclass_fields__[name].default
    plan = Plan(**wanted, seq=job.sizes["seq"], precision="fp32", dropout=False)
    assert {field.name: getattr(job.executed, field.name) for field in fields(plan)} == {
        field.name: getattr(plan, field.name) for field in fields(plan)
    }


@pytest.mark.parametrize("given, timed", [
    ("--pp 2", True), ("--dp 1 --tp 1 --pp 2", True), ("--pp 2 --schedule zb-v --reference", True), ("", True),
    ("--pp 2 --precision fp32 --backend native --zero 0", True), ("--dp 2", False), ("--pp 2 --zero 1", False),
    ("--pp 2 --cluster dgx-a100", False), ("--pp 2 --precision bf16", False), ("--pp 2 --backend torch", False),
    ("--pp 2 --recompute full", False), ("--pp 2 --predict-on laptop", False), ("--pp 2 --resume", False),
    ("--dp 2 --compute real", False), ("--pp 2 --backend torch --compute real", False), ("--pp 2 --compute real", True),
    ("--pp 2 --cluster dgx-a100 --compute padded", False),
])  # fmt: skip
def test_ops_are_timed_one_by_one_where_the_values_ask_for_a_pipeline_alone(given, timed):
    """What decides is the values: an option that is given its default changes nothing."""
    (job,) = jobs(values(parser().parse_args(given.split())))
    assert (job.programs is not None) == timed


def test_several_schedules_are_several_programs_or_several_plans():
    given = "--pp 2 --microbatches 2 --schedule gpipe,1f1b"
    (job,) = jobs(values(parser().parse_args(given.split())))
    assert list(job.programs) == ["gpipe", "1f1b"]
    plans = jobs(values(parser().parse_args(f"{given} --dp 2".split())))
    assert [job.name for job in plans] == ["dp2-pp2-gpipe", "dp2-pp2-1f1b"]


def test_an_earlier_name_still_works_and_is_not_shown():
    old, new = (
        values(parser().parse_args(f"--pp 2 {name} 3".split()))
        for name in ("--p2p-ms", "--link-ms")
    )
    assert old == new == {"pp": 2, "link_ms": 3.0}
    assert "--p2p-ms" not in parser().format_help() and "--engine" not in parser().format_help()


SEARCHED = """model: llama-3-8b
cluster: dgx-h100
nodes: 1
dp: 2
pp: 2
microbatches: 4
schedule: interleaved-1f1b
chunks: 2
stage_layers: [9, 9, 9, 5]
library: torch
"""
"""What `simlab plan --library torch --out` writes."""


def test_a_searched_plan_of_torchs_library_is_executed_by_torchs_backend(tmp_path, capsys):
    """Its cluster, to whose times nothing is kept, is left out and named; not one that is given."""
    (path := tmp_path / "best.yaml").write_text(SEARCHED)
    given = ["--plan", str(path), "--hidden", "64", "--backend", "torch"]
    (job,) = jobs(values(parser().parse_args(given)))
    assert job.box is None and job.stage_layers == [9, 9, 9, 5] and job.given.library == "torch"
    assert "leaves out the cluster and nodes of" in capsys.readouterr().err
    with pytest.raises(InputError, match="--cluster dgx-h100 with backend torch"):
        jobs(values(parser().parse_args([*given, "--cluster", "dgx-h100"])))


@pytest.mark.parametrize(("more", "layers"), [
    ("--layers 8", [2] * 4), ("--chunks 4", [2] * 8), ("--schedule 1f1b --chunks 1 --layers 32", [16, 16]),
    ("--pp 2 --layers 32", [9, 9, 9, 5]), ("--stage-layers 8,8,8,8", [8] * 4),
])  # fmt: skip
def test_layers_of_stages_of_a_file_go_with_its_stages(tmp_path, capsys, more, layers):
    """Where others are asked for, layers are divided anew, and that is said."""
    (path := tmp_path / "best.yaml").write_text(SEARCHED.replace("library: torch\n", ""))
    (job,) = jobs(values(parser().parse_args(["--plan", str(path), *more.split()])))
    assert job.stage_layers == layers
    anew = layers not in ([9, 9, 9, 5], [8] * 4)
    assert ("note: stage_layers: auto" in capsys.readouterr().err) == anew

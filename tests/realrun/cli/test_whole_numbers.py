"""A whole number that no run can count to is refused before anything starts, wherever it is said."""

import pytest

from realrun import Job
from realrun.cli import main as realrun_main
from realrun.cli.jobs import jobs, values
from simlab.cli import main as simlab_main
from simlab.cli.options import Parser
from simlab.errors import InputError

HUGE = "9" * 20


def whole_number_options():
    """[pytest parameter of (parser of a command, its option)] of both command lines."""
    for top in (simlab_main.parser(), realrun_main.parser()):
        for command in (top, *top.commands.values()):
            for action in command._actions:
                if action.type is int and action.option_strings:
                    yield pytest.param(
                        command,
                        action.option_strings[0],
                        id=f"{command.prog.split('-m ')[-1]} {action.option_strings[0]}",
                    )


@pytest.mark.parametrize("command, flag", list(whole_number_options()))
def test_each_option_is_bounded(capsys, command, flag):
    assert isinstance(command, Parser)
    with pytest.raises(SystemExit) as left:
        command.parse_args([flag, HUGE])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert f"{HUGE}: give at most" in err and flag in err and err.count("\n") == 1


@pytest.mark.parametrize(
    "field, most",
    [("steps", 10**9), ("warmup", 999_999), ("checkpoint_every", 10**9), ("keep", 10**9)],
)
def test_a_job_counts_no_further_than_its_records_do(field, most):
    Job(plan={"dp": 2}, **{field: most})
    with pytest.raises(InputError, match=f"{most + 1} .*: give at most {most:,}"):
        Job(plan={"dp": 2}, **{field: most + 1})


@pytest.mark.parametrize(
    "name", ["steps", "warmup", "keep", "dp", "pp", "microbatches", "microbatch_size", "layers"]
)
def test_a_plan_file_is_bounded_too(tmp_path, name):
    (tmp_path / "plan.yaml").write_text(f"checkpoint_every: 2\n{name}: {HUGE}\n")
    arguments = realrun_main.parser().parse_args(["--plan", str(tmp_path / "plan.yaml")])
    with pytest.raises(InputError, match=r"give at most|at most|more than"):
        jobs(values(arguments))

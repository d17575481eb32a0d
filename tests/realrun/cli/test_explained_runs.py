"""`python -m realrun --explain`: where the time of the median measured step went."""

import json

import pytest
from realrun_processes import CommandLine, one_object
from realrun_schemas import schema

from simlab.cli.main import main as simlab_main

RUNS = {
    "a program": ("--pp", 2, "--microbatches", 2, "--forward-ms", 2),
    "a plan": ("--dp", 2, "--microbatches", 2),
}


@pytest.mark.parametrize("asked", RUNS.values(), ids=RUNS)
def test_a_run_is_explained_as_simlab_explains_its_folder(tmp_path, capsys, asked):
    argv = (*asked, "--steps", 3, "--explain", "--json", "--out", "here")
    status, out, err = CommandLine(*argv, cwd=tmp_path, temporary=tmp_path / "t").end()
    assert status == 0, err
    answer = one_object(out)
    schema("run").validate(answer)
    (run,) = answer["runs"]
    assert simlab_main(["why", str(tmp_path / "here"), "--json"]) == 0
    assert run["why"] == json.loads(capsys.readouterr().out)["diagnosis"]
    assert run["why"]["step_s"] == pytest.approx(run["measured_step_s"], rel=0.2)


def test_the_text_of_a_run_goes_on_with_its_diagnosis(tmp_path):
    argv = ("--pp", 2, "--microbatches", 2, "--forward-ms", 2, "--steps", 3, "--explain")
    status, out, err = CommandLine(*argv, cwd=tmp_path, temporary=tmp_path / "t").end()
    assert status == 0, err
    for line in ("bottleneck: ", "mean of ranks: ", "critical path: ", "twice as fast saves: "):
        assert f"\n{line}" in out

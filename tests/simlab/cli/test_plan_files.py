"""Plan files that say nonsense: one short line and exit status 2, from both programs."""

import pytest

from realrun.cli.main import main as realrun_main
from simlab.cli.main import main as simlab_main

BOMB = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 40)
)
FILES = {
    "infinite": ("pp: .inf\n", "pp = inf"),
    "negative": ("pp: -3\n", "-3"),
    "not a number": ("microbatches: .nan\n", "microbatches = nan"),
    "5,000 digits": (f"pp: {'9' * 5000}\n", "is no plain YAML: Exceeds the limit"),
    "4,000 digits": (f"pp: {'9' * 4000}\n", "pp = a number of 4000 digits"),
    "a text": ("pp: abc\n", "'abc'"),
    "a long text": (f"pp: {'x' * 10**5}\n", "pp = 'xxxxx"),
    "a long model": (f"model: {'x' * 4000}\ncluster: dgx-h100\n", "unknown model 'xxxxx"),
    "a list": ("pp: [1, 2]\n", "[1, 2]"),
    "a list of lists": ("stage_layers: [[1], [2]]\n", "stage_layers = [[1], [2]]"),
    "a mapping": ("pp: {a: 1}\n", "pp = {'a': 1}"),
    "deep nesting": ("pp: " + "[" * 10**4, "is nested too deeply"),
    "an alias bomb": (BOMB + "pp: *a39\n", "*a0: aliases are not taken"),
    "an alias bomb in a field": (
        "pp: &a0 [x, x]\n"
        + "".join(
            f"{name}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n"
            for n, name in enumerate(("tp", "dp", "cp", "seq", "zero", "chunks"), 1)
        ),
        "*a0: aliases are not taken",
    ),
    "a date": ("pp: 2020-01-01\n", "pp = datetime.date(2020, 1, 1)"),
    "a number as a name": (f"{'9' * 100}: 1\n", "unknown name a number of 100 digits"),
    "no value": ("- 1\n", "holds list, not 'name: value' lines"),
    "a name twice": ("pp: 2\npp: 4\n", "'pp' is given twice"),
    "two megabytes": ("# " + "x" * 2 * 10**6 + "\npp: 2\n", "is longer than 1,000,000 bytes"),
    "fractional nodes": ("nodes: 1.5\n", "nodes = 1.5: give a whole number"),
}


@pytest.mark.parametrize("program", ["simlab", "realrun"])
@pytest.mark.parametrize("name", FILES)
def test_a_file_of_nonsense_is_refused_in_one_short_line(name, program, tmp_path, capsys):
    text, says = FILES[name]
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    if program == "simlab":
        more = [] if "model" in text else ["--model", "gpt2", "--cluster", "dgx-h100"]
        status = simlab_main(["simulate", "--plan", str(path), *more])
    else:
        status = realrun_main(["--plan", str(path), "--out", str(tmp_path / "out")])
    out, err = capsys.readouterr()
    assert status == 2 and not out
    lines = [line for line in err.splitlines() if line]
    assert len(lines) == 1 and says in err, err
    assert len(err) < 1200 and "x" * 61 not in err


@pytest.mark.parametrize("main", [simlab_main, realrun_main])
def test_an_empty_path_is_no_plan_file(main, capsys):
    words = ["simulate"] if main is simlab_main else []
    assert main([*words, "--plan="]) == 2
    assert "--plan '': give the path of a plan file" in capsys.readouterr().err


def test_a_folder_that_is_no_text_is_refused(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("pp: 2\nout: 5\n")
    assert realrun_main(["--plan", str(path)]) == 2
    assert "out = 5: give a text, in quotes" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("written", "field"),
    [
        ("tensor_parallel", "tp"),
        ("tensor_model_parallel_size", "tp"),
        ("pipeline_parallel_size", "pp"),
        ("data_parallel", "dp"),
        ("context_parallel_size", "cp"),
        ("expert_parallel", "ep"),
    ],
)
def test_a_degree_written_out_is_known_as_its_field(tmp_path, capsys, written, field):
    (tmp_path / "plan.yaml").write_text(f"{written}: 2\n")
    assert simlab_main(["simulate", "--plan", str(tmp_path / "plan.yaml")]) == 2
    assert f"unknown name '{written}', did you mean '{field}'?" in capsys.readouterr().err

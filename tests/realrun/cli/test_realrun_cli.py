"""`python -m realrun` as typed: reports, files, and one clear line for every mistake."""

import json
import re
import socket

import pytest
from realrun_processes import ROOT, CommandLine, one_object

import simlab
from realrun.cli.main import main
from realrun.cli.resumed import going_on
from simlab.program import Program
from simlab.trace import Trace
from simlab.training.calibration import Calibration

SCHEDULES = ("--schedule", "gpipe,1f1b")
SHORT = ("--pp", 2, "--microbatches", 4, "--forward-ms", 3, *SCHEDULES)
FIELDS = {
    "name", "schedule", "pp", "microbatches", "compute", "device", "predicted_step_s", "measured_step_s", "steps_s", "error",
    "bubble_predicted", "bubble_measured", "gradient_error", "peak_live_microbatches_predicted", "peak_live_microbatches_measured",
}  # fmt: skip


# a run
# ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def strict(tmp_path_factory):
    """(folder, status, stdout, stderr) of a run with --json that demands the impossible of the
    prediction."""
    folder = tmp_path_factory.mktemp("strict")
    run = CommandLine(
        *SHORT,
        "--json",
        "--max-error",
        0.0001,
        "--out",
        "here",
        cwd=folder,
        temporary=tmp_path_factory.mktemp("t"),
    )
    yield folder, *run.end()
    assert run.gone() and not run.temporary_files()


def test_stdout_is_exactly_one_json_object_with_every_figure_of_every_schedule(strict):
    _, _, out, _ = strict
    answer = one_object(out)
    assert [run["schedule"] for run in answer["runs"]] == ["gpipe", "1f1b"]
    for run in answer["runs"]:
        assert set(run) >= FIELDS
        assert run["measured_step_s"] == sorted(run["steps_s"])[2] and len(run["steps_s"]) == 5
        assert (run["pp"], run["microbatches"], run["compute"]) == (2, 4, "padded")
        assert run["device"].startswith("cpu")
        assert run["gradient_error"] <= 1e-10
        assert run["error"] == pytest.approx(run["predicted_step_s"] / run["measured_step_s"] - 1)
        # a step has m + p - 1 = 5 forwards and backwards one after the other, of 3 and 6 ms:
        # nothing is faster
        assert min(run["steps_s"]) >= 5 * 0.009 and run["predicted_step_s"] >= 5 * 0.009
    peaks = {
        run["schedule"]: (
            run["peak_live_microbatches_predicted"],
            run["peak_live_microbatches_measured"],
        )
        for run in answer["runs"]
    }
    assert peaks == {"gpipe": ([4, 4], [4, 4]), "1f1b": ([2, 1], [2, 1])}


def test_the_keys_of_a_run_are_those_of_the_page(strict):
    page = (ROOT / "docs" / "command-line.md").read_text(encoding="utf-8")
    every, of_a_run = page.split("### JSON of realrun")[1].split("| key of a run |")
    answer = one_object(strict[2])
    assert set(answer) == keys_of(every)
    for run in answer["runs"]:
        assert set(run) == keys_of(of_a_run) - {"time_scale", "overhead_s", "why"}


def keys_of(table):
    """The keys in the first column of a table of a page."""
    rows = re.findall(r"^\| (`[^|]+) \|", table, re.M)
    return {key for row in rows for key in re.findall(r"`(\w+)`", row)}


def test_a_prediction_further_off_than_asked_fails_with_status_1_naming_run_and_error(strict):
    _, status, out, err = strict
    assert status == 1
    answer = one_object(out)
    assert answer["ok"] is False and len(answer["failed"]) == 2
    for line, run in zip(answer["failed"], answer["runs"]):
        assert (
            line
            == f"{run['schedule']}: the predicted step is {run['error']:+.1%} off, more than 0.0%"
        )
        assert f"failed: {line}\n" in err


def test_nothing_but_progress_and_failed_checks_is_said_on_stderr(strict):
    """No warning of torch, gloo, matplotlib or Python that a newcomer would have to understand."""
    progress = [line for line in strict[3].splitlines() if not line.startswith("failed: ")]
    assert progress == [
        "starting 2 processes",
        "calibrating: each op kind and each link alone",
        "gpipe: gradients against one process",
        "gpipe: 1 warm-up and 5 measured steps",
        "1f1b: gradients against one process",
        "1f1b: 1 warm-up and 5 measured steps",
        "drawing the timelines, writing the report",
    ]


def test_a_run_writes_calibration_prediction_measurement_pictures_and_a_page_that_needs_nothing_else(
    strict,
):
    folder = strict[0] / "here"
    calibration = Calibration.load(folder / "calibration.json")
    for name in ("gpipe", "1f1b"):
        predicted, measured = (
            Trace.load(folder / name / f"{kind}.json") for kind in ("predicted", "measured")
        )
        program = Program.from_csv(folder / name / "program.csv")
        assert calibration.predict(program).step_s == predicted.step_s  # from the calibration alone
        assert Program.from_trace(measured).ranks == program.ranks
        steps = sorted(
            Trace.load(folder / name / f"measured-step-{step}.json").step_s for step in range(5)
        )
        assert measured.step_s == steps[2]
        assert (folder / name / "timeline.png").read_bytes().startswith(b"\x89PNG")
        for kind in ("predicted", "measured"):
            assert json.loads((folder / name / f"{kind}-perfetto.json").read_text())
    page = (folder / "report.html").read_text()
    assert (
        "gpipe" in page
        and "1f1b" in page
        and not re.search(r"<(script|link|img|iframe)[^>]*(src|href)=[\"']?(https?:)?//", page)
    )
    assert "plotly" not in page and page.count("<div data-timeline=") == 2
    assert not list(folder.rglob("*.records"))


def test_text_on_stdout_for_people_and_status_0(command):
    status, out, err = command(
        *SHORT,
        "--schedule",
        "afab",
        "--steps",
        1,
        "--warmup",
        0,
        "--link-ms",
        4,
        "--max-error",
        1000,
    ).end()
    assert status == 0 and "failed" not in err
    assert out.startswith(
        "gpipe: 2 ranks, 4 microbatches, 4 layers, padded compute (op times were given),"
    )
    for word in ("step", "bubble", "one F", "one B", "held", "pp", "memory", "gradients", "loss"):
        assert re.search(rf"^  {word} ", out, re.MULTILINE), word
    assert "report: out/report.html" in out


def test_a_csv_of_ones_own_runs_under_a_folder_of_its_name_made_safe(command, tmp_path):
    (tmp_path / "my plan.v2.csv").write_bytes(
        b"\xef\xbb\xbf0F0,0F1,0B1,0B0\r\n1F0,1F1,1B1,1B0\r\n"
    )  # as a spreadsheet saves it
    status, out, _ = command(
        "--csv",
        "my plan.v2.csv",
        "--compute",
        "real",
        "--hidden",
        32,
        "--heads",
        2,
        "--steps",
        2,
        "--json",
    ).end()
    answer = one_object(out)
    assert status == 0 and answer["ok"] and answer["runs"][0]["compute"] == "real"
    assert Program.from_trace(
        Trace.load(tmp_path / "out" / "my_plan_v2" / "measured.json")
    ).ranks == (Program.from_text("0F0 0F1 0B1 0B0\n1F0 1F1 1B1 1B0").ranks)


def test_a_terminal_that_knows_only_ascii_gets_the_report_too(command, tmp_path):
    """The program's name stands in the report."""
    (tmp_path / "µ流.csv").write_text("0F0,0B0\n", encoding="utf-8")
    run = command(
        "--csv", "µ流.csv", "--forward-ms", 0.001, "--steps", 1, "--hidden", 4, "--heads", 1, "--seq", 2,
        environment={"PYTHONIOENCODING": "ascii"},
    )  # fmt: skip
    status, out, err = run.end()
    assert (
        status == 0
        and "Traceback" not in err
        and out.startswith("u\\u6d41: 1 ranks, 1 microbatches")
    ), out + err


def test_a_reader_that_goes_away_is_no_reason_for_a_traceback(command):
    run = command(
        "--pp", 1, "--microbatches", 1, "--forward-ms", 2, "--steps", 1, "--schedule", "gpipe"
    )
    run.process.stdout.close()
    err = run.process.stderr.read()
    assert run.process.wait() == 1 and "Traceback" not in err and "BrokenPipe" not in err


# mistakes
# ---------------------------------------------------------------------------------------------------

OK = ("--pp", 2, "--microbatches", 4, *SCHEDULES)
MISTAKES = {
    "no microbatches": (
        ("--pp", 2, "--microbatches", 0),
        "0 microbatches: give a whole number of at least 1",
    ),
    "no stages": (
        ("--pp", 0, "--microbatches", 4),
        "0 pipeline stages (pp): give a whole number of at least 1",
    ),
    "more processes than memory": (
        ("--pp", 4000, "--microbatches", 1),
        "4000 processes need about ",
    ),
    "a mistyped number": (("--pp", 100_000, "--microbatches", 1), "100000 processes need about "),
    "more microbatches than memory": (
        (*OK, "--device", "cpu", "--microbatch-size", 10**7),
        "2 processes need about ",
    ),
    "a link back in time": (
        (*OK, "--link-ms", -1),
        "link latency -0.001 s: give a finite time, 0 or more",
    ),
    "a link for ever": (
        (*OK, "--link-ms", 1e9),
        "a message takes 1e+06 s, but a run in which nothing moves for 60 s is given up",
    ),
    "a link of no number": ((*OK, "--link-ms", "nan", "--device", "cpu"), "link latency nan s"),
    "a link of no bandwidth": (
        (*OK, "--link-gbps", 0),
        "link bandwidth 0.0 bytes/s: give a number above 0",
    ),
    "a forward of no number": (
        (*OK, "--forward-ms", "nan"),
        "forward time nan s: give a finite time above 0",
    ),
    "a backward of no time": (
        (*OK, "--backward-ms", 0),
        "backward time 0.0 s: give a finite time above 0",
    ),
    "a forward for ever": (
        (*OK, "--forward-ms", 1e8),
        "a forward takes 100000 s, but a run in which nothing moves for 60 s",
    ),
    "a pace for real compute": (
        (*OK, "--forward-ms", 5, "--compute", "real"),
        "--forward-ms set the pace of padded compute, but compute is real",
    ),
    "an unknown schedule": (
        (*OK, "--schedule", "1f2b"),
        "unknown schedule '1f2b', did you mean '1f1b'? there is 1f1b, afab, dualpipe, dualpipe-v",
    ),
    "no schedule": ((*OK, "--schedule", ""), "unknown schedule ''"),
    "a schedule twice": (
        (*OK, "--schedule", "gpipe,gpipe", "--device", "cpu"),
        "two programs called 'gpipe'",
    ),
    "a schedule and its alias": (
        (*OK, "--schedule", "gpipe,afab", "--device", "cpu"),
        "two programs called 'gpipe'",
    ),
    "a missing file": (
        ("--csv", "missing.csv"),
        "cannot read 'missing.csv': No such file or directory",
    ),
    "a folder as file": (("--csv", "/"), "cannot read '/': Is a directory"),
    "no file": (("--csv", ""), "cannot read '.': Is a directory"),
    "bytes of no text": (("--csv", "bytes.csv"), "cannot read 'bytes.csv': it is no text"),
    "words for ops": (
        ("--csv", "words.csv"),
        "words.csv: rank 0, cell 1: 'hello' is not an op: an op reads like 2F0",
    ),
    "an empty file": (("--csv", "empty.csv"), "empty.csv: no op in it"),
    "a rank without ops": (
        ("--csv", "gap.csv", "--device", "cpu"),
        "gap: rank 1 has no ops; every rank must run at least one stage",
    ),
    "chunks for a schedule without": ((*OK, "--chunks", 2), "--chunks 2: of no use to gpipe, 1f1b"),
    "a part longer than the whole": (
        (*OK, "--forward-ms", 2, "--input-grad-ms", 5),
        "input-gradient time 0.005 s: give one above 0 and",
    ),
    "a schedule for a file": (
        ("--csv", "good.csv", "--schedule", ""),
        "--csv brings its own order, stages and microbatches",
    ),
    "fewer layers than stages": (
        (*OK, "--layers", 1, "--device", "cpu"),
        "1 layers cannot be cut into 2 stages",
    ),
    "heads that do not fit": (
        (*OK, "--hidden", 10, "--heads", 3, "--device", "cpu"),
        "hidden = 10 is not divisible by heads = 3",
    ),
    "no heads": ((*OK, "--heads", 0, "--device", "cpu"), "heads = 0: give at least 1"),
    "more text than there is": (
        (*OK, "--seq", 800_000, "--device", "cpu"),
        "seq = 800000: give at most 65536",
    ),
    "a file as folder": (
        (*OK, "--device", "cpu", "--out", "good.csv"),
        "cannot write 'good.csv': File exists; --out names the folder",
    ),
    "a folder in a file": (
        (*OK, "--device", "cpu", "--out", "good.csv/x"),
        "cannot write 'good.csv/x': Not a directory",
    ),
    "a folder where none can be": (
        (*OK, "--device", "cpu", "--out", "/proc/none"),
        "cannot write '/proc/none': No such file or directory",
    ),
    "a folder in the way": (
        (*OK, "--device", "cpu", "--out", "taken"),
        "cannot write 'taken/report.html': Is a directory",
    ),
    "no steps": ((*OK, "--steps", 0, "--device", "cpu"), "0 steps: give at least 1"),
    "fewer than no warm-up": (
        (*OK, "--warmup", -1, "--device", "cpu"),
        "-1 warmup: give at least 0",
    ),
    "no patience": (
        (*OK, "--timeout", 0, "--device", "cpu"),
        "timeout 0 s: give a time from 0.001 to 1e+06 s",
    ),
    "patience for ever": (
        ("--dp", 2, "--timeout", 1e300),
        "timeout 1e+300 s: give a time from 0.001 to 1e+06 s",
    ),
    "patience of no time that can be waited": (
        ("--dp", 2, "--timeout", 1e-300),
        "timeout 1e-300 s: give a time from 0.001 to 1e+06 s",
    ),
    "a time that runs back": (
        ("--dp", 2, "--cluster", "dgx-a100", "--time-scale", -1),
        "time scale -1: give a number from 0.001 to 1e+09, or leave it out",
    ),
    "a time that stands": (
        ("--dp", 2, "--cluster", "dgx-a100", "--time-scale", 0),
        "time scale 0: give a number from 0.001 to 1e+09, or leave it out",
    ),
    "a time of no number": (
        ("--dp", 2, "--cluster", "dgx-a100", "--time-scale", "nan"),
        "time scale nan: give a number from 0.001 to 1e+09, or leave it out",
    ),
    "a time that outlives the calendar": (
        ("--dp", 2, "--cluster", "dgx-a100", "--time-scale", 1e300),
        "time scale 1e+300: give a number from 0.001 to 1e+09, or leave it out",
    ),
    "a fault on a rank of too many digits": (
        ("--dp", 2, "--inject", f"hang@{'9' * 5000}:0"),
        "fault 'hang@9999",
    ),
    "a fault in a step of too many digits": (
        ("--dp", 2, "--inject", f"hang@0:{'9' * 5000}"),
        "fault 'hang@0:9999",
    ),
    "a port that is none": (
        (*OK, "--port", 70_000, "--device", "cpu"),
        "port 70000 on 127.0.0.1: there are ports 0 to 65535",
    ),
    "an error of no number": (
        (*OK, "--max-error", "nan"),
        "--max-error nan: give a percentage, 0 or more",
    ),
    "an error below none": (
        (*OK, "--max-error", -1),
        "--max-error -1.0: give a percentage, 0 or more",
    ),
    "a number that is none": (
        ("--pp", "two"),
        "'two' pipeline stages (pp): give a whole number of at least 1",
    ),
    "an unknown option": (
        (*OK, "--micro-batches", 4),
        "unrecognized argument '--micro-batches', did you mean '--microbatches'?",
    ),
    "an option of an earlier release": (
        (*OK, "--slow-down", 4),
        "unrecognized argument '--slow-down'",
    ),
    "an unknown command": (
        ("measur",),
        "unknown command 'measur', did you mean 'measure'? there is measure",
    ),
    "a plan file without its option": (
        ("best.yaml",),
        "unknown command 'best.yaml': a plan file is given as --plan best.yaml; there is measure",
    ),
    "an unknown option of a command": (
        ("measure", "--quik"),
        "unrecognized argument '--quik', did you mean '--quick'?",
    ),
    "an unknown value": ((*OK, "--device", "gpu"), "argument --device: unknown value 'gpu'"),
    "an unknown mode": (
        (*OK, "--compute", "reel"),
        "--compute 'reel', did you mean 'real'? there is padded, real",
    ),
    "an unknown back-end": (
        ("--dp", 2, "--backend", "toch"),
        "backend 'toch', did you mean 'torch'? there is native, torch",
    ),
    "op times of a plan": (
        ("--dp", 2, "--forward-ms", 3),
        "--forward-ms 3 goes with a pipeline whose ops are timed one by one: leave it out, or leave out --dp 2",
    ),
    "a program and a checkpoint": (
        ("--csv", "good.csv", "--checkpoint-every", 3),
        "--csv good.csv goes with a pipeline whose ops are timed one by one: leave it out, or leave out --checkpoint-every 3",
    ),
    "parts that are not the whole": (
        (*OK, "--backward-ms", 5, "--input-grad-ms", 2, "--weight-grad-ms", 2),
        "--backward-ms 5 is not the sum of --input-grad-ms 2 and --weight-grad-ms 2: leave one of the three out",
    ),
    "checkpoints that are not written": (
        ("--dp", 2, "--keep", 3),
        "--keep 3 without checkpoints: give --checkpoint-every or --resume",
    ),
    "a schedule of a plan twice": (
        ("--dp", 2, "--pp", 2, "--schedule", "1f1b,1f1b"),
        "--schedule 1f1b,1f1b: two runs of one name; leave one out",
    ),
    "an error of no prediction": (
        ("--dp", 2, "--max-error", 5),
        "--max-error 5 for a run that is not predicted",
    ),
    "a GPU that is not there": (
        (*OK, "--device", "cuda"),
        "--device cuda: 2 ranks need 2 CUDA devices, this machine has 0",
    ),
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with files as people have them."""
    folder = tmp_path_factory.mktemp("desk")
    (folder / "bytes.csv").write_bytes(bytes(range(128, 256)))
    (folder / "words.csv").write_text("hello,world\n")
    (folder / "empty.csv").write_text("\n\n")
    (folder / "gap.csv").write_text("0F0,0B0\n,\n1F0,1B0\n")
    (folder / "good.csv").write_text("0F0,0B0\n")
    (folder / "taken" / "report.html").mkdir(parents=True)
    return folder


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_costs_one_line_on_stderr_and_status_2_before_anything_starts(
    capsys, monkeypatch, desk, mistake
):
    monkeypatch.chdir(desk)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    arguments, message = MISTAKES[mistake]
    status = answered([*map(str, arguments), "--json"])
    out, err = capsys.readouterr()
    assert status == 2 and not one_object(out)["ok"], err
    err = err.replace(f"{desk}/", "")  # folders are named in full
    assert err.startswith(f"error: {message}") and len(err.splitlines()) == 1, err


def answered(arguments):
    """The exit status of the command line, in this process."""
    try:
        return main(arguments)
    except SystemExit as ended:  # as argparse ends
        return ended.code


def test_a_port_in_use_costs_one_line_and_status_2(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, out, err = command(*SHORT, "--port", port).end()
    assert (status, out) == (2, "")
    assert err.splitlines() == [
        f"error: port {port} on 127.0.0.1: Address already in use; give another one, or 0 for a free one",
    ]


def test_a_folder_for_temporary_files_with_too_long_a_path_costs_one_line_and_status_2(
    command, tmp_path
):
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    status, out, err = command(*SHORT, environment={"TMPDIR": str(folder)}).end()
    assert (status, out) == (2, "")
    assert err.splitlines()[1:] == [
        f"error: cannot start processes: AF_UNIX path too long; TMPDIR is {str(folder)!r}: try a short one, such as /tmp"
    ]


def test_an_invalid_program_fails_a_check_with_status_1_and_says_how_to_run_it_all_the_same(
    capsys, monkeypatch, desk
):
    monkeypatch.chdir(desk)
    (desk / "hole.csv").write_text("0F0,0B0\n2F0,2B0\n")
    status = main(["--csv", "hole.csv", "--json", "--device", "cpu"])
    out, err = capsys.readouterr()
    assert status == 1
    answer = one_object(out)
    assert answer["ok"] is False and answer["partial"] == []
    assert err == f"failed: {answer['error']} (--no-check runs it all the same)\n"


@pytest.mark.parametrize("asked", [["--help"], [], ["measure", "--help"]])
def test_help_fits_80_columns_and_says_the_statuses(capsys, monkeypatch, asked):
    monkeypatch.setenv("COLUMNS", "80")
    assert answered(asked) == 0
    out, err = capsys.readouterr()
    assert err == "" and max(map(len, out.splitlines())) <= 80
    wanted = () if asked[:1] == ["measure"] else ("interleaved-1f1b", "afab (= gpipe)", "measure")
    for word in (*wanted, "exit status: 0 done, 1 "):
        assert word in " ".join(out.split())


def test_the_version_is_simlabs(capsys):
    assert answered(["--version"]) == 0
    assert capsys.readouterr().out == f"realrun {simlab.__version__}\n"


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_a_shell_completes_options_and_the_command(capsys, shell):
    pytest.importorskip("shtab")
    assert answered(["--print-completion", shell]) == 0
    out = capsys.readouterr().out
    assert "--time-scale" in out and "measure" in out and "--engine" not in out


@pytest.mark.parametrize("absent", [("torch",), ("torch", "matplotlib")])
def test_a_missing_library_is_named_with_the_way_to_get_it(capsys, monkeypatch, absent):
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda name: None if name in absent else object()
    )
    assert main(["--pp", "2", "--microbatches", "2"]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err == f"error: {' and '.join(absent)} not installed: pip install {' '.join(absent)}\n"
    )


def test_the_command_that_goes_on_has_no_fault_put_in():
    said = going_on(["--dp", "2", "--inject", "kill@1:3", "--checkpoint-every", "2"])
    assert said.endswith("--dp 2 --checkpoint-every 2 --resume")

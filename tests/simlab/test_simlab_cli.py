import json
import subprocess
import sys
from pathlib import Path

import pytest

import simlab
from simlab import Program, Trace
from simlab.__main__ import main

ROOT = Path(simlab.__file__).parents[1]
SIMULATE = "simulate --schedule 1f1b --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40"
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"


def run(capsys, command):
    """(exit status, stdout, stderr) of `python -m simlab COMMAND`, in this process."""
    status = main(command.split())
    return status, *capsys.readouterr()


def one_object(text):
    """The only JSON object in `text`, which is one line."""
    assert text.endswith("\n") and len(text.splitlines()) == 1
    return json.loads(text)


def in_a_shell(command, **options):
    return subprocess.run([sys.executable, "-m", "simlab", *command.split()], cwd=ROOT, capture_output=True, text=True, **options)


# answers --------------------------------------------------------------------------------------------------


def test_schedule_prints_a_row_per_rank(capsys):
    assert run(capsys, "schedule gpipe --pp 2 --microbatches 2") == (0, "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n", "")


def test_schedule_json_is_one_object(capsys):
    status, out, err = run(capsys, "schedule 1f1b --pp 2 --microbatches 1 --json")
    expected = {"schedule": "1f1b", "stages": 2, "microbatches": 1, "ranks": [["0F0", "0B0"], ["1F0", "1B0"]]}
    assert (status, one_object(out), err) == (0, expected, "")


def test_schedule_writes_a_csv_that_check_accepts(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    assert run(capsys, f"schedule 1f1b --pp 3 --microbatches 5 --csv {path}")[0] == 0
    assert Program.from_csv(path).ranks == simlab.generate("1f1b", 3, 5).ranks
    assert run(capsys, f"check {path}") == (0, "valid: 3 ranks, 3 stages, 5 microbatches, 30 ops\n", "")
    status, out, _ = run(capsys, f"check {path} --json")
    assert (status, one_object(out)) == (0, {"ok": True, "ranks": 3, "stages": 3, "microbatches": 5, "ops": 30})


def test_simulate_json_has_the_documented_figures(capsys):
    status, out, err = run(capsys, f"{SIMULATE} --json")
    result = one_object(out)
    assert (status, err) == (0, "")
    assert result["step_s"] == pytest.approx(0.66)
    assert result["bubble"] == pytest.approx({"idle_over_ideal": 3 / 8, "idle_over_makespan": 3 / 11, "longest_stage": 3 / 11})
    assert result["peak_live_microbatches"] == [4, 3, 2, 1]
    assert (result["ops"], result["messages"], result["stages"], result["microbatches"]) == (64, 48, 4, 8)
    assert result["idle_s"] == pytest.approx([0.18] * 4)


def test_explain_names_what_idle_time_waited_for_and_the_critical_path(capsys, tmp_path):
    picture = tmp_path / "explained.png"
    result = one_object(run(capsys, f"{SIMULATE} --p2p-ms 5 --explain --json --picture {picture}")[1])
    assert sum(gap["end_s"] - gap["start_s"] for gap in result["gaps"]) == pytest.approx(sum(result["idle_s"]))
    assert result["gaps"][0]["text"] == "rank 0 idle 150.0 ms from 80.0 ms: 0B0 waited for 1B0 on rank 1 (computing)"
    assert result["critical_path"][:3] == ["compute 0F0", "send 0F0", "compute 1F0"] and result["critical_path"][-1] == "compute 0B7"
    assert picture.stat().st_size > 10_000
    assert "critical path 0F0 → 1F0 → 2F0 → 3F0 → 3B0" in " ".join(run(capsys, f"{SIMULATE} --p2p-ms 5 --explain")[1].split())


def test_memory_prints_the_states_of_every_stage_and_json_those_of_one(capsys):
    result = one_object(run(capsys, "memory --params 7.5B --dp 64 --zero 2 --json")[1])
    assert result["total_bytes"] == 16.640625e9 and result["bytes"]["parameters"] == 15e9
    assert [line.split(":")[1].split("=")[0].strip() for line in run(capsys, "memory --params 7.5B --dp 64")[1].splitlines()[2:]] == [
        "120 GB", "31.41 GB", "16.64 GB", "1.875 GB",
    ]  # fmt: skip
    assert run(capsys, "memory --params lots")[0] == 2


def test_simulate_takes_a_message_time(capsys):
    assert one_object(run(capsys, f"{SIMULATE} --p2p-ms 5 --json")[1])["step_s"] == pytest.approx(0.740)


def test_simulate_prints_what_a_person_reads(capsys):
    status, out, _ = run(capsys, SIMULATE)
    assert (status, [" ".join(line.split()) for line in out.splitlines()]) == (0, [
        "1f1b: 4 stages, 8 microbatches, 64 ops, 48 messages",
        "step 660.0 ms",
        "bubble / ideal time 0.3750 (p-1)/m for GPipe and 1F1B with free communication",
        "bubble / makespan 0.2727 (p-1)/(m+p-1) likewise",
        "bubble of longest stage 0.2727",
        "peak live microbatches [4, 3, 2, 1]",
        "peak activations [4.0, 3.0, 2.0, 1.0] of a rank's share of a microbatch",
    ])  # fmt: skip


def test_simulate_of_a_csv_equals_simulate_of_its_schedule(capsys, tmp_path):
    path = tmp_path / "1f1b.csv"
    simlab.generate("1f1b", 4, 8).to_csv(path)
    from_csv = run(capsys, f"simulate --csv {path} --forward-ms 20 --backward-ms 40 --json")
    assert from_csv == run(capsys, f"{SIMULATE} --json")


def test_simulate_writes_trace_picture_and_perfetto_file(capsys, tmp_path):
    status, out, err = run(capsys, f"{SIMULATE} --json --trace {tmp_path}/t.json --picture {tmp_path}/p.png --perfetto {tmp_path}/c.json")
    assert status == 0 and one_object(out)
    assert sorted(err.splitlines()) == sorted(f"wrote {tmp_path}/{name}" for name in ("t.json", "p.png", "c.json"))
    assert Trace.load(tmp_path / "t.json").step_s == pytest.approx(0.66)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "c.json").read_text())["traceEvents"]


# a program that breaks a rule: status 1 -------------------------------------------------------------------

WITH_TIMES = "--forward-ms 1 --backward-ms 2"


@pytest.mark.parametrize("command", ["check {}", f"simulate --csv {{}} {WITH_TIMES}"])
@pytest.mark.parametrize("content, reason", [
    ("0F0,0B0\n1F0\n", "rank 0: 1B0 never runs, but 0B0 needs it"),
    (DEADLOCK, "deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 has not run; rank 1 waits at 1F1 for 0F1, which rank 0 has not run"),
])  # fmt: skip
def test_a_program_that_breaks_a_rule_is_status_1_with_the_reason(capsys, tmp_path, command, content, reason):
    path = tmp_path / "broken.csv"
    path.write_text(content)
    assert run(capsys, command.format(path)) == (1, "", f"failed: {reason}\n")
    status, out, err = run(capsys, command.format(path) + " --json")
    assert (status, one_object(out), err) == (1, {"ok": False, "error": reason}, f"failed: {reason}\n")


# bad arguments: status 2, one line on stderr, nothing on stdout -------------------------------------------


@pytest.mark.parametrize("command, quoted", [
    ("schedule 1f1b --pp 4 --microbatches 0", "0 microbatches"),
    ("schedule 1f1b --pp 0 --microbatches 4", "0 pipeline stages"),
    ("schedule 1f1b --pp -3 --microbatches 4", "-3 pipeline stages"),
    ("schedule 1f1b --pp 1001 --microbatches 1000", "1001 stages x 1000 microbatches"),
    ("schedule zigzag --pp 4 --microbatches 4", "'zigzag'"),
    ("schedule 1f1b --pp 4 --microbatches 4 --csv {tmp}/no/x.csv", "cannot write '{tmp}/no/x.csv'"),
    ("check {tmp}/absent.csv", "cannot read '{tmp}/absent.csv'"),
    ("check {tmp}", "cannot read '{tmp}'"),
    ("check {tmp}/binary.csv", "binary.csv"),
    ("check {tmp}/empty.csv", "empty.csv: no op in it"),
    ("check {tmp}/sends.csv", "sends.csv: rank 0, cell 2: '0SEND_F0'"),
    ("simulate --schedule 1f1b --pp 0 --microbatches 8 " + WITH_TIMES, "at least 1"),
    ("simulate --schedule 1f1b --pp 4 --microbatches 0 " + WITH_TIMES, "at least 1"),
    ("simulate --schedule 1f1b --pp 4 --microbatches -8 " + WITH_TIMES, "-8 microbatches"),
    ("simulate --schedule 1f1b " + WITH_TIMES, "--pp and --microbatches"),
    ("simulate --schedule zigzag --pp 4 --microbatches 8 " + WITH_TIMES, "'zigzag'"),
    ("simulate --csv {tmp}/absent.csv " + WITH_TIMES, "absent.csv"),
    ("simulate --csv {tmp}/split.csv " + WITH_TIMES, "the program has I ops"),
    ("simulate --csv {tmp}/good.csv --pp 2 " + WITH_TIMES, "leave out --pp"),
    (SIMULATE.replace("20", "-20"), "forward_s = -0.02"),
    (SIMULATE.replace("40", "nan"), "backward_s = nan"),
    (SIMULATE.replace("40", "inf"), "backward_s = inf"),
    (SIMULATE.replace("20", "0").replace("40", "0"), "no op takes any time"),
    (SIMULATE + " --p2p-ms -1", "latency -0.001"),
    (SIMULATE + " --p2p-ms nan", "latency nan"),
    (SIMULATE + " --picture {tmp}/no/x.png", "cannot write '{tmp}/no/x.png': No such file"),
    (SIMULATE + " --picture {tmp}/x.wav", "cannot write '{tmp}/x.wav'"),
    (SIMULATE + " --trace {tmp}", "cannot write '{tmp}'"),
    (SIMULATE + " --perfetto {tmp}/no/x.json", "cannot write '{tmp}/no/x.json'"),
])  # fmt: skip
@pytest.mark.parametrize("form", ["", " --json"])
def test_bad_arguments_are_status_2_with_one_line_that_quotes_them(capsys, tmp_path, command, quoted, form):
    (tmp_path / "binary.csv").write_bytes(b"\x89PNG\x00\xff")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "sends.csv").write_text("0F0,0SEND_F0\n")
    (tmp_path / "split.csv").write_text("0F0,0I0,0W0\n")
    (tmp_path / "good.csv").write_text("0F0,0B0\n1F0,1B0\n")
    status, out, err = run(capsys, (command + form).replace("{tmp}", str(tmp_path)))
    assert (status, out) == (2, "")
    assert err.startswith("error: ") and len(err.splitlines()) == 1
    assert quoted.replace("{tmp}", str(tmp_path)) in err


@pytest.mark.parametrize("command", [
    "", "fly", "schedule", "schedule 1f1b --pp four --microbatches 8", f"simulate {WITH_TIMES}", f"{SIMULATE} --csv x.csv",
    "simulate --schedule 1f1b --pp 4 --microbatches 8",
])  # fmt: skip
def test_a_command_line_that_does_not_parse_exits_with_status_2(capsys, command):
    with pytest.raises(SystemExit) as raised:
        main(command.split())
    out, err = capsys.readouterr()
    assert (raised.value.code, out) == (2, "")
    assert "error: " in err.splitlines()[-1]


# as a process ---------------------------------------------------------------------------------------------


def test_the_process_exits_with_the_status_and_shows_no_traceback(tmp_path):
    path = tmp_path / "deadlock.csv"
    path.write_text(DEADLOCK)
    ends = [in_a_shell(command) for command in (SIMULATE + " --json", f"check {path}", "check absent.csv")]
    assert [done.returncode for done in ends] == [0, 1, 2]
    assert one_object(ends[0].stdout)["ops"] == 64
    assert [len(done.stderr.splitlines()) for done in ends] == [0, 1, 1]


def test_a_reader_that_closes_the_pipe_early_causes_no_traceback():
    command = [sys.executable, "-m", "simlab", "schedule", "1f1b", "--pp", "100", "--microbatches", "1000"]  # a megabyte: no pipe holds it
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("0F0 0F1 ")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


def test_help_names_every_command_and_the_exit_statuses():
    done = in_a_shell("--help", check=True)
    assert all(
        word in done.stdout for word in ("schedule", "check", "simulate", "exit status: 0 done, 1 the check failed, 2 bad arguments")
    )

"""A program that breaks a rule is status 1, a bad argument is status 2, each with one line."""

import os
import subprocess
import sys

import pytest
from simlab_commands import DEADLOCK, ROOT, SCHEDULES, SIMULATE, in_a_shell, one_object, run

import simlab
from simlab.cli.main import main, parser

WITH_TIMES = "--forward-ms 1 --backward-ms 2"


@pytest.mark.parametrize("command", ["check {}", f"simulate --csv {{}} {WITH_TIMES}"])
@pytest.mark.parametrize("content, reason", [
    ("0F0,0B0\n1F0\n", "rank 0: 1B0 never runs, but 0B0 needs it"),
    (DEADLOCK, "deadlock: rank 0 waits at 0B0 for 1B0, which rank 1 has not run; rank 1 waits at 1F1 for 0F1, which rank 0 has not run"),
])  # fmt: skip
def test_a_program_that_breaks_a_rule_is_status_1_with_the_reason(
    capsys, tmp_path, command, content, reason
):
    path = tmp_path / "broken.csv"
    path.write_text(content)
    assert run(capsys, command.format(path)) == (1, "", f"failed: {reason}\n")
    status, out, err = run(capsys, command.format(path) + " --json")
    assert (status, one_object(out), err) == (
        1,
        {"ok": False, "error": reason},
        f"failed: {reason}\n",
    )


# bad arguments: status 2, one line on stderr, nothing on stdout
# -------------------------------------------


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
    ("simulate --csv {tmp}/split.csv " + WITH_TIMES, "split has I and W ops, parts of a backward: give --input-grad-ms"),
    ("simulate --schedule zb-v --pp 3 --microbatches 5 --input-grad-ms 1 " + WITH_TIMES,
     "zb-v has I and W ops, parts of a backward: give --weight-grad-ms"),
    ("simulate --csv {tmp}/good.csv --pp 2 " + WITH_TIMES, "leave out --pp"),
    (SIMULATE.replace("20", "-20"), "--forward-ms -20: give a finite number of milliseconds, 0 or more"),
    (SIMULATE.replace("40", "nan"), "--backward-ms nan: give"),
    (SIMULATE.replace("40", "inf"), "--backward-ms inf: give"),
    (SIMULATE.replace("20", "0").replace("40", "0"), "no op takes any time"),
    ("schedule zb-auto --pp 2 --microbatches 2", "give --forward-ms, --input-grad-ms and --weight-grad-ms"),
    ("schedule interleaved-1f1b --pp 4 --microbatches 8 --group 3", "groups of 3 microbatches"),
    ("schedule 1f1b --pp 4 --microbatches 8 --group 4", "group = 4: 1f1b has no group to choose"),
    ("schedule 1f1b --pp 4 --microbatches 8 --chunks 3", "chunks = 3: 1f1b has no chunks to choose: leave it out"),
    ("schedules --pp 0 --microbatches 4 --forward-ms 1 --input-grad-ms 1 --weight-grad-ms 1", "0 pipeline stages"),
    ("schedules --pp 2 --microbatches 4 --forward-ms 1 --input-grad-ms 1", "both --input-grad-ms and --weight-grad-ms"),
    (SCHEDULES + " --forward-ms nan", "--forward-ms nan: give"),
    (SIMULATE.replace("1f1b", "zb-auto"), "give --forward-ms, --input-grad-ms and --weight-grad-ms"),
    ("simulate --csv {tmp}/good.csv --group 2 " + WITH_TIMES, "leave out --pp"),
    (SIMULATE + " --layers 0", "0 layers: give 1 to 2000"),
    (SIMULATE + " --layers 2001", "2001 layers"),
    (SIMULATE + " --layers 3", "3 layers cannot be cut into 4 stages"),
    (SIMULATE + " --layers 8 --embedding -0.5", "--embedding -0.5"),
    (SIMULATE + " --layers 8 --head nan --partition best", "--head nan"),
    (SIMULATE.replace("1f1b", "dualpipe") + " --input-grad-ms 20 --weight-grad-ms 20 --layers 8 --pair-ms 50",
     "leave out pair_s"),
    (SIMULATE + " --pair-ms 50", "--pair-ms 50: 1f1b has no forward beside a backward"),
    (SIMULATE + " --head 2", "give --layers too"),
    (SIMULATE + " --partition best", "give --layers too"),
    (SIMULATE + " --activation-cap -1", "a cap of -1.0"),
    (SIMULATE + " --activation-cap nan", "a cap of nan"),
    (SIMULATE + " --jitter -0.1", "jitter = -0.1"),
    (SIMULATE + " --weight-grad-memory -1", "--weight-grad-memory -1: give a part"),
    (SIMULATE + " --weight-grad-memory 2", "--weight-grad-memory 2: give a part"),
    (SIMULATE + " --picture {tmp}", "cannot write '{tmp}': it is a folder"),
    (SIMULATE.replace("20", "1e306").replace("40", "2e306") + " --perfetto {tmp}/big.json", "cannot write '{tmp}/big.json'"),
    ("schedule 1f1b --pp 2 --microbatches 2 --link-ms 3", "1f1b has the same order for all of them"),
    ("schedule 1f1b --pp 2 --microbatches 2 --forward-ms 3", "1f1b has the same order for all of them"),
    ("memory", "give one of the two"),
    ("memory --params 7B --largest-layer 1B", "--largest-layer 1B: only for --recipe deepspeed"),
    (SIMULATE + " --link-ms -3", "--link-ms -3: give a finite number of milliseconds, 0 or more"),
    (SIMULATE + " --link-ms nan", "--link-ms nan: give"),
    (SIMULATE + " --picture {tmp}/no/x.png", "cannot write '{tmp}/no/x.png': No such file"),
    (SIMULATE + " --picture {tmp}/x.wav", "cannot write '{tmp}/x.wav'"),
    (SIMULATE + " --trace {tmp}", "cannot write '{tmp}'"),
    (SIMULATE + " --perfetto {tmp}/no/x.json", "cannot write '{tmp}/no/x.json'"),
])  # fmt: skip
@pytest.mark.parametrize("form", ["", " --json"])
def test_bad_arguments_are_status_2_with_one_line_that_quotes_them(
    capsys, tmp_path, command, quoted, form
):
    (tmp_path / "binary.csv").write_bytes(b"\x89PNG\x00\xff")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "sends.csv").write_text("0F0,0SEND_F0\n")
    (tmp_path / "split.csv").write_text("0F0,0I0,0W0\n")
    (tmp_path / "good.csv").write_text("0F0,0B0\n1F0,1B0\n")
    status, out, err = run(capsys, (command + form).replace("{tmp}", str(tmp_path)))
    assert status == 2 and (not one_object(out)["ok"] if form else out == "")
    assert err.startswith("error: ") and len(err.splitlines()) == 1
    assert quoted.replace("{tmp}", str(tmp_path)) in err


@pytest.mark.parametrize("command", [
    "fly", "schedule", "schedule 1f1b --pp four --microbatches 8", f"{SIMULATE} --explain=no",
])  # fmt: skip
def test_a_command_line_that_does_not_parse_exits_with_status_2(capsys, command):
    with pytest.raises(SystemExit) as raised:
        main(command.split())
    out, err = capsys.readouterr()
    assert (raised.value.code, out) == (2, "")
    assert err.startswith("error: ") and len(err.splitlines()) == 1


def test_without_a_command_the_help_is_shown(capsys):
    assert run(capsys, "") == (0, parser().format_help(), "")


def test_the_version_is_the_packages(capsys):
    with pytest.raises(SystemExit) as raised:
        main(["--version"])
    assert (raised.value.code, capsys.readouterr().out) == (0, f"simlab {simlab.__version__}\n")


@pytest.mark.parametrize("command, hint", [
    ("simulat --pp 2", "unknown command 'simulat', did you mean 'simulate'?"),
    (f"{SIMULATE} --microbatchs 8", "unrecognized argument '--microbatchs', did you mean '--microbatches'?"),
    ("memory --model gpt2 --cluster dgx-a100", "'--cluster', which is an option of simulate, plan, compare, sweep"),
    ("memory --params 7B --recipe deepsped", "unknown value 'deepsped', did you mean 'deepspeed'?"),
    ("sweep best.yaml --over tp=1,2", "unrecognized argument 'best.yaml': a plan file is given as --plan best.yaml"),
    (f"{SIMULATE} more", "unrecognized argument 'more': see python -m simlab simulate --help"),
])  # fmt: skip
def test_an_unknown_word_is_answered_with_the_nearest_one(capsys, command, hint):
    with pytest.raises(SystemExit):
        main(command.split())
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize("command, hint", [
    ("simulate --schedule 1f2b --pp 2 --microbatches 4 --forward-ms 1 --backward-ms 2", "did you mean '1f1b'?"),
    ("schedule interleaved --pp 2 --microbatches 4", "did you mean 'interleaved-1f1b'?"),
    ("simulate --model gpt2 --cluster dgx-h100 --schedule zb-h3", "did you mean 'zb-h2'?"),
])  # fmt: skip
def test_an_unknown_schedule_is_answered_with_the_nearest_one(capsys, command, hint):
    status, _, err = run(capsys, command)
    assert status == 2 and hint in err


# as a process
# ---------------------------------------------------------------------------------------------


def test_the_process_exits_with_the_status_and_shows_no_traceback(tmp_path):
    path = tmp_path / "deadlock.csv"
    path.write_text(DEADLOCK)
    ends = [
        in_a_shell(command)
        for command in (SIMULATE + " --json", f"check {path}", "check absent.csv")
    ]
    assert [done.returncode for done in ends] == [0, 1, 2]
    assert one_object(ends[0].stdout)["ops"] == 64
    assert [len(done.stderr.splitlines()) for done in ends] == [0, 1, 1]


def test_a_reader_that_closes_the_pipe_early_causes_no_traceback():
    line = "schedule 1f1b --pp 100 --microbatches 1000"  # a megabyte: no pipe holds it
    command = [sys.executable, "-m", "simlab", *line.split()]
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline().startswith("0F0 0F1 ")
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 0


@pytest.mark.parametrize("line", ["class grade --schema", "--help", "class --help"])
def test_a_schema_or_help_that_nobody_reads_to_its_end_causes_no_traceback(line):
    here, there = os.pipe()
    os.close(here)
    command = [sys.executable, "-m", "simlab", *line.split()]
    done = subprocess.run(command, cwd=ROOT, stdout=there, stderr=subprocess.PIPE, text=True)
    os.close(there)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_names_every_command_and_the_exit_statuses():
    done = in_a_shell("--help", check=True)
    assert all(
        word in done.stdout
        for word in (
            "schedule",
            "check",
            "simulate",
            "exit status: 0 done, 1 the check failed, 2 bad arguments",
        )
    )


@pytest.mark.parametrize(("command", "message"), [
    (f"simulate {WITH_TIMES}", "nothing to simulate"),
    ("simulate --schedule 1f1b --pp 4 --microbatches 8", "give --forward-ms"),
    (f"{SIMULATE} --dp 2", "--dp 2 goes with --model"),
    ("simulate --model llama-3-8b", "needs --cluster"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --forward-ms 20", "--forward-ms 20 goes with op times"),
    ("simulate --model llama3-8b --cluster dgx-h100", "did you mean 'llama-3-8b'"),
    ("simulate --model llama-3-8b --cluster dgx-h10", "did you mean 'dgx-h100'"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --nodes 2 --dp 3 --tp 4", "dp = 4 would use them all"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --tp 3 --nodes 3", "nearest that do: 1, 2, 4"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --nodes 5 --pp 5", "nearest that do: 2, 4, 8"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --microbatch-size -1", "microbatch_size = -1"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --pp 0", "pp = 0: give a whole number, at least 1"),
    ("simulate --model gpt2 --cluster dgx-h100 --seq 4096", "seq = 4096 is more than gpt2's 1024 positions"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --precision int3", "give one of fp32, fp16, bf16, fp8"),
    ("validate missing.csv", "cannot read 'missing.csv'"),
])  # fmt: skip
def test_what_cannot_be_simulated_gets_one_sentence_and_status_2(capsys, command, message):
    status, out, err = run(capsys, command)
    assert (status, out) == (2, "")
    assert message in err and len(err.splitlines()) == 1

import json
import subprocess
import sys
from pathlib import Path

import pytest

import simlab
from simlab import Program, Trace
from simlab.__main__ import main, parser
from simlab.commands import ONLY_WITH_MODEL, ONLY_WITH_OP_TIMES

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
        "bubble / ideal time 0.3750 idle / busy time, of all ranks",
        "bubble / makespan 0.2727 idle / whole time, of all ranks",
        "bubble of longest stage 0.2727 idle / span of the rank with the longest one",
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


def test_catalog_lists_models_and_clusters(capsys):
    status, out, err = run(capsys, "catalog")
    assert (status, err) == (0, "") and {"models", "llama-7b", "dgx-h100"} <= {line.split(" ")[0] for line in out.splitlines()}
    facts = one_object(run(capsys, "catalog --json")[1])
    assert set(facts) == {"models", "clusters"} and list(facts["clusters"]) == list(simlab.clusters())
    a100 = facts["clusters"]["dgx-a100"]
    assert (a100["gpus"], a100["gpu"]["peak_flops"]["bf16"], a100["intra"]["bandwidth_bytes_per_s"]) == (8, 312e12, 300e9)
    assert facts["models"]["gpt2"]["parameters"] == simlab.load_model("gpt2").parameters


# one table of all schedules

SCHEDULES = "schedules --pp 4 --microbatches 8 --forward-ms 20 --input-grad-ms 20 --weight-grad-ms 20"


def test_schedules_prints_a_line_per_schedule(capsys):
    status, out, err = run(capsys, SCHEDULES)
    lines = [line.split() for line in out.splitlines()]
    assert (status, err, len(lines)) == (0, "", 15)
    assert lines[1:4] == [
        ["gpipe", "660.0", "ms", "0.3750", "0.2727", "0.2727", "180.0", "ms", "180.0", "ms", "8", "1", "48"],
        ["1f1b", "660.0", "ms", "0.3750", "0.2727", "0.2727", "180.0", "ms", "180.0", "ms", "4", "1", "48"],
        ["eager-1f1b", "660.0", "ms", "0.3750", "0.2727", "0.2727", "180.0", "ms", "180.0", "ms", "7", "1", "48"],
    ]


def test_schedules_json_has_what_is_known_of_each(capsys):
    status, out, _ = run(capsys, SCHEDULES.replace("pp 4", "pp 3") + " --p2p-ms 1 --json")
    rows = {row.pop("schedule"): row for row in one_object(out)["schedules"]}
    assert status == 0 and rows.keys() >= {"gpipe", "1f1b", "dualpipe", "zb-auto, cap 3", "zb-auto, cap 6"}
    assert list(rows["dualpipe"]) == ["refused"] and "even number of ranks" in rows["dualpipe"]["refused"]
    of_1f1b = rows["1f1b"]  # no closed form: messages take time
    assert of_1f1b.keys() == {"stages", "step_s", "bubble", "bubble_s", "peak_activations", "parameters", "messages"}
    assert (of_1f1b["stages"], of_1f1b["peak_activations"], of_1f1b["parameters"], of_1f1b["messages"]) == (3, [3, 2, 1], [1, 1, 1], 32)
    assert of_1f1b["bubble"].keys() == {"idle_over_ideal", "idle_over_makespan", "longest_stage"}


def test_schedules_draws_one_timeline_per_schedule(capsys, tmp_path):
    command = SCHEDULES.replace("--pp 4 --microbatches 8", "--pp 1 --microbatches 2")
    status, _, err = run(capsys, f"{command} --picture {tmp_path}/all.png")
    assert (status, err) == (0, f"wrote {tmp_path}/all.png\n")
    assert (tmp_path / "all.png").read_bytes().startswith(b"\x89PNG")


# what stages, memory and times can be -----------------------------------------------------------------------


def simulated(capsys, arguments):
    """(what `simulate --json` answers, its stderr)"""
    status, out, err = run(capsys, f"simulate --forward-ms 20 --backward-ms 40 --microbatches 8 {arguments} --json")
    assert status == 0
    return one_object(out), err


@pytest.mark.parametrize("arguments, work, mean", [
    ("--layers 8", [2, 2, 2, 2], 2),
    ("--layers 10 --head 3", [3, 3, 2, 5], 3.25), ("--layers 10 --head 3 --partition even", [3, 3, 2, 5], 3.25),
    ("--layers 10 --head 3 --partition best", [3, 3, 3, 4], 3.25), ("--layers 8 --embedding 2", [4, 2, 2, 2], 2.5),
])  # fmt: skip
def test_layers_are_cut_into_stages_and_the_times_are_those_of_the_mean_stage(capsys, arguments, work, mean):
    result, _ = simulated(capsys, f"--schedule gpipe --pp 4 {arguments}")
    assert result["stage_work"] == work
    once, slowest = sum(work) / mean * 0.06, max(work) / mean * 0.06  # F and B of the first through all stages, of the rest at the slowest
    assert result["step_s"] == pytest.approx(once + 7 * slowest)


def test_of_one_stage_all_layers_are_the_work(capsys):
    for partition in ("even", "best"):
        arguments = f"--schedule gpipe --pp 1 --layers 3 --head 2 --embedding 1 --partition {partition}"
        assert simulated(capsys, arguments)[0]["stage_work"] == [6]


def test_the_work_of_stages_is_printed_too(capsys):
    assert "work of each stage       [3.0, 3.0, 2.0, 5.0]   in layers" in run(capsys, f"{SIMULATE} --layers 10 --head 3")[1].splitlines()


def test_a_cap_says_which_ranks_hold_more_since_when(capsys):
    result, err = simulated(capsys, "--schedule 1f1b --pp 4 --activation-cap 2.5")
    assert (result["fits"], result["peak_activations"], result["parameters"]) == (False, [4, 3, 2, 1], [1, 1, 1, 1])
    assert [(breach["rank"], breach["op"], breach["amount"]) for breach in result["breaches"]] == [(0, "0F2", 3), (1, "1F2", 3)]
    assert [breach["time_s"] for breach in result["breaches"]] == pytest.approx([0.04, 0.06])
    assert err.splitlines() == [
        "over the cap of 2.5: rank 0 holds 3 from 40.0 ms on, when 0F2 starts",
        "over the cap of 2.5: rank 1 holds 3 from 60.0 ms on, when 1F2 starts",
    ]


def test_a_cap_that_is_kept_fits_and_without_one_nothing_is_said(capsys):
    result, err = simulated(capsys, "--schedule 1f1b --pp 4 --activation-cap 4")
    assert (result["fits"], result["breaches"], err) == (True, [], "")
    assert not {"fits", "breaches"} & simulated(capsys, "--schedule 1f1b --pp 4")[0].keys()


def test_the_cap_is_in_the_trace_for_pictures(capsys, tmp_path):
    simulated(capsys, f"--schedule 1f1b --pp 4 --activation-cap 2.5 --trace {tmp_path}/t.json")
    assert Trace.load(tmp_path / "t.json").metadata["activation_cap"] == 2.5


def test_dualpipe_has_two_shares_of_the_parameters_on_every_rank_and_a_pair_can_be_shorter(capsys):
    arguments = "--schedule dualpipe --pp 4 --input-grad-ms 20 --weight-grad-ms 20"
    alone, paired = (simulated(capsys, arguments + more)[0] for more in ("", " --pair-ms 50"))
    assert alone["parameters"] == paired["parameters"] == [2, 2, 2, 2]
    assert (alone["step_s"], paired["step_s"]) == pytest.approx((0.52, 0.48))


def test_jitter_takes_a_seed_that_makes_it_the_same_again(capsys):
    command = "--schedule 1f1b --pp 4 --jitter 0.1 --seed"
    assert simulated(capsys, f"{command} 3") == simulated(capsys, f"{command} 3")
    assert simulated(capsys, f"{command} 3")[0]["step_s"] != simulated(capsys, f"{command} 4")[0]["step_s"]


def test_groups_are_those_of_the_python_function(capsys):
    out = run(capsys, "schedule interleaved-1f1b --pp 2 --microbatches 6 --chunks 2 --group 3")[1]
    assert out == f"{simlab.generate('interleaved-1f1b', 2, 6, chunks=2, group=3)}\n"
    assert out != run(capsys, "schedule interleaved-1f1b --pp 2 --microbatches 6 --chunks 2")[1]


def test_zb_auto_keeps_the_cap_and_is_searched_for_the_given_times(capsys):
    split = "--schedule zb-auto --pp 4 --input-grad-ms 20 --weight-grad-ms 20"
    assert simulated(capsys, f"{split} --activation-cap 3.5")[0]["fits"] is True
    assert max(simulated(capsys, split)[0]["peak_activations"]) <= 4
    assert simulated(capsys, f"{split} --activation-cap 8")[0]["bubble"]["longest_stage"] == pytest.approx(0, abs=1e-9)
    status, out, _ = run(capsys, "schedule zb-auto --pp 2 --microbatches 2 --forward-ms 20 --input-grad-ms 40 --weight-grad-ms 10")
    assert status == 0 and sorted(out.split()) == sorted(f"{s}{kind}{m}" for s in (0, 1) for kind in "FIW" for m in (0, 1))


def test_schedules_without_the_times_of_i_and_w_leaves_out_what_needs_them_and_a_cap_marks_who_holds_more(capsys):
    table = one_object(run(capsys, "schedules --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40 --activation-cap 4 --json")[1])
    rows = {row["schedule"]: row for row in table["schedules"]}
    assert rows["zb-h1"]["refused"] == "the program has I ops, but input_grad_s is not given" and "refused" in rows["zb-auto, cap 4"]
    assert (rows["1f1b"]["fits"], rows["gpipe"]["fits"], rows["gpipe"]["closed_form_s"]) == (True, False, pytest.approx(0.18))
    assert "8 > cap" in run(capsys, "schedules --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40 --activation-cap 4")[1]


def test_a_backward_that_is_not_its_parts_is_noted(capsys):
    err = run(
        capsys, "simulate --schedule zb-h1 --pp 2 --microbatches 4 --forward-ms 2 --backward-ms 9 --input-grad-ms 2 --weight-grad-ms 2"
    )[2]
    assert err.startswith("note: B is 9 ms, I + W 2 + 2")


def test_pipedream_has_weight_versions_and_staleness(capsys):
    result, _ = simulated(capsys, "--schedule pipedream --pp 4")
    assert (result["weight_versions"], result["staleness"]) == ([4, 3, 2, 1], [3, 2, 1, 0])
    assert result["steady_idle"] == pytest.approx(0, abs=1e-9)
    text = " ".join(run(capsys, SIMULATE.replace("1f1b", "pipedream"))[1].split())
    assert "weight versions [4, 3, 2, 1] staleness [3, 2, 1, 0] updates idle while it is full 0.0000" in text
    assert "staleness" not in simulated(capsys, "--schedule 1f1b --pp 4")[0]


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
    ("schedule 1f1b --pp 2 --microbatches 2 --p2p-ms 3", "1f1b has the same order for all of them"),
    ("schedule 1f1b --pp 2 --microbatches 2 --forward-ms 3", "1f1b has the same order for all of them"),
    ("memory", "give one of the two"),
    ("memory --params 7B --largest-layer 1B", "--largest-layer 1B: only for --recipe deepspeed"),
    (SIMULATE + " --p2p-ms -3", "--p2p-ms -3: give a finite number of milliseconds, 0 or more"),
    (SIMULATE + " --p2p-ms nan", "--p2p-ms nan: give"),
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
    "", "fly", "schedule", "schedule 1f1b --pp four --microbatches 8", f"{SIMULATE} --csv x.csv",
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


@pytest.mark.parametrize(("command", "message"), [
    (f"simulate {WITH_TIMES}", "nothing to simulate"),
    ("simulate --schedule 1f1b --pp 4 --microbatches 8", "give --forward-ms"),
    (f"{SIMULATE} --dp 2", "--dp 2 goes with --model"),
    ("simulate --model llama-3-8b", "needs --cluster"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --forward-ms 20", "--forward-ms 20 goes with op times"),
    ("simulate --model llama3-8b --cluster dgx-h100", "did you mean 'llama-3-8b'"),
    ("simulate --model llama-3-8b --cluster dgx-h10", "did you mean 'dgx-h100'"),
    ("simulate --model llama-3-8b --cluster dgx-h100 --nodes 2 --dp 3 --tp 4", "dp = 4 would"),
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


# a model on a cluster -------------------------------------------------------------------------------------

ON_A_CLUSTER = "simulate --model gpt2 --cluster dgx-h100"


def test_every_option_of_simulate_goes_with_a_model_with_op_times_or_with_both():
    simulate = next(action for action in parser()._actions if action.choices).choices["simulate"]
    options = {action.dest for action in simulate._actions}
    both = {"schedule", "pp", "microbatches", "chunks", "explain", "picture", "trace", "perfetto", "json", "help"}
    assert options == {"model", *ONLY_WITH_MODEL, *ONLY_WITH_OP_TIMES, *both}
    assert not set(ONLY_WITH_MODEL) & set(ONLY_WITH_OP_TIMES)


def given(name):
    """The option `name` with a value that the parser takes, as text."""
    values = {"partition": "best", "csv": "x.csv"} | dict.fromkeys(("sequence_parallel", "dp_overlap", "fused"), "yes")
    return f"--{name.replace('_', '-')} {values.get(name, 1)}"


@pytest.mark.parametrize("name", ONLY_WITH_OP_TIMES)
def test_what_goes_with_op_times_is_refused_with_a_model(capsys, name):
    why = f"error: {given(name)} goes with op times, not with --model\n"
    assert run(capsys, f"{ON_A_CLUSTER} {given(name)}") == (2, "", why)


@pytest.mark.parametrize("name", ONLY_WITH_MODEL)
def test_what_goes_with_a_model_is_refused_with_op_times(capsys, name):
    why = f"error: {given(name)} goes with --model: with op times there is only a pipeline\n"
    assert run(capsys, f"{SIMULATE} {given(name)}") == (2, "", why)


def test_a_models_step_is_printed_with_its_sequence_length_and_global_batch(capsys):
    command = f"{ON_A_CLUSTER} --dp 2 --microbatches 3 --microbatch-size 4 --seq 512"
    assert "global batch             24 sequences of 512 tokens" in run(capsys, command)[1].splitlines()
    result = one_object(run(capsys, f"{ON_A_CLUSTER} --json")[1])
    assert (result["global_batch"], result["seq"]) == (8, 1024)


def test_a_models_step_is_explained_as_a_schedule_is(capsys, tmp_path):
    command = f"{ON_A_CLUSTER} --pp 2 --microbatches 2 --explain"
    lines = run(capsys, command)[1].splitlines()
    result = one_object(run(capsys, f"{command} --json --picture {tmp_path}/x.png")[1])
    at = lines.index(f"longest idle times, {len(result['gaps'])} of {len(result['gaps'])}:")
    assert {line.strip() for line in lines[at + 1 : -1]} == {gap["text"] for gap in result["gaps"]}
    assert lines[-1] == "critical path            0F0 → 1F0 → 1B0 → 1F1 → 1B1 → 0B1"
    assert result["critical_path"][:3] == ["compute 0F0", "send 0F0", "compute 1F0"] and (tmp_path / "x.png").is_file()
    assert "critical path" not in run(capsys, f"{ON_A_CLUSTER} --pp 2 --microbatches 2")[1]


@pytest.fixture
def four_nodes(tmp_path):
    """The path of a cluster's file: 4 nodes of 8 GPUs."""
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"nodes": 4, **CLUSTERS["dgx-h100"]}))
    return path


CLUSTERS = json.loads((Path(simlab.__file__).parent / "data" / "clusters.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(("options", "gpus", "dp"), [
    ("", 32, 32), ("--tp 4", 32, 8), ("--tp 4 --dp 8", 32, 8), ("--nodes 2 --tp 4", 16, 4), ("--nodes 8 --tp 4 --dp 16", 64, 16),
])  # fmt: skip
def test_the_nodes_of_a_clusters_file_are_those_there_are(capsys, four_nodes, options, gpus, dp):
    result = one_object(run(capsys, f"simulate --model llama-3-8b --cluster {four_nodes} {options} --json")[1])
    assert (result["gpus"], result["plan"]["dp"]) == (gpus, dp)


@pytest.mark.parametrize(("options", "says"), [
    ("--tp 8 --dp 8", "= 64, but there are 32 GPUs: dp = 4 would"), ("--tp 4 --dp 2", "= 8, but there are 32 GPUs: dp = 8 would"),
    ("--pp 5", "there are 32 GPUs: tp x pp x cp = 5 does not divide them"), ("--tp 4 --nodes 2 --dp 8", "there are 16 GPUs: dp = 4 would"),
])  # fmt: skip
def test_a_plan_that_does_not_take_a_files_nodes_is_refused(capsys, four_nodes, options, says):
    status, out, err = run(capsys, f"simulate --model llama-3-8b --cluster {four_nodes} {options}")
    assert (status, out, len(err.splitlines())) == (2, "", 1) and says in err


def test_where_nobody_says_how_many_nodes_there_are_as_many_as_the_plan_takes(capsys, tmp_path):
    (tmp_path / "mine.json").write_text(json.dumps(CLUSTERS["dgx-h100"]))
    for cluster in ("dgx-h100", tmp_path / "mine.json"):
        command = f"simulate --model llama-3-8b --cluster {cluster} --json"
        assert [one_object(run(capsys, f"{command} {options}")[1])["gpus"] for options in ("", "--tp 4", "--dp 16")] == [8, 4, 16]


def test_what_of_a_config_is_ignored_is_noted(capsys, tmp_path):
    config = {"model_type": "mistral", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8, "intermediate_size": 1024,
              "vocab_size": 1000, "max_position_embeddings": 2048, "sliding_window": 512}  # fmt: skip
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    status, out, err = run(capsys, ON_A_CLUSTER.replace("gpt2", str(path)))
    assert (status, err) == (0, f"note: nothing is computed from {path}'s sliding_window = 512\n")
    assert out.startswith(f"{tmp_path.name} on 8 x h100-sxm-80gb")
    assert len(run(capsys, ON_A_CLUSTER.replace("gpt2", f"{path} --tp 3"))[2].splitlines()) == 1, "of an error only the error"
    path.write_text(json.dumps(config | {"model_type": "bert"}))
    status, out, err = run(capsys, ON_A_CLUSTER.replace("gpt2", str(path)))
    assert (status, out, len(err.splitlines())) == (2, "", 1) and "model_type 'bert' is not read: give one of gpt2, llama" in err

"""What the commands answer: text for people, one JSON object, files."""

import json

import pytest
from simlab_commands import SIMULATE, one_object, run

import simlab
from simlab import Program, Trace
from simlab.cli import options
from simlab.cli.options import PICTURES


def test_schedule_prints_a_row_per_rank(capsys):
    assert run(capsys, "schedule gpipe --pp 2 --microbatches 2") == (
        0,
        "0F0 0F1 0B0 0B1\n1F0 1F1 1B0 1B1\n",
        "",
    )


def test_schedule_json_is_one_object(capsys):
    status, out, err = run(capsys, "schedule 1f1b --pp 2 --microbatches 1 --json")
    expected = {
        "schedule": "1f1b",
        "stages": 2,
        "microbatches": 1,
        "ranks": [["0F0", "0B0"], ["1F0", "1B0"]],
    }
    assert (status, one_object(out), err) == (0, expected, "")


def test_schedule_writes_a_csv_that_check_accepts(capsys, tmp_path):
    path = tmp_path / "mine.csv"
    assert run(capsys, f"schedule 1f1b --pp 3 --microbatches 5 --csv {path}")[0] == 0
    assert Program.from_csv(path).ranks == simlab.generate("1f1b", 3, 5).ranks
    assert run(capsys, f"check {path}") == (
        0,
        "valid: 3 ranks, 3 stages, 5 microbatches, 30 ops\n",
        "",
    )
    status, out, _ = run(capsys, f"check {path} --json")
    assert (status, one_object(out)) == (
        0,
        {"ok": True, "ranks": 3, "stages": 3, "microbatches": 5, "ops": 30},
    )


def test_simulate_json_has_the_documented_figures(capsys):
    status, out, err = run(capsys, f"{SIMULATE} --json")
    result = one_object(out)
    assert (status, err) == (0, "")
    assert result["step_s"] == pytest.approx(0.66)
    assert result["bubble"] == pytest.approx(
        {"idle_over_ideal": 3 / 8, "idle_over_makespan": 3 / 11, "longest_stage": 3 / 11}
    )
    assert result["peak_live_microbatches"] == [4, 3, 2, 1]
    assert (result["ops"], result["messages"], result["stages"], result["microbatches"]) == (
        64,
        48,
        4,
        8,
    )
    assert result["idle_s"] == pytest.approx([0.18] * 4)


def test_explain_names_what_idle_time_waited_for_and_the_critical_path(capsys, tmp_path):
    picture = tmp_path / "explained.png"
    result = one_object(
        run(capsys, f"{SIMULATE} --link-ms 5 --explain --json --picture {picture}")[1]
    )
    assert sum(gap["end_s"] - gap["start_s"] for gap in result["gaps"]) == pytest.approx(
        sum(result["idle_s"])
    )
    assert (
        result["gaps"][0]["text"]
        == "rank 0 idle 150.0 ms from 80.0 ms: 0B0 waited for 1B0 on rank 1 (computing)"
    )
    assert (
        result["critical_path"][:3] == ["compute 0F0", "send 0F0", "compute 1F0"]
        and result["critical_path"][-1] == "compute 0B7"
    )
    assert picture.stat().st_size > 10_000
    assert "critical path 0F0 → 1F0 → 2F0 → 3F0 → 3B0" in " ".join(
        run(capsys, f"{SIMULATE} --link-ms 5 --explain")[1].split()
    )


def test_memory_prints_the_states_of_every_stage_and_json_those_of_one(capsys):
    result = one_object(run(capsys, "memory --params 7.5B --dp 64 --zero 2 --json")[1])
    assert result["total_bytes"] == 16.640625e9 and result["bytes"]["parameters"] == 15e9
    lines = run(capsys, "memory --params 7.5B --dp 64")[1].splitlines()
    totals = [line.split(":")[1].split("=")[0] for line in lines if line[2:].startswith("ZeRO-")]
    assert [total.strip() for total in totals] == [
        "120 GB", "31.41 GB", "16.64 GB", "1.875 GB",
    ]  # fmt: skip
    assert run(capsys, "memory --params lots")[0] == 2


def test_simulate_takes_a_message_time(capsys):
    assert one_object(run(capsys, f"{SIMULATE} --link-ms 5 --json")[1])["step_s"] == pytest.approx(
        0.740
    )


def test_simulate_prints_what_a_person_reads(capsys):
    status, out, _ = run(capsys, SIMULATE)
    assert (status, [" ".join(line.split()) for line in out.splitlines()]) == (0, [
        "1f1b: 4 stages, 8 microbatches, 64 ops, 48 messages",
        "step 660.0 ms",
        "bubble / ideal time 0.3750 idle / busy time, of all ranks",
        "bubble / makespan 0.2727 idle / whole time, of all ranks",
        "bubble of longest stage 0.2727 idle / span of the rank with the longest one",
        "idle time 27.3% of the step: warm-up and drain 27.3% (for equal",
        "stages (p - 1) / m = 3 / 8 of computing)",
        "peak live microbatches [4, 3, 2, 1]",
        "peak activations [4.0, 3.0, 2.0, 1.0] of a rank's share of a microbatch",
    ])  # fmt: skip


def test_simulate_of_a_csv_equals_simulate_of_its_schedule(capsys, tmp_path):
    path = tmp_path / "1f1b.csv"
    simlab.generate("1f1b", 4, 8).to_csv(path)
    from_csv = run(capsys, f"simulate --csv {path} --forward-ms 20 --backward-ms 40 --json")
    assert from_csv == run(capsys, f"{SIMULATE} --json")


STARTS = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF", "html": b"<", "eps": b"%!PS"}


@pytest.mark.parametrize("ending", PICTURES)
def test_every_ending_of_pictures_is_drawn(capsys, tmp_path, ending):
    assert run(capsys, f"{SIMULATE} --picture {tmp_path}/p.{ending}")[0] == 0
    assert (tmp_path / f"p.{ending}").read_bytes().startswith(STARTS.get(ending, b""))


def test_a_page_without_plotly_is_told_before_anything_is_computed(capsys, monkeypatch):
    monkeypatch.setattr(options, "find_spec", lambda name: None)
    status, out, err = run(capsys, f"{SIMULATE} --picture p.html")
    assert (status, out) == (2, "")
    assert err == "error: --picture p.html: a page needs plotly: pip install plotly\n"


def test_simulate_writes_trace_picture_and_perfetto_file(capsys, tmp_path):
    status, out, err = run(
        capsys,
        f"{SIMULATE} --json --trace {tmp_path}/t.json --picture {tmp_path}/p.png --perfetto {tmp_path}/c.json",
    )
    assert status == 0 and one_object(out)
    assert sorted(err.splitlines()) == sorted(
        f"wrote {tmp_path}/{name}" for name in ("t.json", "p.png", "c.json")
    )
    assert Trace.load(tmp_path / "t.json").step_s == pytest.approx(0.66)
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((tmp_path / "c.json").read_text())["traceEvents"]


def test_catalog_lists_models_and_clusters(capsys):
    status, out, err = run(capsys, "catalog")
    assert (status, err) == (0, "") and {"models", "llama-7b", "dgx-h100"} <= {
        line.split(" ")[0] for line in out.splitlines()
    }
    facts = one_object(run(capsys, "catalog --json")[1])
    assert set(facts) == {"models", "clusters"} and list(facts["clusters"]) == list(
        simlab.clusters()
    )
    a100 = facts["clusters"]["dgx-a100"]
    assert (
        a100["gpus"],
        a100["gpu"]["peak_flops"]["bf16"],
        a100["intra"]["bandwidth_bytes_per_s"],
    ) == (8, 312e12, 300e9)
    assert facts["models"]["gpt2"]["parameters"] == simlab.load_model("gpt2").parameters

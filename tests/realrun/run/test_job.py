"""What a job refuses, and what it chooses by itself."""

import math
import os
import socket
from dataclasses import asdict
from types import SimpleNamespace

import pytest

from realrun.cli.main import main
from realrun.launch.folder import prepare
from realrun.launch.pool import Pool
from realrun.launch.ranks import choose_device
from realrun.launch.worker import use_own_host_name
from realrun.measure.local_memory import check_memory
from realrun.model.text import corpus
from realrun.run.job import Job
from realrun.run.job.pipelines import LARGER, SMALL, choose_compute, program_texts
from simlab.errors import DeadlockError, InputError, ProgramError
from simlab.program import Program
from simlab.schedules import generate
from simlab.units import GIB

TWO = str(generate("1f1b", 2, 4))


def job(**fields):
    return Job(**({"programs": {"1f1b": TWO}, "compute": "padded"} | fields))


@pytest.mark.parametrize(
    "fields, message",
    [
        ({"timeout_s": math.inf}, "timeout inf s: give a time from 0.001 to 1e+06 s"),
        ({"out": "a\0b"}, "out = 'a\\x00b' cannot be a folder's name"),
        ({"checkpoints": "\ud800"}, "checkpoints = '\\ud800' cannot be a folder's name"),
        ({"link_bytes_per_s": math.nan}, "link bandwidth nan bytes/s: give a number above 0"),
        (
            {"link_s": 3.0, "timeout_s": 2.0},
            "a message takes 3 s, but a run in which nothing moves for 2 s is given up: raise --timeout",
        ),
        (
            {"link_bytes_per_s": 100.0, "timeout_s": 5.0},
            "a message takes 81.92 s, but a run in which nothing moves for 5 s",
        ),
        ({"compute": "cuda", "link_s": 0.1}, "paced links need the CPU's clock"),
        ({"sizes": {"seq": 0}}, "seq = 0: give at least 1"),
        ({"programs": {"a": "0F0 what"}}, "rank 0, cell 2: 'what' is not an op"),
    ],
)
def test_a_job_refuses_what_cannot_be_run_and_quotes_it(fields, message):
    with pytest.raises(InputError) as caught:
        job(**fields)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../up", "a/b", "/etc", "report.html", "calibration.json", " lead"]
)
def test_a_name_that_cannot_be_a_folder_of_its_own_is_refused(name):
    with pytest.raises(InputError, match="names a folder"):
        job(programs={name: TWO})


def test_two_programs_of_one_name_or_a_rank_without_ops_are_refused_where_the_text_would_lose_them():
    with pytest.raises(InputError, match="two programs called '1f1b'"):
        program_texts([generate("1f1b", 2, 2), generate("1f1b", 2, 4)])
    with pytest.raises(InputError, match="rank 1 has no ops"):
        program_texts([Program([generate("gpipe", 1, 1).ranks[0], ()], name="half")])


def test_backward_takes_twice_as_long_as_forward_unless_given():
    assert job(forward_s=0.003).backward_s == 0.006
    assert job(forward_s=0.003, backward_s=0.001).backward_s == 0.001


def test_the_default_model_is_small_when_padded_larger_otherwise_and_has_the_same_layers_for_every_stage():
    assert job().sizes == SMALL | {"layers": 4}
    assert job(compute="real").sizes == LARGER | {"layers": 4}
    assert job(sizes={"hidden": 8, "layers": None}).sizes["hidden"] == 8


def test_a_job_survives_the_way_to_another_process():
    one = job(sizes={"seq": 8}, link_s=0.001)
    assert Job(**one.to_json()) == one and asdict(one) == one.to_json()


def test_pairs_are_the_ranks_that_talk_in_any_program():
    assert job(programs={"gpipe": str(generate("gpipe", 4, 2))}).pairs() == [(0, 1), (1, 2), (2, 3)]
    assert job(programs={"skip": "0F0 3F0 3B0 0B0\n1F0 1B0\n2F0 2B0"}).pairs() == [
        (0, 1),
        (0, 2),
        (1, 2),
    ]
    assert job(programs={"alone": "0F0 1F0 1B0 0B0"}).pairs() == []


@pytest.mark.parametrize(
    "text, orders",
    [
        ("0F0 0B0", ["FB"]),
        ("0F0 0I0 0W0", ["FIW"]),
        ("0F0 0B0 0F1 0I1 0W1", ["FB", "FIW"]),
        ("0F0", ["FB"]),
    ],
)
def test_calibration_times_the_op_kinds_that_the_programs_have_and_a_whole_backward_where_they_have_none(
    text, orders
):
    assert job(programs={"x": text}, checked=False).orders(1) == orders


def test_validate_refuses_an_invalid_program_unless_told_not_to_check():
    with pytest.raises(DeadlockError):
        job(programs={"x": "0F0 0B0 0F1 0B1\n1F1 1F0 1B0 1B1"}).validate()
    with pytest.raises(ProgramError, match="stage 1 is on no rank"):
        job(programs={"x": "0F0 0B0\n2F0 2B0"}).validate()
    job(programs={"x": "0F0 0B0\n2F0 2B0"}, checked=False).validate()


def test_the_longest_sequence_fits_into_the_text():
    assert len(corpus()) > 65536 + 2


@pytest.mark.parametrize(
    "arguments, compute, why",
    [
        ({"ranks": 4, "cores": 4}, "real", "4 ranks on 4 cores"),
        ({"ranks": 4, "cores": 2}, "padded", "4 ranks on only 2 cores"),
        ({"ranks": 2, "cores": 4, "padded_time_given": True}, "padded", "op times were given"),
        ({"ranks": 9, "cores": 2, "asked": "real"}, "real", "asked for"),
        ({"ranks": 2, "device": "cuda"}, "cuda", "2 CUDA devices for 2 ranks"),
    ],
)
def test_the_compute_mode_follows_from_the_machine_and_says_why(arguments, compute, why):
    assert choose_compute(**arguments) == (compute, why)


def test_padded_compute_on_cuda_is_refused():
    with pytest.raises(InputError, match="padded compute is for the CPU"):
        choose_compute(1, asked="padded", device="cuda")


@pytest.mark.parametrize(
    "asked, driver, devices, only_cpu, device",
    [
        ("auto", True, 4, False, "cuda"),
        ("auto", True, 3, False, "cpu"),
        ("auto", True, 0, False, "cpu"),
        ("auto", True, 4, True, "cpu"),
        ("auto", False, 4, False, "cpu"),
        ("cpu", True, 4, False, "cpu"),
        ("cuda", False, 4, True, "cuda"),
    ],
)
def test_the_device_is_cuda_where_each_rank_has_one_and_nothing_else_asks_for_the_cpu(
    monkeypatch, asked, driver, devices, only_cpu, device
):
    with_gpus(monkeypatch, devices)
    monkeypatch.setattr("realrun.launch.ranks.has_driver", lambda: driver)
    assert choose_device(asked, 4, only_cpu=only_cpu) == device


def with_gpus(monkeypatch, count):
    import torch

    monkeypatch.setattr("realrun.launch.ranks.has_driver", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


def test_ranks_share_gpus_where_cuda_is_asked_for_and_the_answer_says_so(monkeypatch):
    with_gpus(monkeypatch, 1)
    said = []
    assert choose_device("cuda", 8, may_share=True, say=said.append) == "cuda"
    (line,) = said
    assert line.startswith("8 ranks share 1 CUDA device: they take turns")
    assert choose_compute(8, device="cuda") == ("cuda", line)
    assert choose_device("auto", 8, may_share=True) == "cpu"
    with pytest.raises(InputError, match="8 ranks need 8 CUDA devices, this machine has 1"):
        choose_device("cuda", 8)


@pytest.mark.parametrize("option", ["--max-error", "--predict-on"])
def test_no_prediction_is_held_against_ranks_that_share_a_gpu(
    monkeypatch, tmp_path, capsys, option
):
    with_gpus(monkeypatch, 1)
    value = "5" if option == "--max-error" else "laptop"
    asked = ["--pp", "2", "--device", "cuda", "--out", str(tmp_path), option, value]
    assert main(asked) == 2
    assert f"{option}: 2 ranks share 1 CUDA device" in capsys.readouterr().err


def test_each_rank_that_shares_a_gpu_is_a_host_of_its_own_to_nccl(monkeypatch):
    names = []
    for rank in range(3):
        monkeypatch.setenv("NCCL_HOSTID", "")
        use_own_host_name(rank)
        names.append(os.environ["NCCL_HOSTID"])
    assert len(set(names)) == 3 and all(socket.gethostname() in name for name in names)


def test_memory_is_refused_above_nine_tenths_of_what_is_free_and_not_below(monkeypatch):
    monkeypatch.setattr("realrun.measure.local_memory.available_memory", lambda: 10 * GIB)
    check_memory(4, 8 * GIB)
    with pytest.raises(
        InputError, match=r"4 processes need about 9\.1 GiB of memory, 10\.0 GiB is free"
    ):
        check_memory(4, 8.5 * GIB)
    with pytest.raises(InputError, match="4000 processes need about"):
        Pool(4000)


def test_records_need_no_more_room_for_more_steps_and_are_refused_where_there_is_none(
    tmp_path, monkeypatch
):
    many = job(out=str(tmp_path / "new"), steps=10**9, warmup=0)
    assert many.record_bytes == job(steps=20, warmup=0).record_bytes
    usage = SimpleNamespace(free=2 * many.record_bytes - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: usage)
    with pytest.raises(InputError, match=r"the records of 21 steps need .* name another --out"):
        prepare(many)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    usage.free += 1
    prepare(many)


# programs of different shapes
# -------------------------------------------------------------------------------


def several(**fields):
    """A job of 2 ranks with 2 stages, whole backwards, and with 4, some split."""
    names = ("1f1b", "interleaved-1f1b", "zb-v")
    return job(programs={name: str(generate(name, 2, 4)) for name in names}, **fields)


def test_a_job_has_programs_of_different_numbers_of_stages_and_a_calibration_of_each(tmp_path):
    both = several(out=str(tmp_path))
    assert (both.ranks, both.stage_counts) == (2, [2, 4])
    assert [both.calibration_path(stages) for stages in (2, 4)] == [
        tmp_path / f"calibration-{stages}-stages.json" for stages in (2, 4)
    ]
    assert job(out=str(tmp_path)).calibration_path(2) == tmp_path / "calibration.json"


def test_the_model_has_a_layer_for_each_of_the_most_stages():
    assert several().sizes["layers"] == 8
    with pytest.raises(InputError, match=r"^3 layers cannot be cut into 4 stages"):
        several(sizes={"layers": 3})


def test_the_stages_of_a_rank_share_its_padded_time_equally():
    both = several(forward_s=0.02, backward_s=0.06, input_grad_s=0.04)
    assert both.padding(2) == pytest.approx({"F": 0.02, "B": 0.06, "I": 0.04, "W": 0.02})
    assert both.padding(4) == pytest.approx({"F": 0.01, "B": 0.03, "I": 0.02, "W": 0.01})


def test_calibration_times_for_each_number_of_stages_the_op_kinds_of_its_own_programs():
    assert several().orders(2) == ["FB"]
    assert several().orders(4) == ["FB", "FIW"]


def test_programs_of_different_numbers_of_ranks_are_refused_and_each_ones_is_quoted():
    with pytest.raises(
        InputError,
        match=r"^programs of different numbers of ranks \(two 2, four 4, 2chunks 2\): those of one job must",
    ):
        job(
            programs={
                "two": TWO,
                "four": str(generate("1f1b", 4, 4)),
                "2chunks": str(generate("zb-v", 2, 4)),
            }
        )


def test_a_stage_may_stand_on_two_ranks_whose_gradients_are_added_up():
    both = job(programs={"dualpipe": str(generate("dualpipe", 4, 8))})
    both.validate()
    assert (both.ranks, both.stage_counts, both.pairs()) == (4, [4], [(0, 1), (1, 2), (2, 3)])


def test_the_executor_runs_a_pair_one_op_after_the_other():
    paired = generate("dualpipe", 2, 4)
    assert "OVERLAP" in str(paired)
    assert job(programs={"dualpipe": str(paired)}).program_of("dualpipe") == Program(
        paired.ranks, "dualpipe"
    )


def test_layers_of_stages_are_the_plans():
    uneven = Job(plan={"pp": 2, "stage_layers": [3, 1]})
    assert uneven.sizes["layers"] == 4 and uneven.stage_layers == [3, 1]
    assert Job(plan={"pp": 3}, sizes={"layers": 1}).stage_layers == [0, 1, 0]
    assert Job(programs={"1f1b": TWO}).stage_layers is None


@pytest.mark.parametrize("fields, message", [
    ({"compute": "real"}, "compute = 'real' with a plan: leave it out"),
    ({"link_s": 0.1}, "link_s = 0.1 with a plan: leave it out"),
    ({"programs": {"1f1b": TWO}, "backend": "torch"}, "backend = 'torch' with programs: leave it out"),
    ({"programs": {"1f1b": TWO}, "plan": {"dp": 2}}, "plan = {'dp': 2} with programs: leave it out"),
    (
        {"plan": {"pp": 2, "stage_layers": [0, 4]}, "backend": "torch"},
        "stages of [0, 4] layers: torch's own means run stages with layers only; leave --backend out, or give each stage a layer",
    ),
])  # fmt: skip
def test_what_would_be_ignored_is_refused(fields, message):
    with pytest.raises(InputError) as caught:
        Job(**fields)
    assert str(caught.value) == message

"""The CUDA path, where there are devices for it. Here and on CI there are none: the reason is in
each skip."""

import itertools

import pytest

from realrun import Job, Pool, execute
from realrun.launch.ranks import choose_device
from simlab.schedules import generate


def devices():
    import torch

    return torch.cuda.device_count() if torch.cuda.is_available() else 0


one_device = pytest.mark.skipif(
    devices() < 1, reason="no CUDA device: torch.cuda.is_available() is False or counts none"
)
two_devices = pytest.mark.skipif(
    devices() < 2, reason="needs 2 CUDA devices: NCCL has one rank per device"
)
MODEL = {"hidden": 64, "heads": 4, "seq": 64, "microbatch_size": 2}


@one_device
def test_spans_of_the_cuda_timer_are_those_of_the_device_on_the_hosts_clock():
    import torch

    from realrun.comm.clock import now
    from realrun.measure.timers import CudaTimer

    timer = CudaTimer()
    timer.begin_step()
    before_s = now()
    torch.cuda._sleep(1)  # the first launch loads the kernel
    marks = []
    for cycles in (20_000_000, 60_000_000):
        start = timer.begin("F")
        torch.cuda._sleep(cycles)
        marks.append((start, timer.finish("F", start)))
    asked_s = now()
    (start_1, end_1), (start_2, end_2) = [tuple(map(timer.seconds, pair)) for pair in marks]
    after_s = now()
    assert before_s - 1e-3 <= start_1 < end_1 <= start_2 < end_2 <= after_s + 1e-3
    assert 2 < (end_2 - start_2) / (end_1 - start_1) < 4  # three times the cycles
    # marks were placed without waiting: the wait is in `seconds`
    assert after_s - asked_s > 0.5 * (end_1 - start_1)


@one_device
def test_one_rank_on_cuda_gets_the_gradients_of_one_process_and_says_cuda(tmp_path):
    assert choose_device("auto", 1) == "cuda"
    with Pool(1, device="cuda") as pool:
        runs = execute(
            pool,
            [generate("gpipe", 1, 4), generate("1f1b", 1, 4)],
            steps=2,
            sizes=MODEL,
            out=str(tmp_path),
        )
    for run in runs:
        assert run.report["compute"] == "cuda" and "cpu" not in run.report["device"]
        assert run.report["gradient_error"] <= 1e-10 and run.report["loss_error"] <= 1e-10
        spans = run.measured.compute(0)
        assert len(spans) == 8 and all(span.end_s > span.start_s for span in spans)
        assert all(a.end_s <= b.start_s + 1e-6 for a, b in itertools.pairwise(spans))
    assert [run.report["peak_live_microbatches_measured"] for run in runs] == [[4], [1]]


@one_device
def test_the_command_line_runs_one_rank_on_cuda(command):
    from realrun_processes import one_object

    status, out, err = command(
        "--pp", 1, "--microbatches", 4, "--device", "cuda", "--steps", 2, "--json"
    ).end()
    answer = one_object(out)
    assert status == 0, err
    assert {run["compute"] for run in answer["runs"]} == {"cuda"} and max(
        run["gradient_error"] for run in answer["runs"]
    ) <= 1e-10


@two_devices
@pytest.mark.parametrize("microbatches", [2, 8])
def test_both_schedules_over_nccl_end_and_get_the_gradients_of_one_process(tmp_path, microbatches):
    """Also that they end: NCCL makes connections late, and a device that waits for everything waits
    for posted receives."""
    ranks = min(devices(), 4)
    with Pool(ranks, device="cuda") as pool:
        programs = [generate(name, ranks, microbatches) for name in ("gpipe", "1f1b")]
        runs = execute(pool, programs, steps=2, sizes=MODEL, out=str(tmp_path))
    for run in runs:
        assert run.report["compute"] == "cuda" and run.report["gradient_error"] <= 1e-10
        assert (
            run.report["peak_live_microbatches_measured"]
            == run.report["peak_live_microbatches_predicted"]
        )


@one_device
def test_eight_ranks_that_share_gpus_over_nccl_get_the_gradients_of_one_process(tmp_path):
    """NCCL refuses two ranks of one host on one GPU; each takes itself for a host here."""
    with Pool(8, device="cuda") as pool:
        for plan in ({"dp": 2, "tp": 2, "pp": 2}, {"dp": 4, "tp": 2, "zero": 3}):
            plan |= {"microbatches": 4}
            facts = pool.run(Job(plan=plan, sizes=SMALL, steps=2, out=str(tmp_path)))
            assert facts["gradient_error"] <= 1e-9
            assert ("share" in facts["why_compute"]) == (devices() < 8)


@two_devices
def test_stages_back_to_front_over_nccl_get_the_gradients_of_one_process(tmp_path):
    from realrun_processes import random_program

    with Pool(2, device="cuda") as pool:
        (run,) = execute(
            pool, [random_program([0, 1, 1, 0], 4, seed=2)], steps=1, sizes=MODEL, out=str(tmp_path)
        )
    assert run.report["gradient_error"] <= 1e-10


SMALL = {"layers": 4, "hidden": 64, "heads": 4, "seq": 32}


def torchs_run(ranks, folder, plan):
    """The facts of `plan` in bf16 on CUDA by torch's back-end."""
    job = Job(
        plan=plan,
        sizes=SMALL,
        backend="torch",
        precision="bf16",
        reference=True,
        steps=3,
        out=str(folder),
    )
    with Pool(ranks, device="cuda") as pool:
        return pool.run(job)


@one_device
@pytest.mark.parametrize(
    "plan", [{"microbatches": 2}, {"microbatches": 2, "recompute": "full"}], ids=str
)
def test_torchs_backend_on_cuda_trains_as_one_process_does_and_times_by_events(tmp_path, plan):
    facts = torchs_run(1, tmp_path, plan)
    assert facts["gradient_error"] <= 1e-9 and facts["measured_step_s"] > 0
    assert facts["allocator_bytes"][0] >= sum(facts["memory_bytes"][0].values())
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-3)


@two_devices
@pytest.mark.parametrize("plan", [
    {"dp": 2, "zero": 3, "microbatches": 2}, {"tp": 2, "sequence_parallel": True}, {"pp": 2, "microbatches": 4, "schedule": "zb-h1"},
], ids=str)  # fmt: skip
def test_torchs_backend_over_nccl_trains_as_one_process_does(tmp_path, plan):
    facts = torchs_run(2, tmp_path, plan)
    assert facts["gradient_error"] <= 1e-9
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-3)


def test_a_job_on_cuda_refuses_paced_links():
    with pytest.raises(ValueError, match="paced links need the CPU's clock"):
        Job(programs={"x": "0F0 0B0"}, compute="cuda", link_s=0.001)

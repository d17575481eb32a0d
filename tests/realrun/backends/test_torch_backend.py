"""Plans on torch's own parallelism: the same checks as ours, and beside ours in bytes and
memory."""

import os
import signal
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import simlab as sl
from realrun import Pool
from realrun.launch.pool import RunError
from realrun.model.reference import single_training
from realrun.model.text import batch
from realrun.record.recorder import RankProgress
from realrun.report.facts import totals
from realrun.report.summary import failures, summary
from realrun.run.job import CLIP_NORM, Job
from realrun.run.session import LEARNING_RATE
from simlab.errors import InputError
from tests.support.patience import eventually

SMALL = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16}


@pytest.fixture(scope="module")
def pool(pools):
    return pools(4)


JOB = (
    "backend",
    "steps",
    "check",
    "checkpoint_every",
    "checkpoints",
    "resume",
    "reference",
    "loss_scale",
)


def run(pool, folder, *, job_precision=None, **given):
    """The `Job` of the plan and job fields `given`, and what came of it."""
    fields = {"backend": "torch", "steps": 3, "reference": True} | {
        name: given.pop(name) for name in JOB if name in given
    }
    job = Job(plan=given, sizes=SMALL, warmup=0, precision=job_precision, out=str(folder), **fields)
    return job, pool.run(job)


PLANS = [
    {"dp": 4, "microbatches": 2}, {"dp": 4, "zero": 1}, {"dp": 4, "zero": 2, "microbatches": 2}, {"dp": 4, "zero": 3, "microbatches": 2},
    {"dp": 4, "zero": 3, "reshard": False, "microbatches": 2},
    {"dp": 2, "tp": 2, "microbatches": 2}, {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2}, {"tp": 4, "recompute": "full"},
    {"dp": 2, "tp": 2, "sequence_parallel": True, "zero": 2, "recompute": "selective"},
]  # fmt: skip
V_SHAPED = pytest.mark.skipif(
    torch.__version__ < "2.12",
    reason="torch 2.11 sends to itself where neighbouring stages are on one rank, which gloo cannot",
)
PIPELINES = [
    {"microbatches": 4, "pp": 4, "schedule": "gpipe"}, {"microbatches": 4, "pp": 2, "tp": 2, "sequence_parallel": True, "schedule": "1f1b"},
    {"microbatches": 4, "pp": 2, "dp": 2, "zero": 3, "schedule": "interleaved-1f1b", "chunks": 2, "recompute": "full"},
    {"microbatches": 4, "pp": 2, "dp": 2, "schedule": "zb-h1"},
    pytest.param({"microbatches": 4, "pp": 2, "dp": 2, "zero": 2, "schedule": "dualpipe-v"}, marks=V_SHAPED),
]  # fmt: skip


@pytest.mark.parametrize("plan", [*PLANS, *PIPELINES], ids=str)
def test_torchs_backend_trains_as_one_process_does(pool, tmp_path, plan):
    job, facts = run(pool, tmp_path, **plan)
    assert not failures(facts) and facts["gradient_error"] < 1e-12
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-6)
    assert "sent by all ranks, realrun's own send" in summary(job, facts)


@pytest.mark.parametrize("plan,precision", [
    ({"dp": 4, "zero": 1}, "bf16"), ({"dp": 2, "tp": 2, "zero": 3}, "fp16"), ({"pp": 2, "tp": 2, "microbatches": 4}, "bf16"),
], ids=str)  # fmt: skip
def test_in_16_bits_torchs_backend_stays_close_to_one_process_in_32(
    pool, tmp_path, plan, precision
):
    _, facts = run(pool, tmp_path, **plan, precision=precision, job_precision=precision)
    apart = max(abs(own / its - 1) for own, its in zip(facts["losses"], facts["reference_losses"]))
    assert not failures(facts) and 0 < apart < 1e-3
    assert (facts["loss_scale"] is None) == (precision == "bf16")


@V_SHAPED
def test_one_rank_of_zero_3_frees_nothing_between_the_halves_of_a_backward(pool, tmp_path):
    """torch's runtime would get those gradients wrong, and says nothing; the check in float64 has
    no copies in 16 bits to free."""
    plan = {"pp": 2, "tp": 2, "microbatches": 4, "schedule": "dualpipe-v"}
    (_, sharded), (_, whole) = (
        run(pool, tmp_path, **plan, zero=zero, precision="bf16", job_precision="bf16")
        for zero in (3, 0)
    )
    assert sharded["norms"] == whole["norms"] and sharded["losses"] == whole["losses"]


def test_stages_that_are_all_on_one_rank_are_a_pipeline_too(pool, tmp_path):
    _, facts = run(pool, tmp_path, dp=4, chunks=2, schedule="interleaved-1f1b", microbatches=2)
    assert not failures(facts) and facts["losses"] == pytest.approx(
        facts["reference_losses"], rel=1e-6
    )


def test_a_pool_has_no_more_process_groups_after_a_run_than_before(tmp_path):
    def threads(pool):
        return [
            len(list(Path(f"/proc/{pid}/task").iterdir()))
            for pid in [process.pid for process in pool._processes.started]
        ]

    with Pool(2) as two:
        counts = []
        for _ in range(3):
            run(two, tmp_path, dp=2, zero=3)
            counts.append(threads(two))
    assert counts[1] == counts[2]


@pytest.mark.parametrize("backend", ["torch", "native"])
def test_a_rank_that_stops_in_a_step_or_between_two_is_missed_and_the_place_of_all_is_told(
    tmp_path, backend
):
    def job(steps, **fields):
        return Job(
            plan={"dp": 2}, sizes=SMALL, backend=backend, check=False, steps=steps,
            out=str(tmp_path / str(steps)), **fields,
        )  # fmt: skip

    long = job(5_000, timeout_s=3.0)

    def stepping():
        progress = RankProgress.load(long.folder / "rank1.records")
        return two.closed or (progress and progress.done > 20)

    def stop(pid):
        if eventually(stepping) and not two.closed:
            os.kill(pid, signal.SIGSTOP)

    with Pool(2) as two:
        two.run(job(1))  # what a first step does once takes long
        threading.Thread(target=stop, args=(two._processes.started[1].pid,), daemon=True).start()
        with pytest.raises(
            RunError, match=r"^rank 1 \(.*no rank has moved for 3 s: .*rank [01] (is|waits) "
        ):
            two.run(long)


def test_a_scale_that_overflows_on_one_stage_skips_the_step_on_all_and_is_halved(pool, tmp_path):
    _, facts = run(
        pool,
        tmp_path,
        pp=4,
        microbatches=4,
        precision="fp16",
        job_precision="fp16",
        loss_scale=2.0**30,
    )
    skipped = [norm is None for norm in facts["norms"]]
    assert skipped == [True] * 3 and facts["loss_scale"] == 2.0**27
    assert len(set(facts["losses"])) == 3  # other data, the same weights


SHARDED, REPLICATED = {"dp": 2, "tp": 2, "zero": 3, "microbatches": 2}, {"dp": 4, "zero": 1}
CUT, CHUNKED = (
    {"pp": 2, "tp": 2, "sequence_parallel": True, "microbatches": 4},
    {"dp": 2, "pp": 2, "zero": 2, "microbatches": 2, "schedule": "interleaved-1f1b", "chunks": 2},
)


@pytest.mark.parametrize("first,then,plans", [
    ("torch", "native", (SHARDED, CUT)), ("native", "torch", (SHARDED, CUT)), ("torch", "torch", (REPLICATED, CHUNKED)),
])  # fmt: skip
def test_either_backend_goes_on_from_the_others_checkpoint_on_another_plan(
    pool, tmp_path, plans, first, then
):
    fields = {"checkpoints": str(tmp_path / "kept"), "check": False}
    run(
        pool,
        tmp_path,
        **plans[0],
        backend=first,
        steps=2,
        checkpoint_every=2,
        **fields,
        reference=False,
    )
    _, resumed = run(
        pool, tmp_path, **plans[1], backend=then, steps=4, resume=True, **fields, reference=False
    )
    assert resumed["first_step"] == 2
    assert resumed["losses"] == pytest.approx(one_process(4)[2:], rel=1e-6)


def one_process(steps):
    """[loss of each step] of the tests' batches of four sequences, without any ranks."""
    batches = (batch(step, 4, 1, SMALL["seq"]) for step in range(steps))
    return single_training(
        SMALL | {"microbatch_size": 1}, 1, batches, LEARNING_RATE, limit=CLIP_NORM
    )


@pytest.mark.parametrize(
    "plan", [plan for plan in PLANS if "tp" not in plan and plan.get("zero") != 1], ids=str
)
def test_ddp_and_fsdp2_send_what_ours_does_but_for_the_norm(pool, tmp_path, plan):
    _, facts = run(pool, tmp_path, **plan)
    ours, theirs = (
        totals(facts[f"sent_bytes_{which}"])["dp"] for which in ("predicted", "measured")
    )
    # 4 ranks' all-reduces of two numbers of 8 bytes
    assert abs(ours - theirs) <= 4 * 2 * 3 / 4 * 16


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b"])
@pytest.mark.parametrize("reshard", [True, False])
def test_torchs_pipelines_gather_and_reduce_when_the_lists_of_its_library_say(
    pool, tmp_path, schedule, reshard
):
    """The first step, which is counted, also infers shapes, and gathers each stage once more for
    that, or the last one twice if it reshards; that does not depend on the microbatches."""

    def beyond_the_lists(microbatches):
        plan = {"dp": 2, "pp": 2, "zero": 3, "schedule": schedule, "reshard": reshard}
        job, facts = run(pool, tmp_path, **plan, microbatches=microbatches)
        lists = sl.traffic(job.model, replace(job.executed, library="torch"))
        ours = [of_rank.dp for of_rank in lists for _ in range(2)]  # both replicas of each stage
        gathers = [of_rank["dp"] - own for of_rank, own in zip(facts["sent_bytes_measured"], ours)]
        return sum(gathers) / (4 * job.model.parameters)  # half of a stage's fp32 by each of two

    extra = 1.5 if reshard else 1.0
    assert [beyond_the_lists(m) for m in (2, 4)] == pytest.approx([extra] * 2, rel=0.02)


def test_torchs_zero_1_reduces_all_and_broadcasts_which_is_more(pool, tmp_path):
    _, facts = run(pool, tmp_path, dp=4, zero=1)
    ours, theirs = (
        totals(facts[f"sent_bytes_{which}"])["dp"] for which in ("predicted", "measured")
    )
    # 2 + 1 parts of (n-1)/n of all, where scattering and gathering are 1 + 1
    assert theirs == pytest.approx(1.5 * ours, rel=1e-3)


def test_states_are_simlabs(pool, tmp_path):
    for plan in ({"dp": 4}, {"dp": 4, "zero": 3}, {"dp": 2, "tp": 2, "zero": 3}):
        _, facts = run(pool, tmp_path, **plan)
        for held, asked in zip(facts["memory_bytes"], facts["memory_bytes_predicted"]):
            assert held == {name: asked[name] for name in held}


@pytest.mark.parametrize("plan,fields,said", [
    ({"cp": 2}, {}, "--cp 2 with backend torch"), ({"dp": 2}, {"fault": "nan@1:1"}, "--inject nan@1:1 with backend torch"),
    ({"dp": 2, "tp": 2, "zero": 1}, {}, "zero = 1 with tp = 2, 1 stages and backend torch"),
    ({"pp": 2, "microbatches": 4, "schedule": "dualpipe"}, {}, "schedule 'dualpipe' with backend torch"),
    ({"pp": 2, "dp": 2, "zero": 3, "microbatches": 4, "schedule": "zb-v"}, {}, "zero = 3 with schedule 'zb-v' and backend torch"),
    ({"dp": 2, "dp_overlap": False}, {}, "--dp-overlap False with backend torch"),
    ({"dp": 2}, {"box": {"cluster": "dgx-a100"}}, "--cluster dgx-a100 with backend torch"),
])  # fmt: skip
def test_what_torchs_backend_leaves_out_is_refused(plan, fields, said):
    with pytest.raises(InputError, match=said):
        Job(plan=plan, **{"backend": "torch"} | fields)

"""A plan's run from outside: what the command says, what is found when something breaks, and how
training goes on after it."""

import json
import os
import random
import signal
import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from realrun.checkpoint import save as checkpoint
from realrun.cli.jobs import values
from realrun.cli.main import main, parser
from realrun.launch.pool import Pool, RunError
from realrun.record.recorder import DONE
from realrun.report.pictures import write_pictures
from realrun.report.summary import failures, summary
from realrun.report.traces import load_traces
from realrun.run.box import Box, Overhead
from realrun.run.conformance import Conformance
from realrun.run.faults import stragglers
from realrun.run.job import Job
from realrun.run.progress import TrainingProgress, line
from simlab import Trace
from simlab.engine.play import ClusterTimes, play
from simlab.errors import InputError
from simlab.lowering.instructions import Instruction
from simlab.spec.cluster import load_cluster
from simlab.spec.plan import Plan
from tests.support.patience import eventually
from tests.support.realrun_processes import RestingPool

SIZES = {"layers": 2, "hidden": 32, "heads": 4, "seq": 16}
THREE = {"dp": 2, "zero": 3, "microbatches": 2}
STEPS = 6


@pytest.fixture(scope="module")
def pair():
    """A pool of two ranks that nothing breaks."""
    with RestingPool(2, say=SAID.append) as pool:
        yield pool


SAID: list[str] = []
"""What `pair` has said."""


def job_in(folder, plan, **fields):
    """A short job that writes into `folder`."""
    return Job(
        plan=plan,
        sizes=SIZES,
        out=str(folder),
        **{"warmup": 0, "steps": STEPS, "check": False} | fields,
    )


# in a box
# -------------------------------------------------------------------------------------------------


def test_a_box_keeps_the_clusters_proportions_and_says_what_was_sent_and_waited_for(pair, tmp_path):
    job = job_in(
        tmp_path, {"tp": 2}, box={"cluster": "dgx-a100", "time_scale": 30.0}, steps=2, check=True
    )
    facts = pair.run(job)
    assert not failures(facts) and facts["gradient_error"] < 1e-12
    asked = f"paced in a box to the times of {job.box_model.name} on dgx-a100, 30.0 times as slow"
    assert any(asked in text for text in SAID)
    predicted, measured = (
        Trace.load(job.folder / f"{name}.json") for name in ("predicted", "measured-step-1")
    )
    names = [
        {(span.rank, span.stream, span.op) for span in trace.spans}
        for trace in (predicted, measured)
    ]
    assert names[0] == names[1]
    assert predicted.whole_step_s == facts["predicted_step_s"]
    without_overhead_s = Box(job).predicted(Overhead(0.0, 0.0)).whole_step_s
    # padded: never faster than it shall be, but for rounding of clocks
    assert facts["measured_step_s"] > 0.98 * without_overhead_s
    assert sum(facts["exposed_s_predicted"][0].values()) < facts["predicted_step_s"]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_a_run_is_predicted_for_the_machine_that_it_names_by_the_list_that_it_executes(
    pair, tmp_path, backend
):
    job = job_in(
        tmp_path, {"tp": 2, "microbatches": 2}, predict_on="laptop", backend=backend, steps=1
    )
    facts = pair.run(job)
    plan = replace(job.executed, library={"native": "megatron", "torch": "torch"}[backend])
    alone = play(
        job.model,
        plan,
        job.program,
        ClusterTimes(job.model, plan, load_cluster("laptop"), job.program),
    )
    assert facts["predicted_step_s"] == pytest.approx(alone.whole_step_s, rel=1e-12)
    assert facts["error"] == pytest.approx(facts["predicted_step_s"] / facts["measured_step_s"] - 1)
    # no GPU
    assert facts["allocator_bytes"] == [None, None] and "allocator" not in summary(job, facts)
    held = sum(facts["memory_bytes_predicted"][0].values())
    assert "at most; simlab's bytes are -50.0% from it" in summary(
        job, facts | {"allocator_bytes": [2 * held, 2 * held]}
    )
    assert (
        "machine    predicted for laptop: 1 x " in summary(job, facts)
        and len(write_pictures(job, job.runs[0], facts, load_traces(job, job.runs[0]))) == 1
    )


def test_a_machine_is_one_that_there_is_and_not_that_of_a_box(tmp_path):
    for fields, said in (
        ({"predict_on": "dgx-h10"}, "unknown cluster 'dgx-h10', did you mean 'dgx-h100'"),
        (
            {"predict_on": "dgx-h100", "box": {"cluster": "dgx-a100"}},
            "predict_on = 'dgx-h100' in a box",
        ),
    ):
        with pytest.raises(InputError, match=said):
            job_in(tmp_path, {"dp": 2}, **fields)
    assert job_in(tmp_path, {"dp": 12}, predict_on="dgx-h100").machine.nodes == 2


def test_a_prediction_names_the_machine_that_it_is_for(tmp_path):
    job = job_in(tmp_path, {"dp": 2}, predict_on="dgx-h100")
    assert job.prediction().metadata["cluster"] == "dgx-h100"
    boxed = Box(job_in(tmp_path, {"dp": 2}, box={"cluster": "dgx-a100"}))
    assert boxed.predicted(Overhead()).metadata["cluster"] == "a box of dgx-a100"


def test_where_computing_is_queued_its_times_are_read_when_it_is_done():
    seconds, queued = [], [0.02, 0.03]
    reduced = ("0F0", "a sum", (), "tp", "all_reduce", 4.0)
    steps = [
        Instruction("compute", "0F0", "a"),
        Instruction("begin", *reduced),
        Instruction("wait", *reduced),
    ]
    recorder = SimpleNamespace(
        write=lambda record: seconds.append(
            (record.position, record.state, record.end_s - record.start_s)
        )
    )
    conformance = Conformance(
        0, steps, recorder, settle=lambda: time.sleep(queued.pop(0) if queued else 0)
    )
    begun = conformance.begins("tp", "all_reduce", 4)
    conformance.waits(begun)
    conformance.ended(begun)
    conformance.end_step()
    took = {position: length for position, state, length in seconds if state == DONE}
    assert took[0] >= 0.02 and took[2] >= 0.03


@pytest.mark.parametrize(
    "plan",
    [{"tp": 2}, {"dp": 2, "zero": 1}, {"dp": 2, "zero": 3}, {"pp": 2, "microbatches": 4}],
    ids=str,
)
def test_the_report_holds_memory_against_simlabs(pair, tmp_path, plan):
    facts = pair.run(job_in(tmp_path, plan, steps=1))
    for measured, predicted in zip(facts["memory_bytes"], facts["memory_bytes_predicted"]):
        for name in ("parameters", "gradients", "optimizer"):
            assert measured[name] == pytest.approx(predicted[name], rel=1e-9)
        assert measured["activations"] == pytest.approx(predicted["activations"], rel=0.02)


def test_the_reference_trains_to_the_same_losses(pair, tmp_path):
    facts = pair.run(job_in(tmp_path, {"pp": 2, "microbatches": 2}, reference=True))
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=1e-6)


# checkpoints
# ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [
        THREE,
        {"pp": 2, "microbatches": 4},
        {"tp": 2, "microbatches": 4},
        {"cp": 2, "microbatches": 4},
    ],
)
def test_training_goes_on_from_a_checkpoint_under_the_same_and_other_plans(pair, tmp_path, plan):
    unbroken = pair.run(job_in(tmp_path / "unbroken", THREE))["losses"]
    pair.run(job_in(tmp_path, THREE, steps=4, checkpoint_every=2))
    rest = pair.run(job_in(tmp_path, plan, checkpoint_every=2, resume=True))
    assert rest["first_step"] == 4
    assert rest["losses"] == pytest.approx(unbroken[4:], rel=0 if plan is THREE else 1e-6)


def saved(job):
    """The steps of the newest complete checkpoint; 0 without one."""
    return max(checkpoint.complete(job.checkpoint_folder), default=0)


@pytest.mark.parametrize("seed", range(2))
def test_a_rank_that_is_killed_costs_the_steps_since_the_last_complete_checkpoint_only(
    tmp_path, seed, pair
):
    luck = random.Random(seed)
    job = job_in(tmp_path, THREE, steps=10_000, checkpoint_every=1)
    saves = luck.randrange(1, 20)

    def kill(victim):
        if eventually(lambda: pool.closed or saved(job) >= saves) and not pool.closed:
            time.sleep(luck.uniform(0.0, 0.1))  # in whatever comes then
            os.kill(victim, signal.SIGKILL)

    with Pool(2) as pool:
        victim = pool._processes.started[luck.randrange(2)].pid
        killer = threading.Thread(target=kill, args=(victim,))
        killer.start()
        with pytest.raises(RunError, match=r"rank \d \(process \d+\) was killed by signal 9"):
            pool.run(job)
        killer.join()
        assert not any(process.is_alive() for process in pool._processes.started)
    with Pool(2) as pool:
        done = saved(job)
        rest = pool.run(job_in(tmp_path, THREE, steps=done + 3, resume=True))
    assert rest["first_step"] == done >= saves
    assert (
        rest["losses"]
        == pair.run(job_in(tmp_path / "unbroken", THREE, steps=done + 3))["losses"][done:]
    )


# faults
# ---------------------------------------------------------------------------------------------------

NAMED = {
    "hang@1:1": r"rank 1 is running 0B0 head in step 1; rank 0 waits for the tp all_reduce of 0B0 head head grad reduce, which rank 1 has",
    "skip@1:1": r"rank 1 is done with 0B0 head, but its list goes on with begin 0B0 head head grad reduce \(tp all_reduce of 2048 bytes\)",
    "resize@0:1": r"rank 0 begins tp all_reduce of 1024 bytes, but next is begin 0B0 head head grad",
    "nan@1:1": r"rank 1: 0F0 made numbers that are not finite",
    "leak@0:1": r"rank 0: a memory leak: after step 1, \d+ bytes are still held",
    "kill@1:1": r"rank 1 \(process \d+\) was killed by signal 9 .* while running 0B0 head in step 1; the others were ended",
}


@pytest.mark.parametrize("fault", NAMED)
def test_a_fault_is_named_with_rank_and_op(tmp_path, fault):
    short = {"timeout_s": 5.0} if fault.startswith("hang") else {}
    with Pool(2) as pool:
        with pytest.raises(RunError, match=NAMED[fault]):
            pool.run(job_in(tmp_path, {"tp": 2}, fault=fault, **short))
        assert not any(process.is_alive() for process in pool._processes.started)


def test_a_rank_that_holds_the_same_stages_is_a_peer():
    """DualPipe's, at the other end of the pipeline."""
    plan = Plan(pp=4, microbatches=8, schedule="dualpipe")
    assert stragglers([1.0, 3.0, 1.0, 2.0], plan) == [(1, 3.0), (3, 2.0)]
    assert stragglers([1.0, 3.0, 3.0, 1.0], plan) == []


def test_a_straggler_is_named(pair, tmp_path):
    """In one of several runs at least: what else a machine does makes another rank slow at times."""

    def named():
        facts = pair.run(job_in(tmp_path, {"tp": 2}, fault="slow@1:0"))
        first, second = facts["vitals"][-1]
        assert first["loss"] + second["loss"] == pytest.approx(facts["losses"][-1])
        return (
            [rank for rank, _ in facts["stragglers"]] == [1]
            and second["computed_s"] > 1.25 * first["computed_s"]
            and second["waited_s"] < first["waited_s"]
        )

    assert eventually(named)


def test_the_line_while_it_trains_says_speed_waiting_memory_and_who_is_slow(tmp_path):
    box = {"cluster": "dgx-h100", "model": "llama-2-7b", "time_scale": 4}
    job = Job(plan={"dp": 4}, sizes={"layers": 2}, box=box, steps=2, warmup=0, out=str(tmp_path))
    progress = TrainingProgress(job, time_scale=4)
    vitals = [
        {"loss": 0.5, "computed_s": 0.2, "waited_s": 0.2, "activations": 2**20} for rank in range(3)
    ]
    vitals.append({"loss": 0.5, "computed_s": 0.3, "waited_s": 0.1, "activations": 2**19})
    assert progress.step(0, 3.0, 0.4, vitals) is None  # a second has not passed: nothing is said
    now = progress.step(1, 2.0, 0.4, vitals)
    assert now["losses"] == [3.0, 2.0] and [*progress.said] == [now]
    mfu = (
        3
        * (2 * sum(job.box_model.layer_flops().values()) + job.box_model.head_flops)
        * 4
        * 4096
        / 0.1
        / (4 * 989.4e12)
    )
    assert line(now) == (
        f"[####################] step 2 of 2: loss 2.0000, 400.0 ms, 320 tokens/s, MFU {mfu:.1%} (attention counted "
        "in full), 44% waiting, 1.0 MiB of activations, "
        "rank 3 computes 1.50 times as long as its peers"
    )
    assert "step 2 of 402: about 3 min left, loss 2.0000" in line(now | {"steps": 402})


# the command
# ----------------------------------------------------------------------------------------------


def test_a_plan_file_and_the_command_line_make_one_json_object(tmp_path, capsys):
    (tmp_path / "plan.yaml").write_text(
        "dp: 2\nzero: 1\nsteps: 1\nlayers: 2\nhidden: 32\nseq: 16\n"
    )
    plan, out = str(tmp_path / "plan.yaml"), str(tmp_path / "out")
    arguments = ["--plan", plan, "--zero", "2", "--out", out, "--json"]
    assert main(arguments) == 0
    result = json.loads(capsys.readouterr().out)
    (facts,) = result["runs"]
    assert result["ok"] and facts["name"] == "dp2-zero2" and facts["gradient_error"] < 1e-9
    assert (tmp_path / "out" / "dp2-zero2" / "timeline.png").stat().st_size > 10_000


@pytest.mark.parametrize(
    "text, expected",
    [
        ("dp: 2\nzeroo: 1\n", "unknown name 'zeroo', did you mean 'zero'?"),
        ("dp: 2\nhybrid: 2\nzero: 3\n", "hybrid = 2 is simulated, but not executed: leave it out"),
        (
            "recompute: per-op\nlibrary: torch\nfused: no\n",
            "recompute = 'per-op' is simulated, but not executed: give 'none', 'selective' or 'full'; "
            "library = 'torch' is simulated, but not executed: leave it out, or give 'megatron', or --backend torch; "
            "fused = False is simulated, but not executed: leave it out, or give yes",
        ),
        ("tp: 3\n", "tp = 3 does not divide byte-level GPT's heads = 4; nearest that do: 1, 2, 4"),
        ("dp: 2\nsteps: many\n", "steps = 'many': give a whole number"),
        ("dp: 2\nsteps: 2.5\n", "steps = 2.5: give a whole number"),
        (
            "dp: 2\nprecision: fp16\nloss_scale: 1e99\n",
            "loss scale 1e+99: give a number above 0 and below 1.32923e+36",
        ),
        ("dp: 2\nnodes: 2\n", "nodes without cluster"),
        (
            "dp: 3\ncluster: dgx-a100\nnodes: 2\n",
            "3 ranks on 2 nodes: give a number of nodes that divides them",
        ),
    ],
)
def test_a_bad_plan_file_is_one_line_that_says_what_would_be_right(
    tmp_path, capsys, text, expected
):
    path = tmp_path / "plan.yaml"
    path.write_text(text)
    assert main(["--plan", str(path), "--out", str(tmp_path / "out")]) == 2
    errors = capsys.readouterr().err
    assert expected in errors and errors.count("\n") == 1 and not (tmp_path / "out").exists()


@pytest.mark.parametrize("asked, backend", [
    (["--backend", "native"], "native"), (["--backend", "torch"], "torch"),
    (["--engine", "torch"], "torch"), (["--engine", "realrun"], "native"),
])  # fmt: skip
def test_a_backend_has_one_name_and_its_old_one_still_means_it(asked, backend):
    assert values(parser().parse_args([*asked, "--dp", "2"])) == {"dp": 2, "backend": backend}


def test_a_fault_that_cannot_be_is_refused():
    for text, expected in (
        ("hangs@1", "did you mean 'hang'"),
        ("hang@8", "there are ranks 0 to 1"),
        ("hang", "say kind@rank:step"),
    ):
        with pytest.raises(InputError, match=expected):
            Job(plan={"tp": 2}, fault=text)

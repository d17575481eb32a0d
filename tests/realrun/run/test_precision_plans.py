"""A plan trained in 16 bits: what it sends and holds is simlab's, it learns what fp32 learns, and
all ranks skip the same steps."""

import pytest
import torch

from realrun.cli.jobs import jobs
from realrun.model.gpt import Stage, loss
from realrun.model.text import batch
from realrun.report.summary import failures
from realrun.run.faults import FaultFound, check_scale
from realrun.run.job import Job
from realrun.run.session import LEARNING_RATE
from simlab.errors import InputError

SIZES = {"layers": 2, "hidden": 64, "heads": 4, "seq": 32}
STEPS = 12


def job_in(folder, plan, sizes=SIZES, **fields):
    """A short job that writes into `folder`."""
    return Job(
        plan=plan,
        sizes=sizes,
        out=str(folder),
        **{"warmup": 0, "steps": STEPS, "check": False} | fields,
    )


PLANS = [
    {"dp": 2, "microbatches": 2}, {"dp": 2, "zero": 1, "microbatches": 2}, {"dp": 2, "zero": 2, "microbatches": 2},
    {"dp": 2, "zero": 3, "microbatches": 2}, {"tp": 2, "recompute": "full"}, {"tp": 2, "sequence_parallel": True},
    {"pp": 2, "microbatches": 4, "schedule": "zb-h1"}, {"cp": 2, "zero": 1}, {"cp": 2, "cp_kind": "all-to-all"},
]  # fmt: skip


@pytest.mark.parametrize("plan", PLANS, ids=str)
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_16_bits_send_and_hold_what_simlab_says_and_learn_what_fp32_learns(
    pools, tmp_path, plan, precision
):
    facts = pools(2).run(job_in(tmp_path, plan, precision=precision, reference=True))
    assert not failures(facts) and facts["precision"] == precision  # bytes: equal
    for measured, predicted in zip(facts["memory_bytes"], facts["memory_bytes_predicted"]):
        for name in ("parameters", "gradients", "optimizer"):
            assert measured[name] == pytest.approx(predicted[name], rel=1e-9)
    assert facts["losses"] == pytest.approx(facts["reference_losses"], rel=3e-3)
    assert facts["losses"][-1] < 0.97 * facts["losses"][0]


@pytest.mark.parametrize(
    "plan", [{"dp": 2}, {"dp": 2, "zero": 3}, {"tp": 2}, {"pp": 2, "microbatches": 4}], ids=str
)
def test_activations_in_16_bits_are_within_two_hundredths_of_simlabs(pools, tmp_path, plan):
    facts = pools(2).run(job_in(tmp_path, plan, precision="bf16", steps=1))
    for measured, predicted in zip(facts["memory_bytes"], facts["memory_bytes_predicted"]):
        assert measured["activations"] == pytest.approx(predicted["activations"], rel=0.02)


@pytest.mark.parametrize("plan", [
    {"tp": 2, "pp": 2, "microbatches": 4}, {"dp": 2, "pp": 2, "zero": 1, "microbatches": 4}, {"dp": 4, "zero": 3},
], ids=str)  # fmt: skip
def test_an_infinite_gradient_on_any_rank_makes_all_ranks_skip_the_step_and_halve_the_scale(
    pools, tmp_path, plan
):
    facts = pools(4).run(job_in(tmp_path, plan, precision="fp16", loss_scale=2.0**27))
    skipped = [norm is None for norm in facts["norms"]]
    assert any(skipped) and not all(skipped)
    assert facts["loss_scale"] == 2.0 ** (27 - sum(skipped))
    # a rank that had skipped by itself, or not, would have other weights ever after
    assert facts["losses"] == pytest.approx(training_without(skipped, plan), rel=3e-3)


def training_without(skipped, plan):
    """[loss of each step] of one process in fp32 that makes no update where `skipped`."""
    stage = Stage(SIZES | {"microbatch_size": 1}, 0, 1)
    optimizer, losses = torch.optim.Adam(stage.parameters(), lr=LEARNING_RATE), []
    for number, skips in enumerate(skipped):
        every = plan.get("dp", 1) * plan.get("microbatches", 1)
        tokens, targets = batch(number, every, 1, SIZES["seq"])
        parts = [loss(stage(x), y) / every for x, y in zip(tokens, targets)]
        sum(parts).backward()
        losses.append(sum(part.item() for part in parts))
        if not skips:
            torch.nn.utils.clip_grad_norm_(stage.parameters(), 1.0)
            optimizer.step()
        optimizer.zero_grad()
    return losses


@pytest.mark.parametrize("other", [{}, {"dp": 1, "zero": 0, "tp": 2, "microbatches": 2}], ids=str)
def test_a_training_goes_on_from_its_masters_and_its_loss_scale(pools, tmp_path, other):
    first = {"dp": 2, "zero": 3, "precision": "fp16"}

    def run(folder, fields, **more):
        precision = fields.pop("precision")
        return pools(2).run(job_in(folder, fields, precision=precision, **more))

    unbroken = run(tmp_path / "unbroken", dict(first))
    run(tmp_path, dict(first), steps=8, checkpoint_every=4)
    rest = run(tmp_path, first | other, checkpoint_every=4, resume=True)
    assert rest["first_step"] == 8
    assert rest["losses"] == pytest.approx(unbroken["losses"][8:], rel=3e-3 if other else 0)
    assert rest["loss_scale"] == unbroken["loss_scale"]


def test_a_training_does_not_go_on_in_another_precision(pools, tmp_path):
    pools(2).run(job_in(tmp_path, {"dp": 2}, precision="fp16", steps=2, checkpoint_every=2))
    other = job_in(tmp_path, {"dp": 2}, precision="bf16", resume=True)
    with pytest.raises(InputError, match="training with precision = fp16, not bf16: the losses"):
        pools(2).run(other)


@pytest.mark.parametrize("fields, expected", [
    ({"precision": "fp8"}, "precision = 'fp8' is simulated, but not executed: give fp32, bf16 or fp16"),
    ({"precision": "fp16", "loss_scale": 0.0}, r"loss scale 0.0: give a number above 0 and below"),
    ({"precision": "bf16", "loss_scale": 8.0}, "loss scale 8 with precision bf16, which needs none"),
    ({"plan": {"gradient_bytes": 2}}, "gradient_bytes = 2 with precision fp32: leave it out, or run in bf16 or fp16"),
    ({"precision": "fp16", "box": {"cluster": "dgx-a100"}}, "precision fp16 in a box of bf16 times"),
    ({"precision": "half"}, "precision = 'half': give one of fp32"),
])  # fmt: skip
def test_what_cannot_be_trained_in_is_refused(fields, expected):
    with pytest.raises(InputError, match=expected):
        Job(**{"plan": {}} | fields)


def test_in_a_box_the_precision_given_is_that_of_the_times_and_of_what_runs(pools, tmp_path):
    box = {"cluster": "dgx-a100", "time_scale": 10.0}
    facts = pools(2).run(job_in(tmp_path, {"tp": 2, "precision": "fp16"}, box=box, steps=1))
    assert not failures(facts) and facts["precision"] == "fp16"
    for asked, runs in (("fp8", "bf16"), ("fp16", "fp16"), ("bf16", "bf16")):
        (job,) = jobs({"tp": 2, "precision": asked, "cluster": "dgx-a100"})
        assert job.executed.precision == runs
    (job,) = jobs({"tp": 2, "cluster": "dgx-a100"})
    assert job.executed.precision == "fp32"


def test_gradients_that_no_loss_scale_makes_finite_are_a_fault_not_skipped_steps_for_ever():
    check_scale(2.0**-24, 1, 3)
    with pytest.raises(
        FaultFound,
        match=r"rank 1: gradients of step 3 are not finite at any loss scale down to 2.98023e-08",
    ):
        check_scale(2.0**-25, 1, 3)

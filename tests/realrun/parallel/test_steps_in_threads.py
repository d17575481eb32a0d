"""A step of a plan on ranks that are threads does what one process does, with the communications
that simlab lists, in their order."""

import pytest
from realrun_plans import (
    ERROR,
    all_plans,
    assert_alike,
    covering,
    loss_alone,
    losses_alone,
    losses_in,
    made_for_a_step,
    made_for_training,
    one_step,
    plan_of,
)
from threaded_ranks import on_layout

CASES = covering([fields | {"dtype": dtype} for fields in all_plans(most=4) for dtype in ERROR])


def text(fields):
    """A plan's fields as a test's name."""
    return "-".join(f"{name}={value}" for name, value in fields.items())


@pytest.mark.parametrize("case", CASES, ids=text)
def test_loss_gradients_and_norm_are_those_of_one_process_and_communications_those_of_the_list(
    case,
):
    fields = dict(case)
    dtype = fields.pop("dtype")
    found = on_layout(
        plan_of(fields).layout,
        lambda rank, *groups: made_for_a_step(rank, fields, dtype, groups),
        lambda made: one_step(*made),
    )
    assert_alike(found, loss_alone(fields, dtype), dtype)


@pytest.mark.parametrize("fields", [
    {"dp": 2, "tp": 2, "pp": 1, "cp": 1, "zero": 3, "microbatches": 2},
    {"dp": 1, "tp": 2, "pp": 1, "cp": 2, "sequence_parallel": True, "microbatches": 2},
    {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "zero": 2, "microbatches": 2, "schedule": "zb-h1"},
    {"dp": 3, "tp": 1, "pp": 1, "cp": 1, "zero": 1, "microbatches": 2},
    {"dp": 1, "tp": 1, "pp": 2, "cp": 2, "zero": 3, "prefetch": 2, "microbatches": 2, "schedule": "interleaved-1f1b"},
    {"dp": 2, "tp": 1, "pp": 2, "cp": 1, "zero": 1, "microbatches": 4, "schedule": "dualpipe"},
    {"dp": 1, "tp": 2, "pp": 2, "cp": 1, "microbatches": 4, "schedule": "dualpipe"},
    {"dp": 3, "tp": 1, "pp": 1, "cp": 1, "zero": 0, "microbatches": 2, "recompute": "full"},
], ids=text)  # fmt: skip
def test_training_stays_together_with_training_in_one_process(fields):
    steps, limit = 4, 0.5
    parts = on_layout(
        plan_of(fields).layout,
        lambda rank, *groups: made_for_training(rank, fields, limit, groups),
        lambda executor: losses_in(executor, steps),
    )
    losses, norms = losses_alone(fields, steps, limit)
    assert [sum(step) for step in zip(*parts)] == pytest.approx(losses, rel=1e-9)
    assert max(norms) > limit  # it was clipped

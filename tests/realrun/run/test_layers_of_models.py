"""Plans of models with the layers that people train, executed on processes: gradients are those of one
process, and bytes those of the list."""

from itertools import chain

import pytest
import torch
from realrun_plans import (
    ERROR,
    Gradients,
    assert_alike,
    executor_of,
    one_step,
    own_parts,
)

import simlab as sl
from realrun.model.reference import single_process
from realrun.model.sizes import model_of, sizes_like
from realrun.model.text import batch
from realrun.run.job import Job
from simlab.errors import InputError

ASKED = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16}
CUBE = {"dp": 2, "tp": 2, "pp": 2, "cp": 1, "microbatches": 2}
SP = {"sequence_parallel": True}
PLANS = {
    "gpt2": CUBE,
    "llama-3-8b": CUBE | SP | {"zero": 1},
    "qwen2.5-7b": CUBE | {"recompute": "full", "zero": 2},
    "gemma-3-27b": CUBE | SP | {"schedule": "zb-h1"},
    "mixtral-8x7b": CUBE | SP | {"ep": 4, "etp": 1, "schedule": "interleaved-1f1b"},
    "qwen3-8b": CUBE,
    "glm-4.5": CUBE | SP | {"ep": 2, "etp": 1},
    "llama-3-70b": CUBE | {"pp": 1, "cp": 2, "zero": 3},
    "nemotron-3-nano-30b-a3b": CUBE
    | {"dp": 4, "tp": 1, "ep": 2, "zero": 1, "schedule": "zb-h1", "microbatches": 4},
}


def sizes_of(name, fields):
    sizes = sizes_like(sl.load_model(name), ASKED) | {"microbatch_size": 2}
    if "ep" in fields:
        sizes |= {"capacity": 8 // fields["tp"], "routed_parts": fields["tp"]}
    return sizes


def step(rank, name, fields, dtype_name):
    """What `one_step` finds on this rank."""
    dtype, sizes = getattr(torch, dtype_name), sizes_of(name, fields)
    executor = executor_of(rank, fields, dtype, Gradients, sizes=sizes, limit=None)
    plan = executor.plan
    data = batch(0, plan.dp * plan.microbatches, plan.microbatch_size, plan.seq)
    loss, expected = single_process(
        sizes, executor.program.stages, *data, dtype, tuple(executor.stage_layers)
    )
    every = [gradient for stage in expected for gradient in stage.values()]
    whole = sum(gradient.double().square().sum() for gradient in every).sqrt().item()
    return one_step(executor, whole, own_parts(executor, expected)) | {"wanted": loss}


@pytest.mark.parametrize("name", PLANS)
def test_gradients_are_those_of_one_process_and_bytes_those_of_the_list(ranks, name):
    fields = PLANS[name]
    for dtype in ERROR:
        found = ranks(8)(step, name, fields, dtype)
        assert_alike(found, found[0]["wanted"], dtype)


def test_a_model_can_be_named_and_made_smaller_on_the_command_line(command):
    asked = ("--model", "llama-3-8b", "--hidden", 64, "--tp", 2, "--layers", 2)
    run = command(*asked, "--steps", 1, "--warmup", 0, "--json").facts()
    assert run["gradient_error"] < 1e-12
    measured, predicted = (run[f"sent_bytes_{by}"] for by in ("measured", "predicted"))
    assert [rank["tp"] for rank in measured] == [rank["tp"] for rank in predicted]


def test_a_training_of_such_layers_goes_on_with_another_plan_and_by_the_other_back_end(command):
    asked = ("--model", "llama-3-8b", "--hidden", 64, "--layers", 2, "--warmup", 0, "--json")
    asked += ("--microbatch-size", 1, "--checkpoint-every", 2)
    parts = [
        ("--dp", 2, "--steps", 2),
        ("--tp", 2, "--microbatches", 2, "--steps", 4, "--resume"),
        ("--tp", 2, "--microbatches", 2, "--steps", 6, "--resume", "--backend", "torch"),
        ("--dp", 2, "--steps", 6, "--checkpoints", "whole"),
    ]
    losses = [command(*asked, *plan).facts()["losses"] for plan in parts]
    assert [*chain(*losses[:3])] == pytest.approx(losses[3], rel=1e-5)


@pytest.mark.parametrize(
    ("fields", "name", "error"),
    [
        ({"tp": 1}, "deepseek-v3", "operation 'q down' is simulated, but not executed"),
        ({"tp": 1}, "gpt-oss-20b", "a score of each head's own is simulated, but not executed"),
        ({"tp": 2}, "olmo-2-7b", "norm of .*tp"),
        ({"cp": 2, "cp_kind": "all-gather"}, "gemma-3-27b", "windows.* are not cut over sequences"),
        ({"tp": 4}, "llama-3-8b", "kv_heads = 2 are simulated, but not executed"),
        ({"tp": 1}, "llama-3-8c", "llama-3-8c.*did you mean"),
    ],
)
def test_what_is_not_executed_is_said(fields, name, error):
    with pytest.raises(InputError, match=error):
        Job(plan=fields, like=name, sizes={"hidden": 64})


def test_the_layers_of_what_runs_are_those_of_the_model():
    job = Job(plan={"tp": 2}, like="gemma-3-27b", sizes={"hidden": 64, "layers": 6})
    its = sl.load_model("gemma-3-27b")
    assert job.model == model_of(job.sizes) and Job(**job.to_json()).model == job.model
    assert job.model.pattern == its.pattern and job.model.norms == its.norms
    assert job.model.counts == {"layer": 5, "full layer": 1}
    assert job.model.heads / job.model.kv_heads == its.heads / its.kv_heads
    assert job.model.of_kind("full layer").window == 0 < job.model.window

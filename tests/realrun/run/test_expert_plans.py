"""Expert parallelism on processes: gradients, losses and the norm are those of one process, and what
ranks send is what simlab lists. Tokens beyond an expert's capacity are dropped by both."""

from itertools import chain

import pytest
import torch
from realrun_plans import (
    ERROR,
    EXPERTS,
    SIZES,
    assert_alike,
    loss_alone,
    losses_alone,
    losses_of,
    plan_of,
    step_of,
    world,
)

from realrun.cli.jobs import jobs
from realrun.model.experts import Experts, routes
from realrun.model.sizes import model_of
from realrun.run.box import Box
from realrun.run.job import Job
from realrun.run.job.clusters import cut_model
from simlab.errors import InputError

PLAIN = {"tp": 1, "pp": 1, "cp": 1, "microbatches": 2}
OWN = PLAIN | {"tp": 2, "sequence_parallel": True, "etp": 1}
"""Tensor-parallel ranks with experts of their own."""
BESIDE = PLAIN | {"microbatches": 4, "ep_overlap": True}
"""A forward and a backward that take turns."""
PLANS = [
    PLAIN | {"dp": 2, "ep": 1, "zero": 1},
    PLAIN | {"dp": 2, "ep": 2},
    PLAIN | {"dp": 4, "ep": 2},
    PLAIN | {"dp": 4, "ep": 4, "dp_overlap": False},
    PLAIN | {"dp": 2, "ep": 2, "zero": 1},
    PLAIN | {"dp": 4, "ep": 2, "zero": 1, "dp_overlap": False},
    PLAIN | {"dp": 4, "ep": 2, "zero": 2},
    PLAIN | {"dp": 4, "ep": 2, "zero": 3, "recompute": "full"},
    PLAIN | {"dp": 4, "ep": 4, "zero": 3, "prefetch": 2},
    PLAIN | {"dp": 4, "ep": 2, "zero": 3, "reshard": False},
    PLAIN | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 3, "recompute": "full"},
    PLAIN | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 3, "schedule": "zb-h1"},
    PLAIN | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b", "zero": 2},
    PLAIN | {"dp": 4, "ep": 2, "pp": 2, "microbatches": 2, "zero": 1},
    PLAIN | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 4, "schedule": "dualpipe"},
    PLAIN | {"dp": 4, "ep": 2, "pp": 2, "microbatches": 4, "schedule": "dualpipe", "zero": 1},
    OWN | {"dp": 1, "ep": 2},
    OWN | {"dp": 2, "ep": 4},
    OWN | {"dp": 2, "ep": 2, "zero": 1},
    OWN | {"dp": 2, "ep": 4, "zero": 2},
    OWN | {"dp": 2, "ep": 2, "zero": 3},
    OWN | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 4, "schedule": "interleaved-1f1b", "recompute": "full"},
    OWN | {"dp": 4, "ep": 4, "zero": 1, "dp_overlap": False},
    OWN | {"dp": 1, "tp": 4, "ep": 4},
    PLAIN | {"dp": 1, "cp": 2, "ep": 2},
    PLAIN | {"dp": 2, "cp": 2, "ep": 4, "zero": 1},
    PLAIN | {"dp": 2, "cp": 2, "ep": 2, "zero": 3, "cp_layout": "contiguous"},
    PLAIN | {"dp": 1, "cp": 4, "ep": 2, "cp_kind": "all-to-all", "dp_overlap": False},
    PLAIN | {"dp": 1, "cp": 2, "ep": 2, "pp": 2, "cp_kind": "all-gather", "schedule": "zb-h1"},
    OWN | {"dp": 1, "cp": 2, "ep": 4},
    BESIDE | {"dp": 1, "cp": 2, "ep": 2, "pp": 2, "schedule": "dualpipe"},
    BESIDE | {"dp": 2, "ep": 2, "microbatches": 3},
    BESIDE | {"dp": 4, "ep": 2, "zero": 2},
    BESIDE | {"dp": 4, "ep": 4, "dp_overlap": False},
    BESIDE | {"dp": 2, "ep": 2, "pp": 2, "schedule": "interleaved-1f1b", "zero": 1},
    BESIDE | {"dp": 2, "ep": 2, "pp": 4, "microbatches": 6, "schedule": "eager-1f1b"},
    BESIDE | {"dp": 2, "ep": 2, "pp": 2, "schedule": "dualpipe"},
    BESIDE | {"dp": 4, "ep": 2, "pp": 2, "microbatches": 6, "schedule": "dualpipe", "zero": 1},
    BESIDE | {"dp": 2, "ep": 2, "pp": 2, "microbatches": 5, "schedule": "dualpipe-v", "zero": 1},
    BESIDE | OWN | {"dp": 2, "ep": 4, "microbatches": 3, "zero": 1},
]  # fmt: skip


def text(fields):
    """What a plan's fields are beside `PLAIN`, as a test's name."""
    return "-".join(f"{name}={value}" for name, value in fields.items() if PLAIN.get(name) != value)


@pytest.mark.parametrize("fields", PLANS, ids=text)
def test_gradients_are_those_of_one_process_and_bytes_those_of_the_list(ranks, fields):
    plan = plan_of(fields)
    for dtype in ERROR:
        found = ranks(world(fields))(step_of, fields, dtype)
        assert_alike(found, loss_alone(fields, dtype), dtype)
    for rank in found:
        assert ("ep" in rank["bytes"]) == (plan.ep > 1)
        assert ("edp" in rank["bytes"]) == (plan.ep > 1 and plan.expert_holders > 1)


@pytest.mark.parametrize(
    "fields", [PLANS[2], PLANS[7], PLANS[11], PLANS[15], PLANS[18], PLANS[-3]], ids=text
)
def test_training_stays_together_with_training_in_one_process(ranks, fields):
    parts = ranks(world(fields))(losses_of, fields, 12, 0.5)
    losses, norms = losses_alone(fields, 12, 0.5)
    assert [sum(step) for step in zip(*parts)] == pytest.approx(losses, rel=1e-9)
    assert max(norms) > 0.5 and losses[-1] < 0.95 * losses[0]  # it was clipped, and it learned


def test_an_expert_takes_the_first_tokens_up_to_its_capacity():
    """Five tokens, of which four want expert 0 most: the fourth of them is dropped there."""
    scores = torch.tensor([[3.0, 1, 0], [3, 0, 1], [0, 3, 1], [3, 1, 0], [3, 0, 1]])
    ways = routes(scores, 2, 3)
    none = len(scores)
    assert ways.token.view(3, 3).tolist() == [[0, 1, 3], [0, 2, 3], [1, 2, 4]]
    assert ways.slot.tolist() == [[0, 3], [1, 6], [4, 7], [2, 5], [9, 8]]
    assert ways.gate[0].tolist() == pytest.approx([0.8807970779, 0.1192029220])
    loose = routes(scores, 1, none)
    assert loose.token.view(3, 5)[2].tolist() == [none] * 5


def few_experts(chosen):
    sizes = {"layers": 1, "hidden": 8, "heads": 1, "seq": 4}
    return model_of(sizes | {"experts": 4, "experts_per_token": chosen})


def test_with_room_for_all_it_is_the_weighted_sum_of_the_chosen_experts():
    torch.manual_seed(0)
    layer = Experts(few_experts(2), capacity=12).double()
    x = torch.randn(3, 4, 8, dtype=torch.float64)
    scores = layer.router(x)
    best, chosen = scores.topk(2, -1)
    every = torch.stack([expert(x) for expert in layer.experts.values()], -2)
    picked = every.gather(-2, chosen.unsqueeze(-1).expand(*chosen.shape, 8))
    wanted = (picked * best.softmax(-1).unsqueeze(-1)).sum(-2)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-12, atol=1e-12)


def test_experts_without_a_token_and_dropped_copies_add_nothing():
    torch.manual_seed(0)
    layer = Experts(few_experts(1), capacity=1).double()
    x = torch.randn(1, 1, 8, dtype=torch.float64).expand(1, 3, 8)  # all want the same expert
    y = layer(x)
    assert y[0, 0].abs().min() > 0 and y[0, 1:].abs().max() == 0
    y.sum().backward()
    took = [expert.up.weight.grad.abs().max() > 0 for expert in layer.experts.values()]
    assert sum(took) == 1


@pytest.mark.parametrize("given, text", [
    ({"dp": 2, "ep": 2}, "ep = 2 without experts: give experts, a multiple of 2, or ep = 1"),
    ({"dp": 4, "ep": 4, "experts": 6, "seq": 48}, "does not divide .*experts = 6"),
    ({"dp": 2, "ep": 2, "tp": 2, "experts": 4}, "tp = 2 that cuts 4 experts is simulated, but not executed: give tp = 1, or etp = 1"),
    ({"dp": 2, "experts": 4, "backend": "torch"}, "4 experts with backend torch"),
    ({"dp": 2, "experts": 4, "experts_per_token": 5}, "5 of 4 experts per token"),
    ({"dp": 2, "experts": -1}, "experts = -1: give a whole number, at least 1"),
    ({"dp": 2, "experts_per_token": 2}, "experts_per_token = 2 without experts"),
    ({"cp": 3, "experts": 4}, "cp = 3 does not divide byte-level GPT's seq = 32"),
    ({"dp": 2, "experts": 7}, "each of 7 experts would take 9.143 of a rank's 64 copies of a microbatch's tokens, no whole number"),
    ({"dp": 2, "ep": 2, "experts": 4, "cluster": "dgx-a100"}, "ep = 2: .* has no experts; give ep = 1"),
], ids=str)  # fmt: skip
def test_what_cannot_be_executed_is_refused_in_a_line(given, text):
    with pytest.raises(InputError, match=text):
        jobs(given)


def test_the_capacity_is_an_even_share_times_the_load():
    (job,) = jobs({"dp": 2, "ep": 2, "experts": 4, "expert_load": 1.25})
    assert job.sizes["capacity"] == 20 and job.name == "dp2-ep2"
    assert EXPERTS["capacity"] == SIZES["microbatch_size"] * SIZES["seq"] * 2 // 4


OF_THEIR_OWN = ("--tp", 2, "--etp", 1, "--sequence-parallel", "yes")


@pytest.mark.parametrize("asked, parts", [
    # four ranks hold two experts each, then two ranks half of them, then pipeline stages all
    ((), [
        ("--dp", 4, "--ep", 2, "--microbatches", 2, "--steps", 2),
        ("--dp", 2, "--ep", 2, "--microbatches", 4, "--zero", 2, "--steps", 4, "--resume"),
        ("--pp", 2, "--microbatches", 8, "--layers", 2, "--steps", 6, "--resume"),
        ("--dp", 4, "--ep", 4, "--microbatches", 2, "--steps", 6, "--out", "whole"),
    ]),
    # four ranks hold one each, then two ranks two; the unbroken training has them twice each
    (OF_THEIR_OWN, [
        ("--dp", 2, "--ep", 4, "--microbatches", 2, "--steps", 2),
        ("--dp", 1, "--ep", 2, "--microbatches", 4, "--steps", 4, "--resume"),
        ("--dp", 2, "--ep", 2, "--microbatches", 2, "--zero", 1, "--steps", 4, "--out", "whole"),
    ]),
], ids=["cut", "own"])  # fmt: skip
def test_a_training_goes_on_under_other_degrees_with_the_losses_of_an_unbroken_one(
    command, asked, parts
):
    asked += ("--experts", 4, "--warmup", 0, "--checkpoint-every", 2, "--json")
    *broken, whole = [command(*asked, *part).facts()["losses"] for part in parts]
    assert [*chain(*broken)] == pytest.approx(whole, rel=1e-4) and whole[-1] < whole[0]


def test_a_box_takes_the_layers_with_experts_of_a_model_whose_first_ones_have_none():
    """All layers that run have them."""
    box = {"cluster": "h800", "model": "deepseek-v3"}
    job = Job(plan={"dp": 2, "ep": 2, "microbatches": 2}, sizes={"experts": 8}, box=box)
    assert job.box_model.dense_layers == 0 and job.box_model.experts == 256
    times = [len(Box(job).seconds(rank)) for rank in range(2)]
    assert times == [len(job.instructions(rank)) for rank in range(2)]


@pytest.mark.parametrize(
    ("name", "experts", "window"), [("llama-4-maverick", 128, 8192), ("gemma-3-27b", 0, 1024)]
)
def test_a_box_takes_one_kind_of_a_models_layers(name, experts, window):
    """Of those with experts, or of those that most are."""
    model = cut_model(name, 4)
    assert {**model.counts} == {"layer": 4}
    assert (model.experts, model.window, model.pattern) == (experts, window, ())

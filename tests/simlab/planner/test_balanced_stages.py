"""A search divides layers by what stages take, head and embedding included: as well as trying every
division would, and only where that is left to it."""

from dataclasses import replace
from itertools import combinations

import pytest

from simlab import InputError, Model, Plan, load_cluster, predict
from simlab.planner import Space, explanation, search, time_bound_s
from simlab.planner.explanation_text import explanation_text
from simlab.planner.prune import Bounds
from simlab.planner.rank import predicted
from simlab.planner.search import layers_text, prediction

HEAVY = Model(
    name="heavy", layers=12, hidden=1024, heads=16, kv_heads=8, ffn=4096, gated_mlp=True,
    vocab=160_000, seq=2048, positions=0, bias=False, tied_head=False,
)  # fmt: skip
MIXED = replace(HEAVY, experts=8, experts_per_token=2, expert_ffn=2048, dense_layers=3)
NODE = load_cluster("dgx-h100", nodes=1)
FIXED = {"tp": 1, "cp": 1, "ep": 1, "zero": 1, "recompute": "none", "microbatch_size": 1}


def space(model=HEAVY, **fixed):
    return Space(model=model, cluster=NODE, global_batch=64, fixed=FIXED | fixed)


def divisions(layers, stages):
    """All ways to put so many layers on stages, of which the last may have none."""
    for cuts in combinations(range(1, layers + 1), stages - 1):
        ends = (*cuts, layers)
        yield tuple(end - start for start, end in zip((0, *cuts), ends))


@pytest.mark.parametrize(("schedule", "off"), [("1f1b", 1.01), ("gpipe", 1.04), ("zb-v", 1.04)])
@pytest.mark.parametrize("model", [HEAVY, MIXED], ids=["dense", "experts"])
def test_no_other_division_of_the_layers_is_much_faster(model, schedule, off):
    """GPipe and ZB-V wait for more than the slowest rank."""
    its = space(model, pp=2, schedule=schedule)
    (best,) = search(its, kept=1, layered=0).plans
    even = predict(model, its.evenly(best.plan), NODE).step_s
    every = [
        predict(model, replace(best.plan, stage_layers=each), NODE).step_s
        for each in divisions(model.layers, best.plan.stages)
    ]
    assert best.step_s <= off * min(every) and best.step_s < 0.96 * even


def test_the_head_takes_layers_off_the_last_rank_of_an_interleaved_schedule():
    its = space(pp=2, schedule="interleaved-1f1b", chunks=3)
    (best,) = search(its, kept=1, layered=0).plans
    assert best.plan.stage_layers[-1] < 2 and sum(best.plan.stage_layers) == 12
    assert best.step_s < 0.96 * predicted(HEAVY, its.evenly(best.plan), NODE).step_s


def test_a_division_that_is_given_or_hardly_better_is_kept():
    found = search(space(pp=2, schedule="1f1b", stage_layers="even"), kept=1, layered=0)
    assert found.plans[0].plan.stage_layers == "even"
    light = replace(HEAVY, vocab=1000)
    assert search(space(light, pp=2, schedule="1f1b"), kept=1).plans[0].plan.stage_layers == "auto"


def test_where_balanced_stages_do_not_fit_even_ones_are_taken():
    its = space(pp=4, schedule="1f1b")
    even = next(plan for plan in its.candidates() if isinstance(plan, Plan))
    balanced = Bounds(HEAVY, NODE).balanced(even)
    # the first rank holds most activations, and has a layer more
    full = replace(balanced, stage_layers=(9, 1, 1, 1))
    room = predicted(HEAVY, even, NODE).fit
    needed = room.needed_bytes * 1.02
    small = replace(its, cluster=replace(NODE, gpu=replace(NODE.gpu, memory_bytes=needed)))
    assert not predicted(HEAVY, full, small.cluster).fit.fits
    assert prediction(small, full).plan == even


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "looped-bfs"])
@pytest.mark.parametrize("layers", [(1, 2, 3, 6), (6, 3, 2, 1), (1, 8, 2, 1), (3, 3, 6, 0)])
def test_a_step_of_unequal_stages_is_never_shorter_than_its_bound(schedule, layers):
    pp = 2 if schedule in ("interleaved-1f1b", "looped-bfs") else 4
    plan = Plan(dp=8 // pp, pp=pp, microbatches=2 * pp, schedule=schedule, stage_layers=layers)
    assert time_bound_s(HEAVY, plan, NODE) <= predict(HEAVY, plan, NODE).step_s * (1 + 1e-9)


def test_the_division_is_said():
    plan = Plan(pp=4, stage_layers=(4, 4, 3, 1))
    assert layers_text(plan) == "2x4+1x3+1x1" and not layers_text(Plan(pp=4))
    found = search(space(pp=4, schedule="1f1b"), kept=2, layered=0)
    text = explanation_text(explanation(found, full=False))
    assert "Layers are divided by what its stages take: " in text
    with pytest.raises(InputError):
        replace(plan, pp=2)

"""The planner's order of plans, executed in a box."""

import pytest

from benchmarks.planner_in_a_box import agreement, best_of_each_split, broken, measured
from realrun.launch.pool import Pool

LAYERS, BATCH = 8, 8
BEST_S = 2.0


def row(planner_step_s, measured_step_s):
    return {"planner_step_s": planner_step_s, "measured_step_s": measured_step_s}


def test_an_order_that_differs_breaks_the_promise_and_so_does_a_first_that_is_slow():
    same = [row(n, 1.1 * n) for n in range(1, 10)]
    assert not broken(agreement(same)) and agreement(same) == {"spearman": 1.0, "regret_pct": 0.0}
    assert broken(agreement([row(n, 10 - n) for n in range(1, 10)]))
    assert broken(agreement([row(1, 2.0), *(row(n, n) for n in range(2, 10)), row(10, 1.9)]))


def test_every_split_of_four_ranks_is_there_once_for_each_schedule():
    plans = [ranked.plan for ranked in best_of_each_split(layers=LAYERS, batch=BATCH)]
    splits = {(plan.tp, plan.pp, plan.schedule) for plan in plans}
    assert len(splits) == len(plans) == 9
    assert all(plan.gpus == 4 and plan.global_batch == BATCH for plan in plans)


@pytest.mark.attack
def test_the_planners_first_is_measured_faster_than_its_last():
    ranks = best_of_each_split(layers=LAYERS, batch=BATCH)
    first, last = ranks[0], ranks[-1]
    with Pool(4) as pool:
        rows = [
            measured(pool, each, BEST_S / first.step_s, LAYERS, steps=2) for each in (first, last)
        ]
    quick_s, slow_s = (found["measured_step_s"] for found in rows)
    assert slow_s > 1.1 * quick_s, rows
    for found in rows:  # padded: never faster than it shall be
        assert found["measured_step_s"] > 0.9 * found["planner_step_s"], rows

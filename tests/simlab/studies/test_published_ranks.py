"""How well an order of layouts agrees with the measured one: rank, regret and fit."""

from itertools import permutations
from pathlib import Path
from statistics import mean, quantiles

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.studies.published.errors import suites
from simlab.studies.published.ranks import (
    Alternative,
    choice,
    rank_correlation,
    regret_pct,
    rule_choice,
)
from simlab.studies.published.runs import SWEEPS, read_runs, result_of
from simlab.units import GIB

MEGATRON = read_runs(Path(__file__).parents[2] / "published" / "runs.csv")[0]
FAILED = {"step_s": "", "mem_gib": "OOM"}
seconds = st.floats(0.1, 10)


def alternative(measured_s, predicted_s=1.0, fits=True, simplest=(1, -1), work="a"):
    return Alternative(
        work=work, measured_s=measured_s, predicted_s=predicted_s, fits=fits, simplest=simplest
    )


@pytest.mark.parametrize("left, right, expected", [
    ([1, 2, 3], [4, 5, 9], 1), ([1, 2, 3], [9, 5, 4], -1),
    # Kendall and Gibbons' formula without ties: 1 - 6 x sum of d^2 / (n^3 - n), d = 1, 1, 0, 0
    ([1, 2, 3, 4], [2, 1, 3, 4], 1 - 6 * 2 / 60),
    ([1, 1, 2], [1, 2, 3], 3**0.5 / 2),  # ranks 0.5, 0.5, 2
    ([1, 1], [1, 2], None), ([1, 2], [3, 3], None),
])  # fmt: skip
def test_spearman_is_that_of_the_textbook(left, right, expected):
    assert rank_correlation(left, right) == pytest.approx(expected)


@given(st.lists(st.tuples(st.integers(0, 2), seconds), min_size=1, max_size=6), st.integers(1, 6))
def test_regret_among_ties_is_the_mean_over_all_orders_of_the_file(group, tried):
    best = min(time_s for _, time_s in group)
    found = [
        min(time_s for _, time_s in sorted(order, key=lambda pair: pair[0])[:tried])
        for order in permutations(group)
    ]
    assert regret_pct(group, tried) == pytest.approx(100 * (mean(found) / best - 1), abs=1e-9)


def test_the_first_by_prediction_is_held_against_the_measured_best():
    rows = [alternative(12, 1), alternative(10, 2), alternative(30, 3)]
    found = choice(rows)
    assert (found.regret_pct, found.regret5_pct) == (pytest.approx(20), pytest.approx(0))
    assert found.spearman == pytest.approx(0.5)


def test_the_rule_takes_the_least_tp_pp_and_then_the_largest_microbatch():
    rows = [
        alternative(20, simplest=(1, -1)),
        alternative(15, simplest=(1, -4)),
        alternative(10, simplest=(2, -8)),
    ]
    assert rule_choice(rows).regret_pct == pytest.approx(50)


def test_layouts_of_other_work_are_no_alternatives():
    rows = [alternative(1, work="a"), alternative(2, work="b")]
    found = choice(rows)
    assert found.spearman is found.regret_pct is found.regret5_pct is None
    assert found.fit_errors_pct == 0


def test_fit_errors_count_both_ways_and_the_rule_calls_all_feasible():
    rows = [
        alternative(1, fits=True),
        alternative(2, fits=False),
        alternative(None, fits=True),
        alternative(None, fits=False),
    ]
    assert choice(rows).fit_errors_pct == rule_choice(rows).fit_errors_pct == 50
    assert rule_choice(rows[1:]).fit_errors_pct == pytest.approx(200 / 3)


@pytest.mark.parametrize("change", [
    FAILED, {"step_s": "", "mem_gib": "OOM Error"}, {"step_s": " ", "step_s_kind": "crashed/OOM"},
    {"step_s": "", "mem_gib": "out of memory"},
])  # fmt: skip
def test_a_row_whose_run_failed_is_predicted_for_its_memory(change):
    result = result_of(MEGATRON | change)
    assert result.failed and result.prediction and result.measured_s is None


def test_a_row_that_says_nothing_of_a_failure_is_left_out():
    result = result_of(MEGATRON | {"step_s": ""})
    assert not result.failed and result.prediction is None and "step_s" in result.skipped


def test_a_failed_row_counts_for_fit_and_not_for_the_errors_of_step_times():
    ran, failed = result_of(MEGATRON), result_of(MEGATRON | FAILED)
    its = suites([ran, failed])["megatron21_table1"]
    assert (its["rows"], its["failed"]) == (2, 1)
    assert its["mape"] == pytest.approx(100 * abs(ran.error))
    assert its["fit_errors_pct"] == its["rule_fit_errors_pct"] == 50
    alone = suites([failed])["megatron21_table1"]
    assert alone["mape"] is None and alone["fit_errors_pct"] == 100


def test_the_published_sweeps_name_their_sources_and_their_failures():
    rows = read_runs(SWEEPS)
    assert {row["suite"] for row in rows} == {
        "ultrascale_3B_32", "ultrascale_8B_128", "hagemann_65B_128", "hagemann_13B_32"
    }  # fmt: skip
    assert all(row["source"] for row in rows)
    assert sum(not row["step_s"] for row in rows) == 190


def test_the_peaks_of_nanotron_without_pipelines_are_of_gathered_inputs_that_are_kept():
    """docs/validation.md says so: above the predicted peak, by what two gathered inputs a layer take
    beyond a rank's part of them."""
    kept = []
    for row in read_runs(SWEEPS):
        wide = row["suite"] == "ultrascale_8B_128" and row["pp"] == "1" and int(row["tp"]) >= 4
        result = result_of(row) if wide else None
        if result and result.prediction and result.measured_s and result.memory_gib:
            plan = result.prediction.plan
            whole = 2 * plan.microbatch_size * int(row["seq"]) * int(row["hidden"])
            gathered = 2 * int(row["layers"]) * whole * (1 - 1 / plan.tp)
            more = result.memory_gib * GIB - result.prediction.reserved_bytes
            kept.append(more / gathered)
    assert len(kept) == 28
    low, middle, high = quantiles(kept, n=4, method="inclusive")
    assert 0.85 < low < middle < high < 1.15


def test_the_two_layouts_whose_order_is_wrong_take_what_docs_validation_says():
    rows = {row["id"]: row for row in read_runs(SWEEPS)}
    page = " ".join(
        (Path(__file__).parents[3] / "docs" / "validation.md").read_text("utf-8").split()
    )
    fastest, first = (result_of(rows[f"us-8B-128-{number}"]) for number in (2094, 2098))
    assert fastest.measured_s < first.measured_s
    assert (
        f"({fastest.measured_s:.3f} s), is now predicted to take {fastest.predicted.step_s:.3f} s"
        in page
    )
    assert (
        f"measured at {first.measured_s:.3f} s, is predicted to take {first.predicted.step_s:.3f} s"
        in page
    )

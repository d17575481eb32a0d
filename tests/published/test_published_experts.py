"""Published plans of models with experts, beside what the planner finds."""

import pytest

from benchmarks.published_plans import EXPERTS, met, rows

ROWS = rows(experts=True)


def row_of(model, gpus, batch):
    (found,) = (
        row
        for row in ROWS
        if (row["model"], row["gpus"], row["global_batch"]) == (model, str(gpus), str(batch))
    )
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['gpus']}-{row['ep']}")
def test_a_published_plan_takes_all_gpus_and_the_whole_batch(row):
    degrees = [int(row[name]) for name in ("dp", "tp", "pp", "cp")]
    dp, tp, pp, cp = degrees
    assert dp * tp * pp * cp == int(row["gpus"])
    assert int(row["global_batch"]) % (dp * int(row["microbatch"])) == 0
    assert row["model"] in EXPERTS and row["source"] and int(row["ep"]) > 1


def test_dense_plans_are_those_without_experts():
    assert len(rows()) + len(ROWS) == 38 and not {row["model"] for row in rows()} & {*EXPERTS}


def test_the_number_of_ranks_that_was_published_is_the_best_one_found():
    its = met(row_of("Qwen3_30B_a3B", 16, 1024))
    assert its.is_met and its.rank is not None
    assert " ep8 " in its.published and " ep8 " in its.best and "8: +0.0%" in its.by_ranks
    assert its.measured_s == pytest.approx(1024 * 4096 / (16 * 5113))


@pytest.mark.parametrize(("row", "why"), [
    (("Qwen3_235B_a22B", 256, 2048), "ep = 32 does not divide dp x cp = 16"),
    (("DeepSeekV3", 1024, 8192), "latent attention is not cut over ranks"),
])  # fmt: skip
def test_a_plan_that_cannot_be_said_is_not_met_and_says_why(row, why):
    its = met(row_of(*row))
    assert not its.is_met and why in its.published and its.best

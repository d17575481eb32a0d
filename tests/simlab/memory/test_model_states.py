"""Model states against the ZeRO paper's printed tables and other estimators' published figures."""

import csv
from pathlib import Path

import pytest

from simlab.errors import InputError
from simlab.memory.model_states import (
    RECIPES,
    fewest_ranks,
    model_states,
    most_parameters,
    parameter_count,
)

ROWS = list(
    csv.DictReader((Path(__file__).parents[2] / "published" / "zero_memory_formulas.csv").open())
)
STAGE = {
    "baseline": 0,
    "P_os": 1,
    "P_os+g": 2,
    "P_os+g+p": 3,
    "DP": 0,
    "ZeRO-1": 1,
    "ZeRO-2": 2,
    "ZeRO-3": 3,
}
RECIPE = {"ZeRO": "zero", "Megatron": "megatron", "DeepSpeed": "deepspeed"}


def test_the_published_file_has_all_its_rows():
    assert len(ROWS) == 146


@pytest.mark.parametrize(
    "row",
    [row for row in ROWS if "Table 2" not in row["source"]],
    ids=lambda row: "-".join(list(row.values())[:4]),
)
def test_states_are_the_published_ones(row):
    recipe = RECIPE[row["source"].split()[0]]
    states = model_states(
        float(row["model_B"]) * 1e9, int(row["dp"]), zero=STAGE[row["stage"]], recipe=recipe
    )
    assert states.total / 1e9 == pytest.approx(float(row["formula_GB"]), rel=1e-8)
    # the paper rounds some figures and cuts off others: at most one unit of the last digit
    if printed := row["printed_GB"]:
        unit = 10.0 ** -len(printed.partition(".")[2])
        assert abs(states.total / 1e9 - float(printed)) <= unit * (1 + 1e-9)


@pytest.mark.parametrize(
    "row", [row for row in ROWS if "Table 2" in row["source"]], ids=lambda row: row["stage"]
)
def test_the_largest_models_that_fit_are_those_of_table_2(row):
    stage, mp = row["stage"].split(" MP=")
    most = most_parameters(
        float(row["formula_GB"]) * 1e9, int(row["dp"]), zero=STAGE[stage], mp=int(mp)
    )
    assert most / 1e9 == pytest.approx(float(row["model_B"]), rel=1e-9)


def test_7_5_billion_parameters_on_64_ranks_are_the_papers_famous_figures():
    totals = [model_states(7.5e9, 64, zero=zero).total / 1e9 for zero in (0, 1, 2, 3)]
    assert [round(total, 3) for total in totals] == [120.0, 31.406, 16.641, 1.875]


def test_sharding_more_never_takes_more_and_one_rank_has_everything():
    for name, recipe in RECIPES.items():
        totals = [model_states(1e9, 8, zero=zero, recipe=name).total for zero in recipe.stages]
        assert totals == sorted(totals, reverse=True)
        if name != "deepspeed":
            assert {
                model_states(1e9, 1, zero=zero, recipe=name).total for zero in recipe.stages
            } == {model_states(1e9, recipe=name).total}


def test_deepspeeds_zero_3_adds_four_bytes_per_parameter_of_the_largest_layer():
    without, with_layer = (
        model_states(1e9, 8, zero=3, recipe="deepspeed", largest_layer=size) for size in (0, 1e8)
    )
    assert with_layer.total - without.total == 4e8


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("7.5e9", 7.5e9),
        ("7.5B", 7.5e9),
        ("350m", 350e6),
        ("1T", 1e12),
        ("1_000", 1000),
        ("12k", 12000),
    ],
)
def test_a_count_of_parameters_is_read(text, count):
    assert parameter_count(text) == count


@pytest.mark.parametrize("text", ["", "lots", "7.5G", "-1B", "1.2.3", "nan"])
def test_what_is_no_count_of_parameters_is_refused_and_quoted(text):
    with pytest.raises(InputError, match=f"^{text!r} parameters"):
        parameter_count(text)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"dp": 0}, "dp = 0"),
        ({"dp": 1.5}, "dp = 1.5"),
        ({"dp": "8"}, "dp = '8': give"),
        ({"zero": 4}, "ZeRO stage 4"),
        ({"zero": [1]}, r"ZeRO stage \[1\]"),
        ({"recipe": ["zero"]}, r"unknown recipe \['zero'\]"),
        ({"largest_layer": -1}, "largest_layer = -1: give"),
        ({"recipe": "x"}, "unknown recipe 'x'; there is zero, "),
        ({"recipe": "deepspeed", "zero": 1}, "recipe deepspeed knows ZeRO stages 2 and 3, not 1"),
    ],
)
def test_what_makes_no_sense_is_refused(arguments, says):
    with pytest.raises(InputError, match=says):
        model_states(1e9, **arguments)
    with pytest.raises(InputError, match="-1 parameters"):
        model_states(-1)


@pytest.mark.parametrize("parameters", ["7B", None, True, [7e9], float("nan")])
def test_parameters_that_are_no_number_are_refused(parameters):
    with pytest.raises(InputError, match="parameters: give a number above 0, such as"):
        model_states(parameters)


@pytest.mark.parametrize("memory_bytes", [-5, 0, "32e9", float("inf"), None])
def test_memory_that_cannot_be_is_refused(memory_bytes):
    for call in (
        lambda: most_parameters(memory_bytes),
        lambda: fewest_ranks(7e9, memory_bytes, zero=1),
    ):
        with pytest.raises(
            InputError, match=f"^memory_bytes = {memory_bytes!r}: give a number of bytes above 0"
        ):
            call()
    with pytest.raises(InputError, match="mp = 0: give a whole number, at least 1"):
        most_parameters(32e9, mp=0)

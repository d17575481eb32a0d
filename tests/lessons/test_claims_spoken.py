"""Figures that are said aloud in lessons 11 to 13, from what they follow from: arithmetic by hand, the
simulator, or its recorded errors."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.microbatch import visited
from simlab.lessons.words import LANGUAGES, word
from simlab.operations.replan import Way

GPT, DEEPSEEK = sl.load_model("megatron-18b"), sl.load_model("deepseek-v3")


def said(identifier, *figures):
    """Whether both languages say each of the figures in the question's answer."""
    texts = [word(f"{identifier}.spoken", tongue=tongue) for tongue in LANGUAGES]
    missing = [figure for figure in figures if not all(figure in text for text in texts)]
    assert not missing, (identifier, missing)


def error(cluster, model=GPT, **plan):
    """The mean error, in percent, of predictions of published runs of such a plan's kind."""
    step = sl.predict(model, sl.Plan(**plan), sl.load_cluster(cluster, nodes=8))
    return 100 * step.uncertainty.error


def test_gradients_of_18_billion_parameters_leave_a_node_in_a_fifth_of_a_second_or_in_three():
    gradients_bytes = 4 * GPT.parameters
    eight, one = (gradients_bytes / (nics * gbit * 1e9 / 8) for nics, gbit in ((8, 400), (1, 200)))
    assert round(one) == 3
    said("d19", f"{gradients_bytes / 1e9:.0f}", f"{eight:.1f}")


def test_the_errors_that_are_named_beside_predictions_are_those_of_published_runs():
    dense = {"dp": 64, "zero": 2, "microbatch_size": 2, "microbatches": 2}
    assert round(error("dgx-h100", **dense)) == 3, "three percent on H100s"
    piped = {"dp": 4, "pp": 16, "zero": 1, "microbatches": 64, "stage_layers": "uneven"}
    assert round(error("a100-pcie", **piped)) == 11, "eleven on A100s"
    mixtral = replace(sl.load_model("mixtral-8x7b"), layers=8)
    assert error("dgx-h100", mixtral, dp=64, ep=8) == pytest.approx(20, abs=2), "a fifth"


def test_two_restarts_of_ten_minutes_at_80_percent_speed_are_25_minutes_of_repair():
    way = Way("another plan", sl.Plan(), 1, 1 / 0.80, 0.80)
    said("d22", f"{way.wins_from_s(600.0) / 60:.0f}", "80")


def test_interruptions_of_llama_3_came_every_three_hours():
    assert round(54 * 24 / 419) == 3
    said("d20", "419", "54", "16,384")


def test_copies_that_cross_nodes_are_seven_and_4_6_and_3_2():
    free = replace(DEEPSEEK, expert_groups=0, groups_per_token=0)
    crossing = [7 / 8 * visited(model, 8) for model in (free, DEEPSEEK)]
    said("e04", *(f"{copies:.1f}" for copies in crossing))


def test_twice_the_mean_on_two_thirds_of_a_step_makes_it_five_thirds():
    model, node = replace(sl.load_model("mixtral-8x7b"), layers=8), sl.load_cluster("dgx-h100")
    plans = [sl.Plan(dp=8, ep=8, microbatches=4, expert_load=load) for load in (1.0, 2.0)]
    even_s, uneven_s = (sl.predict(model, plan, node).step_s for plan in plans)
    assert uneven_s / even_s == pytest.approx(5 / 3, rel=0.02)


def test_rows_of_an_expert_of_deepseek_v3():
    rows = 4096 * DEEPSEEK.experts_per_token // DEEPSEEK.experts
    measured = {128: 533, 4096: 1304}  # TFLOP/s, by DeepGEMM's README of February 2025
    assert measured[rows] / measured[4096] == pytest.approx(2 / 5, rel=0.03)
    said("e06", f"{rows}", "64", "4,096")


def test_the_step_that_deepseeks_report_implies():
    """180,000 GPU hours for 10^12 tokens, 15,360 sequences of 4,096 tokens, 2,048 GPUs."""
    step_s = 180_000 * 3600 / 1e12 * 15_360 * 4096 / 2048
    for identifier in ("e07", "e08"):
        said(identifier, f"{step_s:.1f}")

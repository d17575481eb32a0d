"""Figures that are said aloud in lessons 7 to 13, from what they follow from: arithmetic by hand, the
simulator, or its recorded errors."""

from dataclasses import replace
from statistics import mean

import pytest

import simlab as sl
from simlab.layer.microbatch import visited
from simlab.lessons.words import LANGUAGES, word
from simlab.training.uncertainty import recorded

GPT, DEEPSEEK = sl.load_model("megatron-18b"), sl.load_model("deepseek-v3")


def said(identifier, *figures):
    """Whether both languages say each of the figures in the question's answer."""
    texts = [word(f"{identifier}.spoken", tongue=tongue) for tongue in LANGUAGES]
    missing = [figure for figure in figures if not all(figure in text for text in texts)]
    assert not missing, (identifier, missing)


def errors(gpu="", *, experts=False):
    """The absolute errors, in percent, of the step times of published runs, sweeps of layouts left out."""
    sweeps = ("hagemann", "ultrascale")
    return [
        100 * abs(error)
        for its in recorded()
        if its.kind.gpu.startswith(gpu) and its.kind.experts is experts
        if not its.suite.startswith(sweeps)
        for error in its.errors
    ]


def test_gradients_of_18_4_billion_parameters_leave_a_node_in_a_fifth_of_a_second_or_in_three():
    billions = f"{GPT.parameters / 1e9:.1f}"
    gradients_bytes = 4 * GPT.parameters
    eight, one = (gradients_bytes / (nics * gbit * 1e9 / 8) for nics, gbit in ((8, 400), (1, 200)))
    assert f"{billions} billion" in word("d19.spoken", tongue="en")
    assert f"{10 * float(billions):.0f} 亿" in word("d19.spoken", tongue="zh")
    assert round(4 * float(billions)) == round(gradients_bytes / 1e9), "as one multiplies it aloud"
    assert round(one) == 3
    said("d19", f"{gradients_bytes / 1e9:.0f}", f"{eight:.1f}")


def test_the_errors_that_are_named_beside_predictions_are_those_of_published_runs():
    h100, a100 = (mean(errors(gpu)) for gpu in ("h100", "a100"))
    assert f"{h100:.0f} percent on H100s and {a100:.0f} on A100s" in word("d19.spoken", tongue="en")
    assert f"H100 上平均差 {h100:.0f}%，A100 上 {a100:.0f}%" in word("d19.spoken", tongue="zh")
    assert mean(errors(experts=True)) > max(h100, a100), "with experts by more"


@pytest.mark.parametrize("speed", [0.1, 0.5, 0.8, 0.99])
@pytest.mark.parametrize("repair_min", [5, 11, 60, 1440])
def test_another_plan_loses_less_once_a_repair_takes_longer_than_one_restart(speed, repair_min):
    """Full-speed training that is lost from the failure until all is as before, minute by minute."""
    restart_min = 10
    waiting = repair_min + restart_min
    going_on = sum(
        1 - (speed if restart_min <= minute < repair_min else 0)
        for minute in range(max(repair_min, restart_min) + restart_min)
    )
    assert (going_on < waiting) == (repair_min > restart_min)
    assert "longer than one restart" in word("d22.spoken", tongue="en")


def test_three_numbers_of_llama_3s_vocabulary_are_ten_thousand_times_fewer_bytes():
    """A rank of n sends (n - 1)/n of a token's logits, in 16 bits, or 2 (n - 1)/n of three numbers in fp32."""
    vocabulary, n = sl.load_model("llama-3-8b").vocab, 8
    gathered, reduced = 2 * vocabulary * (n - 1) / n, 3 * 4 * 2 * (n - 1) / n
    assert 10_000 < gathered / reduced < 11_000
    assert f"{vocabulary // 1000},000" in word("b06.spoken", tongue="en")
    assert f"{vocabulary / 10_000:.1f} 万" in word("b06.spoken", tongue="zh")


def test_gpus_compute_in_bf16_from_the_a100_on():
    v100, *later = (sl.load_cluster(f"dgx-{name}").gpu for name in ("v100", "a100", "h100", "b200"))
    assert "bf16" not in v100.peak_flops and all("bf16" in gpu.peak_flops for gpu in later)
    said("w08", "A100")


@pytest.mark.parametrize(("k", "forward", "both"), [(2, 1 / 4, 1 / 5), (8, 1, 4 / 5)])
def test_expert_parallelism_sends_k_over_n_forward_and_four_fifths_of_that_in_all(k, forward, both):
    """In hidden states of a token, all ranks together: gathers and scatters, or all-to-alls of k copies."""
    n = 8
    hops, copies = n - 1, k * (n - 1) / n
    assert 2 * copies / (2 * hops) == pytest.approx(forward)
    assert 4 * copies / (5 * hops) == pytest.approx(both) and both == pytest.approx(0.8 * forward)
    ranks = n * (1 - (1 - 1 / n) ** 8)  # that have some of eight experts, drawn evenly
    assert 4 * ranks / (5 * n) == pytest.approx(1 / 2, abs=0.05)


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

"""What the stages, the memory and the op times of a simulated schedule can be."""

import pytest
from simlab_commands import SIMULATE, one_object, run

import simlab
from simlab import Trace


def simulated(capsys, arguments):
    """(what `simulate --json` answers, its stderr)"""
    status, out, err = run(
        capsys, f"simulate --forward-ms 20 --backward-ms 40 --microbatches 8 {arguments} --json"
    )
    assert status == 0
    return one_object(out), err


@pytest.mark.parametrize("arguments, work, mean", [
    ("--layers 8", [2, 2, 2, 2], 2),
    ("--layers 10 --head 3", [2, 3, 3, 5], 3.25), ("--layers 10 --head 3 --partition even", [2, 3, 3, 5], 3.25),
    ("--layers 10 --head 3 --partition best", [3, 3, 3, 4], 3.25), ("--layers 8 --embedding 2", [4, 2, 2, 2], 2.5),
])  # fmt: skip
def test_layers_are_cut_into_stages_and_the_times_are_those_of_the_mean_stage(
    capsys, arguments, work, mean
):
    result, _ = simulated(capsys, f"--schedule gpipe --pp 4 {arguments}")
    assert result["stage_work"] == work
    # F and B of the first through all stages, of the rest at the slowest
    once, slowest = sum(work) / mean * 0.06, max(work) / mean * 0.06
    assert result["step_s"] == pytest.approx(once + 7 * slowest)


def test_of_one_stage_all_layers_are_the_work(capsys):
    for partition in ("even", "best"):
        arguments = (
            f"--schedule gpipe --pp 1 --layers 3 --head 2 --embedding 1 --partition {partition}"
        )
        assert simulated(capsys, arguments)[0]["stage_work"] == [6]


def test_the_work_of_stages_is_printed_too(capsys):
    assert (
        "work of each stage       [2.0, 3.0, 3.0, 5.0]   in layers"
        in run(capsys, f"{SIMULATE} --layers 10 --head 3")[1].splitlines()
    )


def test_a_cap_says_which_ranks_hold_more_since_when(capsys):
    result, err = simulated(capsys, "--schedule 1f1b --pp 4 --activation-cap 2.5")
    assert (result["fits"], result["peak_activations"], result["parameters"]) == (
        False,
        [4, 3, 2, 1],
        [1, 1, 1, 1],
    )
    assert [(breach["rank"], breach["op"], breach["amount"]) for breach in result["breaches"]] == [
        (0, "0F2", 3),
        (1, "1F2", 3),
    ]
    assert [breach["time_s"] for breach in result["breaches"]] == pytest.approx([0.04, 0.06])
    assert err.splitlines() == [
        "over the cap of 2.5: rank 0 holds 3 from 40.0 ms on, when 0F2 starts",
        "over the cap of 2.5: rank 1 holds 3 from 60.0 ms on, when 1F2 starts",
    ]


def test_a_cap_that_is_kept_fits_and_without_one_nothing_is_said(capsys):
    result, err = simulated(capsys, "--schedule 1f1b --pp 4 --activation-cap 4")
    assert (result["fits"], result["breaches"], err) == (True, [], "")
    assert not {"fits", "breaches"} & simulated(capsys, "--schedule 1f1b --pp 4")[0].keys()


def test_the_cap_is_in_the_trace_for_pictures(capsys, tmp_path):
    simulated(capsys, f"--schedule 1f1b --pp 4 --activation-cap 2.5 --trace {tmp_path}/t.json")
    assert Trace.load(tmp_path / "t.json").metadata["activation_cap"] == 2.5


def test_dualpipe_has_two_shares_of_the_parameters_on_every_rank_and_a_pair_can_be_shorter(capsys):
    arguments = "--schedule dualpipe --pp 4 --input-grad-ms 20 --weight-grad-ms 20"
    alone, paired = (simulated(capsys, arguments + more)[0] for more in ("", " --pair-ms 50"))
    assert alone["parameters"] == paired["parameters"] == [2, 2, 2, 2]
    assert (alone["step_s"], paired["step_s"]) == pytest.approx((0.52, 0.48))


def test_jitter_takes_a_seed_that_makes_it_the_same_again(capsys):
    command = "--schedule 1f1b --pp 4 --jitter 0.1 --seed"
    assert simulated(capsys, f"{command} 3") == simulated(capsys, f"{command} 3")
    assert (
        simulated(capsys, f"{command} 3")[0]["step_s"]
        != simulated(capsys, f"{command} 4")[0]["step_s"]
    )


def test_groups_are_those_of_the_python_function(capsys):
    out = run(capsys, "schedule interleaved-1f1b --pp 2 --microbatches 6 --chunks 2 --group 3")[1]
    assert out == f"{simlab.generate('interleaved-1f1b', 2, 6, chunks=2, group=3)}\n"
    assert out != run(capsys, "schedule interleaved-1f1b --pp 2 --microbatches 6 --chunks 2")[1]


def test_zb_auto_keeps_the_cap_and_is_searched_for_the_given_times(capsys):
    split = "--schedule zb-auto --pp 4 --input-grad-ms 20 --weight-grad-ms 20"
    assert simulated(capsys, f"{split} --activation-cap 3.5")[0]["fits"] is True
    assert max(simulated(capsys, split)[0]["peak_activations"]) <= 4
    assert simulated(capsys, f"{split} --activation-cap 8")[0]["bubble"][
        "longest_stage"
    ] == pytest.approx(0, abs=1e-9)
    status, out, _ = run(
        capsys,
        "schedule zb-auto --pp 2 --microbatches 2 --forward-ms 20 --input-grad-ms 40 --weight-grad-ms 10",
    )
    assert status == 0 and sorted(out.split()) == sorted(
        f"{s}{kind}{m}" for s in (0, 1) for kind in "FIW" for m in (0, 1)
    )


def test_schedules_without_the_times_of_i_and_w_leaves_out_what_needs_them_and_a_cap_marks_who_holds_more(
    capsys,
):
    table = one_object(
        run(
            capsys,
            "schedules --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40 --activation-cap 4 --json",
        )[1]
    )
    rows = {row["schedule"]: row for row in table["schedules"]}
    assert (
        rows["zb-h1"]["refused"] == "the program has I ops, but input_grad_s is not given"
        and "refused" in rows["zb-auto, cap 4"]
    )
    assert (rows["1f1b"]["fits"], rows["gpipe"]["fits"], rows["gpipe"]["closed_form_s"]) == (
        True,
        False,
        pytest.approx(0.18),
    )
    assert (
        "8 > cap"
        in run(
            capsys,
            "schedules --pp 4 --microbatches 8 --forward-ms 20 --backward-ms 40 --activation-cap 4",
        )[1]
    )


def test_a_backward_that_is_not_its_parts_is_noted(capsys):
    err = run(
        capsys,
        "simulate --schedule zb-h1 --pp 2 --microbatches 4 --forward-ms 2 --backward-ms 9 --input-grad-ms 2 --weight-grad-ms 2",
    )[2]
    assert err.startswith("note: B is 9 ms, I + W 2 + 2")


def test_pipedream_has_weight_versions_and_staleness(capsys):
    result, _ = simulated(capsys, "--schedule pipedream --pp 4")
    assert (result["weight_versions"], result["staleness"]) == ([4, 3, 2, 1], [3, 2, 1, 0])
    assert result["steady_idle"] == pytest.approx(0, abs=1e-9)
    text = " ".join(run(capsys, SIMULATE.replace("1f1b", "pipedream"))[1].split())
    assert (
        "weight versions [4, 3, 2, 1] staleness [3, 2, 1, 0] updates idle while it is full 0.0000"
        in text
    )
    assert "staleness" not in simulated(capsys, "--schedule 1f1b --pp 4")[0]

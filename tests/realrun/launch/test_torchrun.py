"""Ranks that somebody else starts: torchrun, or four environment variables."""

import os
import signal
import socket
import sys

import pytest
from ports import free_port
from realrun_processes import one_object

from realrun.checkpoint import save as checkpoint

TORCHRUN = (sys.executable, "-m", "torch.distributed.run")
SMALL = ("--schedule", "1f1b", "--pp", 2, "--microbatches", 4, "--forward-ms", 3)
DEADLOCK = "0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n"


def ours(err):
    """The lines that realrun wrote, without torchrun's own report of the ranks' failure."""
    return [line for line in err.splitlines() if line.startswith(("error: ", "failed: "))]


@pytest.fixture
def port():
    return free_port()


def environment(rank, world, port):
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def test_under_torchrun_stdout_is_exactly_one_json_object_of_rank_0(command, tmp_path):
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", *SMALL, "--json", command=TORCHRUN
    )
    status, out, err = run.end()
    assert status == 0, err
    answer = one_object(out)
    assert (
        answer["ok"]
        and answer["runs"][0]["schedule"] == "1f1b"
        and answer["runs"][0]["gradient_error"] <= 1e-10
    )
    assert answer["runs"][0]["peak_live_microbatches_measured"] == [2, 1]
    assert (tmp_path / "out" / "report.html").exists() and "Traceback" not in err
    assert (
        len([line for line in err.splitlines() if line == "1f1b: 1 warm-up and 5 measured steps"])
        == 1
    )


def test_a_world_of_the_wrong_size_costs_one_line_per_rank_and_fails(command):
    run = command(
        "--standalone", "--nproc-per-node", 2, "-m", "realrun", *SMALL, "--pp", 3, command=TORCHRUN
    )
    status, out, err = run.end()
    assert status != 0 and out == ""
    assert 1 <= len(ours(err)) <= 2
    assert set(ours(err)) == {
        "error: torchrun started 2 ranks, the program has 3: start as many as --pp"
    }


def test_ranks_started_by_hand_find_each_other_and_rank_0_alone_reports(command, port):
    runs = [
        command(*SMALL, "--steps", 1, "--json", environment=environment(rank, 2, port))
        for rank in range(2)
    ]
    answers = [run.end() for run in runs]
    assert [status for status, _, _ in answers] == [0, 0], answers
    assert one_object(answers[0][1])["ok"] and answers[1][1] == answers[1][2] == ""


def test_a_deadlock_among_ranks_started_by_hand_ends_by_the_timeout_saying_who_waits_for_whom(
    command, port, tmp_path
):
    (tmp_path / "circle.csv").write_text(DEADLOCK)
    arguments = ("--csv", "circle.csv", "--no-check", "--timeout", 4, "--forward-ms", 2)
    runs = [command(*arguments, environment=environment(rank, 2, port)) for rank in range(2)]
    answers = [run.end() for run in runs]
    assert [status for status, _, _ in answers] == [1, 1]
    said = [line for _, _, err in answers for line in ours(err)]
    assert any(
        line.startswith("failed: rank 0 waits at 0B0 for 1B0 from rank 1: ") for line in said
    ) or any(line.startswith("failed: rank 1 waits at 1F1 for 0F1 from rank 0: ") for line in said)
    assert not any("Traceback" in err for _, _, err in answers)


def test_a_rank_of_torchruns_that_is_killed_takes_the_others_with_it(command):
    run = command(
        "--standalone",
        "--nproc-per-node",
        2,
        "-m",
        "realrun",
        *SMALL,
        "--steps",
        5000,
        command=TORCHRUN,
    )
    run.say_until("measured steps")
    ranks = sorted(pid for pid, parent in run.processes().items() if parent == run.process.pid)
    assert len(ranks) == 2
    os.kill(ranks[1], signal.SIGKILL)
    status, out, _ = run.end()
    assert status != 0 and out == ""


@pytest.mark.parametrize(
    "change, message",
    [
        (
            {"RANK": "one"},
            "RANK is 'one' in the environment: a whole number is needed, as torchrun sets it",
        ),
        ({"RANK": "2"}, "RANK is 2, but WORLD_SIZE 2: ranks go from 0 to 1"),
        (
            {"MASTER_PORT": ""},
            "MASTER_PORT is '' in the environment: a whole number is needed, as torchrun sets it",
        ),
        ({"WORLD_SIZE": "3"}, "torchrun started 3 ranks, the program has 2: start as many as --pp"),
    ],
)
def test_an_environment_that_makes_no_sense_costs_one_line_and_status_2(
    command, port, change, message
):
    status, out, err = command(*SMALL, environment=environment(0, 2, port) | change).end()
    assert (status, out, err) == (2, "", f"error: {message}\n")


def test_an_environment_without_an_address_costs_one_line_and_status_2(command):
    status, out, err = command(*SMALL, environment={"RANK": "0", "WORLD_SIZE": "2"}).end()
    assert (status, out) == (2, "")
    assert (
        err.startswith(
            "error: RANK and WORLD_SIZE are set in the environment, but MASTER_ADDR is not"
        )
        and len(err.splitlines()) == 1
    )


def test_a_rendezvous_port_in_use_costs_one_line_and_status_2(command):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        status, out, err = command(*SMALL, environment=environment(0, 2, port)).end()
    assert (status, out, err) == (
        2,
        "",
        f"error: rendezvous on 127.0.0.1:{port}: the port is in use; give another MASTER_PORT\n",
    )


# how long torchrun waits for a node that may come or be gone
SOON = "last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=3"


@pytest.mark.attack
def test_training_goes_on_with_half_the_ranks_when_a_node_is_lost_and_with_all_when_it_is_back(
    command, port, tmp_path
):
    """Torchrun's agents stand for nodes. One is killed with its ranks, the other starts again with
    what is left, and again for a third."""
    folder = tmp_path / "out" / "checkpoints"
    plan = (
        "--dp",
        4,
        "--zero",
        1,
        "--elastic",
        "--resume",
        "--checkpoint-every",
        5,
        "--warmup",
        0,
        "--timeout",
        20,
        "--steps",
        200,
    )

    def agent(host):
        return command(
            "--nnodes", "1:2", "--nproc-per-node", 2, "--max-restarts", 3, "--monitor-interval", 0.2, "--rdzv-backend", "c10d",
            "--rdzv-id", "lost", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-conf", f"{SOON},is_host={host}",
            "-m", "realrun", *plan, "--json", "--out", tmp_path / "out", command=TORCHRUN,
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )  # fmt: skip

    def wait_for_more_than(steps):
        first.wait_until(lambda: max(checkpoint.complete(folder), default=0) > steps)
        return max(checkpoint.complete(folder))

    first, second = agent(1), agent(0)
    lost = wait_for_more_than(0)
    second.kill()
    back = wait_for_more_than(lost + 5)
    third = agent(0)
    status, out, err = first.end()
    assert status == 0 and "dp2-zero1: goes on from" in err, err
    # rank 0, which answers, is on the agent of the smaller process number; before the answer stands
    # what the ranks said that lost the others
    said = (out + third.end()[1]).splitlines(keepends=True)
    (answer,) = [found for found in map(one_object, said) if found["ok"]]
    (facts,) = answer["runs"]
    assert (
        facts["ranks"] == 4 and facts["name"] == "dp4-zero1" and back <= facts["first_step"] < 200
    ), err
    whole = command(
        "--dp",
        2,
        "--zero",
        1,
        "--microbatches",
        2,
        "--warmup",
        0,
        "--steps",
        200,
        "--json",
        "--out",
        tmp_path / "whole",
    )
    losses = one_object(whole.end()[1])["runs"][0]["losses"]
    assert facts["losses"] == pytest.approx(losses[facts["first_step"] :], rel=1e-5)


def test_ranks_that_the_plan_cannot_be_stretched_to_are_told_what_would_fit(command, port):
    arguments = ("--dp", 2, "--tp", 2, "--microbatches", 2, "--elastic")
    status, out, err = command(*arguments, environment=environment(0, 6, port)).end()
    assert status == 2 and out == ""
    assert ours(err) == [
        "error: 6 ranks for a plan of tp x pp x cp = 2 with 4 microbatches in all: give 2, 4, 8"
    ]
    status, _, err = command(*arguments).end()
    assert status == 2 and "--elastic without torchrun" in err

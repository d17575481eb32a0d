"""Lines of torch's watchdog in logs, in the forms of several versions of torch."""

import pytest

from simlab.cli.main import main
from simlab.diagnosis import hang_in_logs
from tests.support.simlab_commands import answer

SOURCE = "ProcessGroupNCCL.cpp:607"


def caught(rank, number, name="ALLREDUCE", numel=8, of_all=None):
    """The line of a rank whose collective timed out. of_all: its rank in the training."""
    begin = "" if of_all is None else f"[rank{of_all}]:"
    return (
        f"{begin}[E {SOURCE}] [Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum="
        f"{number}, OpType={name}, NumelIn={numel}, NumelOut={numel}, Timeout(ms)=600000) ran for 600013 "
        "milliseconds before timing out."
    )


def status(rank, number, last, of_all, group="0(default_pg)"):
    """The line that says how much a rank has begun."""
    return (
        f"[rank{of_all}]:[E {SOURCE}] [PG ID 0 PG GUID {group} Rank {rank}]  failure detected by watchdog at "
        f"work sequence id: {number} PG status: last enqueued work: {last}, last completed work: "
        f"{number - 1}"
    )


def found(*lines):
    return hang_in_logs([(None, "\n".join(lines))])


def test_a_rank_that_is_heard_of_and_has_no_timeout_is_missing():
    lines = [caught(rank, 7, of_all=rank) for rank in (0, 1, 3)]
    hang = found("[rank2]: RuntimeError: CUDA out of memory. Tried to allocate 2 GiB", *lines)
    assert (hang.reason, hang.culprit, hang.waiting) == ("missing", (2,), (0, 1, 3))
    assert "The log of rank 2 says: RuntimeError: CUDA out of memory" in str(hang)


def test_a_rank_that_nobody_heard_of_is_missing_where_the_others_show_it():
    hang = found(*(caught(rank, 7) for rank in (0, 1, 3)))
    assert (hang.culprit, hang.no_dump, hang.number, hang.name) == ((2,), (2,), 7, "allreduce")


def test_all_in_it_is_said_with_what_the_logs_do_not_say():
    hang = found(*(caught(rank, 7) for rank in range(4)))
    assert (hang.reason, hang.culprit) == ("stuck", ())
    assert "Give the logs of all ranks." in str(hang)


def test_another_collective_of_the_same_number_is_different():
    names = ["ALLREDUCE", "ALLREDUCE", "_ALLGATHER_BASE"]
    hang = found(*(caught(rank, 7, name) for rank, name in enumerate(names)))
    assert (hang.reason, hang.culprit, hang.waiting) == ("different", (2,), (0, 1))


def test_another_size_is_an_accusation_only_where_sizes_must_be_equal():
    assert found(caught(0, 7), caught(1, 7), caught(2, 7, numel=9)).culprit == (2,)
    hang = found(*(caught(rank, 7, "ALLTOALL_BASE", numel=rank + 1) for rank in range(3)))
    assert hang.reason == "stuck"


def test_a_rank_that_has_begun_less_is_missing_and_one_that_has_begun_as_much_is_behind():
    others = [caught(rank, 9, of_all=rank) for rank in (0, 1)]
    hang = found(*others, caught(2, 8, of_all=2), status(2, 8, 8, 2))
    assert (hang.reason, hang.culprit) == ("missing", (2,))
    hang = found(*others, caught(2, 8, of_all=2), status(2, 8, 9, 2))
    assert (hang.reason, hang.culprit, hang.waiting) == ("behind", (2,), (0, 1))


def test_a_pipelines_message_waits_for_a_rank_that_waits_in_nothing():
    """The log does not say who sends to whom; ranks 0 to 2 are victims."""
    lines = [caught(rank, 5 + rank, "RECV", of_all=rank) for rank in range(3)]
    lines += [status(rank, 5 + rank, 9, rank) for rank in range(3)]
    hang = found(*lines, "[rank3]: RuntimeError: CUDA error: device-side assert triggered")
    assert (hang.reason, hang.culprit, hang.name) == ("missing", (3,), "recv")
    text = str(hang)
    assert "rank 2 waits in recv number 7 of group 0 (default_pg) for rank 3." in text
    assert "The log of rank 3 says: RuntimeError: CUDA error" in text
    assert "dumps of the flight recorder do" in text and "-1" not in text


def test_a_send_and_a_receive_of_one_number_accuse_nobody():
    hang = found(caught(0, 3, "SEND", of_all=0), caught(1, 3, "RECV", 16, of_all=1))
    assert (hang.reason, hang.culprit) == ("stuck", ())
    others = [caught(rank, 4, of_all=rank) for rank in (2, 3)]
    others += [status(rank, 4, 4, rank, "7(mesh_dp)") for rank in (2, 3)]
    assert found(caught(0, 3, "SEND", of_all=0), *others).culprit == (1,)


def test_groups_are_told_apart_and_ranks_are_those_of_the_training():
    lines = []
    for own, rank in enumerate((1, 3)):
        lines += [caught(own, 4, of_all=rank), status(own, 4, 5, rank, "7(mesh_dp)")]
    hang = found(*lines)
    assert (hang.group, hang.ranks, hang.reason) == ("7 (mesh_dp)", (1, 3), "stuck")


@pytest.mark.parametrize(
    "line",
    [
        "[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=469508, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1802212 milliseconds",
        "[E ProcessGroupNCCL.cpp:587] [Rank 1] Watchdog caught collective operation timeout: "
        "WorkNCCL(OpType=ALLREDUCE, TensorShape=[4], Timeout(ms)=1800000) ran for 1802212 milliseconds",
        "[rank1]:[E1002 18:16:40.7 ProcessGroupNCCL.cpp:756] [Rank 1] Work WorkNCCL(SeqNum=2521, "
        "OpType=ALLREDUCE, NumelIn=16, NumelOut=16, Timeout(ms)=600000) timed out in blocking wait.",
        "\x1b[36m(Worker pid=4009)\x1b[0m [rank1]:[E ProcessGroupNCCL.cpp:563] [Rank 1] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Time",
    ],
)
def test_the_forms_of_several_versions_are_read(line):
    hang = found(line)
    assert (hang.culprit, hang.waiting, hang.name) == ((0,), (1,), "allreduce")


def test_logs_of_several_ranks_are_files_of_a_folder(tmp_path, capsys):
    for rank in (0, 2):
        (tmp_path / f"rank_{rank}.log").write_text(caught(rank, 7) + "\n")
    (tmp_path / "rank_1.log").write_text("[rank1]: ValueError: no such file\n")
    hang = answer(capsys, ["why", str(tmp_path)])["hang"]
    assert (hang["culprit"], hang["logs"]) == (
        [1],
        ["The log of rank 1 says: ValueError: no such file"],
    )


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("hello", "such as '[Rank 3] Watchdog caught collective operation timeout: WorkNCCL("),
        ("[rank1]: ValueError: no such file", "; the log of rank 1 says: ValueError: no such file"),
    ],
)
def test_logs_without_a_line_of_the_watchdog_are_refused(tmp_path, capsys, line, says):
    (tmp_path / "job.log").write_text(f"{line}\n")
    assert main(["why", str(tmp_path / "job.log")]) == 2
    assert says in " ".join(capsys.readouterr().err.split())

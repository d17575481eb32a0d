"""Dumps of the flight recorder: three ranks on gloo, of which rank 1 left out the fourth
all-reduce (tests/support/gloo_hangs.py), and such dumps with other faults put in."""

import json
from pathlib import Path

import pytest

from simlab.cli.main import main
from simlab.diagnosis import hang_of
from simlab.errors import InputError
from tests.support.simlab_commands import answer, refused

DUMPS = Path(__file__).parent / "dumps"


@pytest.fixture
def dumps():
    return [json.loads(path.read_text()) for path in sorted(DUMPS.glob("*.json"))]


def found(dumps):
    return hang_of(list(enumerate(dumps)))


def test_the_rank_that_left_out_a_collective_is_named(capsys):
    hang = answer(capsys, ["why", *map(str, sorted(DUMPS.glob("*.json")))])["hang"]
    assert (hang["reason"], hang["culprit"], hang["waiting"]) == ("missing", [1], [0, 2])
    assert (hang["name"], hang["number"], hang["ranks"]) == ("all_reduce", 4, [0, 1, 2])


def test_another_collective_is_named(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3] | {"profiling_name": "gloo:broadcast"})
    hang = found(dumps)
    assert (hang.reason, hang.culprit, hang.waiting) == ("different", (1,), (0, 2))
    assert "broadcast" in hang.detail


def test_another_size_is_named(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3] | {"input_sizes": [[4]]})
    hang = found(dumps)
    assert (hang.reason, hang.culprit) == ("size", (1,))
    assert "[[4]]" in hang.detail


def test_all_in_it_is_the_networks_fault(dumps):
    dumps[1]["entries"].append(dumps[0]["entries"][3])
    hang = found(dumps)
    assert (hang.reason, hang.culprit, hang.waiting) == ("stuck", (), (0, 1, 2))


def test_a_rank_without_a_dump_is_missing(dumps):
    dumps[2]["entries"].pop()
    hang = hang_of([(0, dumps[0]), (1, dumps[1])])
    assert hang.no_dump == (2,)
    assert hang.culprit == (1,)
    both = hang_of([(0, dumps[0])])
    assert (both.culprit, both.reason) == ((1, 2), "missing")


def test_no_hang_is_said_to_be_none(dumps):
    for dump in dumps:
        dump["entries"] = dump["entries"][:3]
    assert found(dumps).reason == "none"


def test_lines_of_code_are_given_where_the_dump_has_them(dumps):
    dumps[1]["entries"][2]["frames"] = [{"filename": "train.py", "line": 12, "name": "step"}]
    assert "train.py:12 step" in str(found(dumps))


def test_of_two_groups_the_one_with_a_culprit_is_told(dumps):
    """Ranks 0 and 2 wait in a group of their own, too; that is no culprit's."""
    for rank in (0, 2):
        other = dumps[rank]["entries"][3] | {"process_group": ["1", "pair"], "collective_seq_id": 1}
        dumps[rank]["entries"].append(other)
        dumps[rank]["pg_config"]["1"] = {"name": "1", "desc": "pair", "ranks": "[0, 2]"}
    assert found(dumps).culprit == (1,)


def test_two_dumps_of_a_rank_are_refused(dumps):
    with pytest.raises(InputError, match="two dumps are of rank 1"):
        hang_of([(1, dumps[0]), (1, dumps[1])])


def entry(name, number, *, state="completed", group=("0", "default_pg"), **more):
    """An entry of NCCL's recorder."""
    numbers = {"collective_seq_id": number, "p2p_seq_id": 0, "is_p2p": False}
    if name.startswith(("send", "recv")) or more.get("is_p2p"):
        numbers = {"collective_seq_id": 0, "p2p_seq_id": number, "is_p2p": True}
    given = {"process_group": list(group), "profiling_name": f"nccl:{name}", "state": state}
    return numbers | given | {"input_sizes": [[8]], "output_sizes": [[8]]} | more


def dumped(*entries, world=2, **groups):
    """A dump with those entries. groups: {name: ranks}."""
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    for name, ranks in groups.items():
        config[name] = {"name": name, "desc": name, "ranks": str(ranks)}
    return {"version": "2.10", "pg_config": config, "entries": list(entries)}


def of_groups(*calls, world, **groups):
    """Dumps of ranks, each given by its entries."""
    return found([dumped(*its, world=world, **groups) for its in calls])


def test_two_ranks_that_both_receive_first_are_a_circle(tmp_path, capsys):
    dumps = [
        dumped(entry("send 0->1", 1), entry("recv 0<-1", 2, state="started")),
        dumped(entry("recv 1<-0", 1), entry("recv 1<-0", 2, state="started")),
    ]
    for rank, dump in enumerate(dumps):
        (tmp_path / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump))
    assert main(["why", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "ranks 0, 1 wait for each other in a circle: none of them can go on.",
        "rank 0 waits in recv number 1 of group 0 for rank 1.",
        "rank 1 waits in recv number 2 of group 0 for rank 0.",
    ]
    hang = found(dumps)
    assert (hang.reason, hang.culprit, hang.name) == ("circle", (0, 1), "recv")


def test_the_rank_that_never_sent_is_named():
    hang = of_groups(
        [entry("send 0->1", 1), entry("recv 0<-1", 2, state="started")],
        [entry("recv 1<-0", 1)],
        world=2,
    )
    assert (hang.reason, hang.culprit, hang.waiting) == ("missing", (1,), (0,))
    assert "rank 1 has not sent: rank 0 waits in recv number 1" in str(hang)


def test_messages_are_counted_from_the_last_one_where_a_buffer_has_dropped_the_first():
    """Rank 0's buffer holds two sends of three, rank 1's all of its receives."""
    sends = [entry("send 0->1", n, record_id=n) for n in (8, 9)]
    recvs = [entry("recv 1<-0", n, record_id=n - 7) for n in (7, 8, 9)]
    waits = [*recvs, entry("recv 1<-0", 10, state="started")]
    assert of_groups(sends, waits, world=2).culprit == (0,)
    late = [*sends, entry("send 0->1", 10, state="started")]
    hang = of_groups(late, waits, world=2)
    assert (hang.reason, hang.culprit, hang.waiting) == ("stuck", (), (0, 1))


def test_a_batch_of_messages_has_the_state_of_the_entry_that_closes_it():
    batch = [
        entry("send 0->1", 1, state="scheduled"),
        entry("recv 0<-1", 1, state="scheduled"),
        entry("coalesced", 1, is_p2p=True),
    ]
    other = [entry("recv 1<-0", 1, state="scheduled"), entry("send 1->0", 1, state="scheduled")]
    closed = [*other, entry("coalesced", 1, is_p2p=True)]
    assert of_groups(batch, closed, world=2).reason == "none"
    open_ = [*other, entry("coalesced", 1, is_p2p=True, state="started")]
    third = [entry("recv 0<-1", 2, state="started")]
    assert of_groups([*batch, *third], closed, world=2).culprit == (1,)
    assert of_groups(batch, open_, world=2).reason == "stuck"


def test_the_cause_is_found_through_groups_and_pairs():
    """Rank 3 stopped before its tp all-reduce: 2 waits for it there, 0 for 2's message, 1 for 0 in
    its tp group. The first group in the dumps is that of 0 and 1, of which nobody is to blame."""
    tp = {"tp0": [0, 1], "tp1": [2, 3], "pp": [0, 1, 2, 3]}
    hang = of_groups(
        [entry("recv 0<-2", 1, state="started", group=("pp", "pp"))],
        [entry("all_reduce", 1, state="started", group=("tp0", "tp"))],
        [entry("all_reduce", 1, state="started", group=("tp1", "tp"))],
        [],
        world=4,
        **tp,
    )
    assert (hang.culprit, hang.waiting, hang.group) == ((3,), (2,), "tp1")
    assert "rank 1 waits in all_reduce number 1 of group tp0 for rank 0." in str(hang)


def test_two_culprits_at_once_are_both_named():
    hang = of_groups(
        [entry("all_reduce", 1, state="started", group=("a", "a"))],
        [],
        [entry("broadcast", 1, state="started", group=("b", "b"))],
        [],
        world=4,
        a=[0, 1],
        b=[2, 3],
    )
    assert hang.culprit == (1, 3) and len(hang.causes) == 2


@pytest.mark.parametrize(
    "name", ["all_to_all", "alltoall_base", "scatter", "gather", "all_gather_v"]
)
def test_sizes_that_may_differ_accuse_nobody(name):
    calls = [
        [entry(name, 1, state="started", input_sizes=[[rank + 1]], output_sizes=[[3 - rank]])]
        for rank in range(3)
    ]
    assert of_groups(*calls, world=3).reason == "stuck"
    calls[1] = []
    hang = of_groups(*calls, world=3)
    assert (hang.reason, hang.culprit) == ("missing", (1,))


def test_another_size_is_no_accusation_where_a_rank_is_missing():
    calls = [
        [entry("all_reduce", 1, state="started", input_sizes=[[rank + 1]])] for rank in range(3)
    ]
    hang = of_groups(*calls, [], world=4)
    assert (hang.reason, hang.culprit, hang.waiting) == ("missing", (3,), (0, 1, 2))


def test_shapes_of_as_many_numbers_are_the_same_size():
    calls = [
        [entry("all_reduce", 1, state="started", input_sizes=[shape])] for shape in ([2, 4], [8])
    ]
    assert of_groups(*calls, world=2).reason == "stuck"


def test_a_gpu_that_has_not_begun_is_behind():
    hang = of_groups(
        [entry("all_reduce", 1, state="started")],
        [entry("all_reduce", 1, state="scheduled")],
        world=2,
    )
    assert (hang.reason, hang.culprit, hang.waiting) == ("behind", (1,), (0,))


@pytest.mark.parametrize("empty", [{}, {"entries": []}, {"entries": None}])
def test_a_rank_without_entries_is_an_answer(tmp_path, capsys, empty):
    """torch 2.13 leaves `entries` out where a rank has none."""
    dumps = [dumped(entry("all_reduce", 1, state="started")), dumped()]
    del dumps[1]["entries"]
    dumps[1] |= empty
    for rank, dump in enumerate(dumps):
        (tmp_path / f"dump_rank_{rank}.json").write_text(json.dumps(dump))
    assert main(["why", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "rank 1 has not called all_reduce number 1" in out
    assert "Rank 1 has called nothing at all." in out


def test_an_entry_without_a_state_is_done_unless_it_is_the_last():
    calls = [entry("all_reduce", number) for number in (1, 2)]
    for call in calls:
        del call["state"]
    assert of_groups(calls, calls[:1], world=2).culprit == (1,)


def test_dumps_without_calls_are_said_to_have_none():
    assert "TORCH_FR_BUFFER_SIZE" in str(of_groups([], [], world=2))


def test_a_rank_that_left_no_dump_is_blamed_only_if_all_waits_lead_to_it():
    waits = entry("all_reduce", 1, state="started")
    hang = found([dumped(waits, world=3), dumped(waits, world=3)])
    assert (hang.culprit, hang.no_dump, hang.detail) == ((2,), (2,), "")
    assert "No dump of rank 2" in str(hang)


def test_torchs_own_file_names_are_read_and_its_pickles_are_not(tmp_path, capsys):
    (tmp_path / "nccl_trace_rank_0").write_bytes(b"\x80\x04\x95abc")
    assert main(["why", str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert "nccl_trace_rank_0" in error and "could execute code" in error and "json.dump" in error
    dump = json.dumps(dumped(entry("all_reduce", 1, state="started")))
    (tmp_path / "nccl_trace_rank_1.json").write_text(dump)
    assert "nccl_trace_rank_0" in refused(capsys, ["why", str(tmp_path)])
    (tmp_path / "nccl_trace_rank_0.json").write_text(dump)
    assert main(["why", str(tmp_path)]) == 0


def test_the_folder_of_a_run_that_did_not_finish_names_the_command_that_shows_it(tmp_path, capsys):
    (tmp_path / "rank0.records").write_bytes(b"")
    assert main(["why", str(tmp_path)]) == 2
    assert f"realrun show {tmp_path}" in " ".join(capsys.readouterr().err.split())

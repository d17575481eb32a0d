"""Profiles that torch.profiler wrote of small trainings on gloo: each was slowed in one known way,
by tests/support/profiled_trainings.py.

They were recorded while few others used the machine. Where more processes than cores compete, a rank
that gets less of them is a straggler, and its profile says so."""

import gzip
import json
from pathlib import Path

import pytest

from simlab.cli.main import main
from simlab.diagnosis import diagnose, profile_graph, read
from simlab.errors import InputError

PROFILES = Path(__file__).parent / "profiles"
CASES = {
    "compute": ("compute", None),
    "communication": ("communication", None),
    "data": ("data", None),
    "host": ("host", None),
    "slow-rank": ("straggler", (1, "gpu")),
    "data-of-one-rank": ("straggler", (1, "data")),
}


def files(name):
    found = sorted(PROFILES.glob(f"{name}.rank*.json.gz"))
    assert len(found) == 2
    return found


def contents(name):
    return [json.loads(gzip.decompress(path.read_bytes())) for path in files(name)]


PREPARED = [(case, how) for case in CASES for how in ("ddp", "fsdp2")]
# On loopback gloo reduces gradients faster than DDP copies them: its profile says compute, rightly.
PREPARED.remove(("communication", "ddp"))


@pytest.mark.parametrize(("case", "how"), PREPARED)
def test_the_bottleneck_of_a_training_is_named(case, how):
    graph = profile_graph([one.content for one in read(files(f"{case}-{how}"))])
    found = diagnose(graph)
    bottleneck, slow = CASES[case]
    assert found.bottleneck == bottleneck
    if slow:
        assert (found.straggler.rank, found.straggler.cause) == slow
    assert found.steps == 5
    for spent in found.spent_by_rank:
        assert spent.total == pytest.approx(found.step_s)
    assert graph.replay().step_s == pytest.approx(graph.step_s)


def test_clocks_that_differ_are_shifted_to_where_collectives_agree():
    first, second = contents("slow-rank-ddp")
    alone = diagnose(profile_graph([first, second]))
    for event in second["traceEvents"]:
        event["ts"] += 3e6
    found = diagnose(profile_graph([first, second]))
    assert "Clocks" in " ".join(found.notes)
    assert (found.straggler.rank, found.bottleneck) == (1, "straggler")
    assert found.step_s == pytest.approx(alone.step_s, rel=0.2)


def test_the_order_of_the_files_does_not_matter():
    both = contents("data-of-one-rank-fsdp2")
    assert diagnose(profile_graph(both[::-1])).to_dict() == diagnose(profile_graph(both)).to_dict()


def test_a_rank_without_a_profile_is_told():
    found = diagnose(profile_graph(contents("data-ddp")[:1]))
    assert found.bottleneck == "data"
    assert "Only 1 of 2 ranks" in found.notes[0]


def test_two_profiles_of_one_rank_are_refused():
    with pytest.raises(InputError, match=r"ranks \[0, 0\]"):
        profile_graph([contents("data-ddp")[0]] * 2)


def gpu(rank, kernels, data_s=0.0):
    """The profile of a rank of a GPU training: kernels as (name, start, end, group) in µs."""
    events = [
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": 1, "ts": 0, "dur": 1000},
        {"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#x.__next__", "pid": 1, "tid": 1, "ts": 0, "dur": data_s},
    ]  # fmt: skip
    for name, start, end, group in kernels:
        args = {"Collective name": "allreduce", "Process Group Ranks": group} if group else {}
        events.append(
            {"ph": "X", "cat": "kernel", "name": name, "pid": 0, "tid": 7, "ts": start, "dur": end - start, "args": args}
        )  # fmt: skip
    info = {"rank": rank, "world_size": 2}
    return {"traceEvents": events, "distributedInfo": info, "baseTimeNanoseconds": 10**18}


def test_kernels_of_a_gpu_by_hand():
    """Rank 1 computes 600 µs where rank 0 computes 200, then an all-reduce of 100 µs, then 200 µs of
    computing: the step is 1,000 µs with 100 µs in which nothing was missing. If rank 1 computed as long
    as rank 0 in all, each of its kernels would take half its time, and the collective begin at 300 µs."""
    nccl = "ncclDevKernel_AllReduce_Sum_bf16_RING_LL"
    ranks = [
        gpu(0, [("gemm", 0, 200, ""), (nccl, 200, 700, "[0, 1]"), ("gemm", 700, 900, "")]),
        gpu(1, [("gemm", 0, 600, ""), (nccl, 600, 700, "[0, 1]"), ("gemm", 700, 900, "")]),
    ]
    found = diagnose(profile_graph(ranks))
    zero, one = found.spent_by_rank
    us = 1e-6
    assert zero.compute == pytest.approx(400 * us) and one.compute == pytest.approx(800 * us)
    assert zero.waiting == pytest.approx(400 * us) and one.waiting == pytest.approx(0, abs=1e-12)
    assert zero.exposed["communication"] == pytest.approx(100 * us)
    assert one.exposed["communication"] == pytest.approx(100 * us)
    assert zero.host == pytest.approx(100 * us) == pytest.approx(one.host)
    assert (found.straggler.rank, found.straggler.cause) == (1, "gpu")
    assert found.straggler.saved_s == pytest.approx(300 * us)


def test_loading_beside_computing_costs_nothing():
    step = [("gemm", 0, 900, "")]
    assert diagnose(profile_graph([gpu(0, step, data_s=800)])).spent.data == 0
    late = [("gemm", 850, 950, "")]
    assert diagnose(profile_graph([gpu(0, late, data_s=800)])).bottleneck == "data"


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.json", b"\x80\x04\x95abc", "never read: it could execute code"),
        ("x.pkl", b"PK\x03\x04abc", "never read: it could execute code"),
        ("x.json", b"[1]", "no object"),
        ("x.json", b"{", "not JSON"),
        ("x.json", b"{}", "neither a trace of simlab"),
        ("x.json", b"[" * 100_000, "not JSON"),
        ("x.json.gz", b"\x1f\x8b\x08abc", "not a gzip file"),
        ("x.json", b'{"format": "simlab-trace-2"}', "KeyError"),
        ("x.json", b'{"traceEvents": []}', "no event with a duration"),
        (
            "x.json",
            b'{"traceEvents": [1, {"ph": "X", "ts": "a", "dur": 1}]}',
            "ts of an event = 'a'",
        ),
        ("x.json", b'{"entries": [{}]}', "not a flight recorder's"),
        ("x.json", b'{"entries": [1]}', "not a flight recorder's"),
    ],
)
def test_what_is_no_trace_is_one_clear_line(tmp_path, capsys, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    assert main(["why", str(path)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1 and len(error) < 2000


def test_files_of_two_kinds_are_refused(tmp_path, capsys):
    (tmp_path / "a.json").write_text('{"entries": []}')
    (tmp_path / "b.json").write_text('{"traceEvents": []}')
    assert main(["why", str(tmp_path)]) == 2
    assert "files of one kind" in capsys.readouterr().err


def test_the_text_is_one_screen(capsys):
    assert main(["why", *map(str, files("slow-rank-fsdp2"))]) == 0
    text = capsys.readouterr().out
    assert text.count("\n") <= 24 and "rank 1" in text

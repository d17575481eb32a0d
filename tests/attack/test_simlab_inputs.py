"""Whatever a person or a file says to simlab, the answer is an answer or one clear line: never a
traceback, never a hang, never a screenful of errors."""

import gzip
import json
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import strategies as st

import simlab as sl
from simlab.cli.commands.running.operations import OPTIONS, SUBJECTS
from simlab.cli.main import main
from simlab.cli.options import flag
from simlab.trace import MemoryPoint, Span, Trace
from tests.support.attacks import Ends, attacked, said

EACH, FEW = 1000, 20
"""Inputs of each kind: in all, and in the short part."""
RECORDED = Path(__file__).parents[1] / "simlab" / "diagnosis"
CLUSTERS = json.loads((files("simlab.spec") / "data" / "clusters.json").read_text(encoding="utf-8"))

NUMBERS = st.sampled_from(
    [
        0,
        -1,
        1,
        2,
        0.5,
        -0.0,
        1e-300,
        1e300,
        1e18,
        2**63,
        10**12,
        10**30,
        10**400,
        float("nan"),
        float("inf"),
        float("-inf"),
    ]
)
TEXTS = st.sampled_from(
    ["", "x", "0", "[0, 1]", "²", "\ud800", "9" * 5000, "a" * 5000, "F", "send"]
)
LEAVES = st.none() | st.booleans() | NUMBERS | TEXTS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=4,
)  # fmt: skip
GONE = object()
CHANGES = st.lists(
    st.tuples(st.lists(st.integers(0, 10**6), max_size=6), VALUES | st.just(GONE)),
    min_size=1, max_size=3,
)  # fmt: skip


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """argv → the exit status of a command that is answered or refused."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    ends = Ends(main, capsys)

    def run(argv):
        status, out, err = ends(argv)
        assert status in (0, 1, 2), (status, argv)
        if status:
            assert len(said(err)) == 1, (argv, err)
        elif "--json" in argv:
            json.loads(out, parse_constant=lambda name: pytest.fail(f"{name} in {argv}"))
        return status

    yield run
    ends.tell()


def changed(value, changes):
    """A copy of a JSON value, in which each of `changes`, (path, new value), is made; the numbers of
    a path lead to a place in it."""
    value = json.loads(json.dumps(value))
    for path, new in changes:
        place = value
        for at, number in enumerate(path):
            names = sorted(place) if isinstance(place, dict) else list(range(len(place)))
            if not names:
                break
            name = names[number % len(names)]
            inner = place[name]
            if at < len(path) - 1 and isinstance(inner, (dict, list)) and inner:
                place = inner
                continue
            if new is GONE:
                del place[name]
            else:
                place[name] = new
            break
    return value


def _cut(profile):
    """A recorded profile with fewer events, so that it is read quickly."""
    events = profile["traceEvents"]
    steps = [one for one in events if str(one.get("name", "")).startswith("ProfilerStep")]
    gloo = [one for one in events if str(one.get("name", "")).startswith("gloo:")]
    return profile | {"traceEvents": steps + gloo[:20] + events[:60]}


def _layers():
    """A trace of layers with two collectives, a message and the optimizer."""
    spans = [
        Span(rank, "compute", "0F0 layer 0", 0.0, 1.0, 0, -1, "F", 0, "layer 0", 0, "F", "MLP")
        for rank in (0, 1)
    ]
    spans += [
        Span(rank, "tp", "0F0 all_reduce", 1.0, 1.5, 64, -1, "all_reduce", 0, "layer 0", 0, "F")
        for rank in (0, 1)
    ]
    spans += [
        Span(0, "send", "0F0", 1.5, 2.0, 64, 1, "message", 0, "", 0, "F"),
        Span(1, "compute", "1F0 head", 2.0, 3.0, 0, -1, "F", 1, "head", 0, "F"),
        Span(0, "optimizer", "step", 3.0, 4.0, 0, -1, "optimizer"),
    ]
    held = [MemoryPoint(0, "activations", 0.0, 1.0)]
    return Trace(spans, held, {"name": "layers", "source": "simulated", "ranks": 2})


def _seeds():
    """{kind: the files of a diagnosis that are as they should be}"""
    times = sl.OpTimes(forward_s=1.0, input_grad_s=1.0, weight_grad_s=1.0)
    ops = sl.simulate(sl.generate("1f1b", 2, 3), times, link=sl.Link(latency_s=0.1))
    packed = sorted(RECORDED.glob("profiles/communication-fsdp2.*"))
    return {
        "ops": [json.loads(ops.to_json())],
        "layers": [json.loads(_layers().to_json())],
        "profile": [_cut(json.loads(gzip.decompress(path.read_bytes()))) for path in packed],
        "dump": [json.loads(path.read_text()) for path in sorted(RECORDED.glob("dumps/*.json"))],
    }


SEEDS = _seeds()


def write(path, content):
    """Write a JSON value, or bytes, and return the file's name."""
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    path.write_bytes(raw)
    return path.name


def test_the_files_that_are_changed_are_answered(answer, tmp_path):
    for kind, contents in SEEDS.items():
        names = [write(tmp_path / f"{kind}{at}.json", one) for at, one in enumerate(contents)]
        assert answer(["why", *names]) == 0
    write(tmp_path / "cluster.json", CLUSTERS["dgx-a100"])
    assert answer(["simulate", "--model", "gpt2", "--cluster", "cluster.json", "--dp", "8"]) == 0
    for subject in set(SUBJECTS) - {"replan"}:
        assert answer(["operations", subject, "--json"]) == 0


@attacked(EACH, 60, st.sampled_from(sorted(SEEDS)), CHANGES, st.booleans())
def test_why_on_changed_files(answer, tmp_path, kind, changes, as_json):
    contents = [changed(SEEDS[kind][0], changes), *SEEDS[kind][1:]]
    names = [write(tmp_path / f"rank{at}.json", one) for at, one in enumerate(contents)]
    answer(["why", *names, *["--json"] * as_json])


@attacked(
    EACH,
    FEW,
    st.binary(max_size=200) | VALUES,
    st.sampled_from([b"", b"\x1f\x8b", b"{", b"PK\x03\x04", b"[["]),
)
def test_why_on_any_bytes(answer, tmp_path, content, begin):
    raw = content if isinstance(content, bytes) else json.dumps(content).encode()
    answer(["why", write(tmp_path / "any.json", begin + raw)])


@attacked(EACH, FEW, st.sampled_from(sorted(SEEDS)), st.data())
def test_why_on_files_of_which_bytes_are_changed(answer, tmp_path, kind, data):
    raw = bytearray(json.dumps(SEEDS[kind][0]).encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    answer(
        [
            "why",
            write(tmp_path / "torn.json", bytes(raw[: data.draw(st.integers(0, len(raw)))] or raw)),
        ]
    )


@attacked(EACH, FEW, st.sampled_from(sorted(CLUSTERS)), CHANGES)
def test_cluster_files(answer, tmp_path, name, changes):
    write(tmp_path / "cluster.json", changed(CLUSTERS[name], changes))
    answer(["simulate", "--model", "gpt2", "--cluster", "cluster.json", "--dp", "2", "--json"])


@attacked(EACH, FEW, st.binary(max_size=100) | VALUES)
def test_cluster_files_of_any_bytes(answer, tmp_path, content):
    write(tmp_path / "cluster.json", content)
    answer(["simulate", "--model", "gpt2", "--cluster", "cluster.json"])


SAID = [
    *("0", "-1", "1", "2", "3", "0.5", "100", "1e9", "1e-9", "1e300", "-1e300", "1e-300", "1e400"),
    *("inf", "nan", "", " ", "x", "1_000", "²", "9" * 30, "9" * 5000, "a" * 5000, "/dev/zero"),
]
FLAG_VALUES = st.sampled_from(SAID) | st.integers(0, 10**18).map(str) | st.floats().map(str)


@attacked(
    EACH,
    40,
    st.sampled_from(sorted(SUBJECTS)),
    st.lists(st.tuples(st.integers(0, 50), FLAG_VALUES), min_size=1, max_size=3),
    st.booleans(),
)
def test_operations(answer, tmp_path, subject, pairs, as_json):
    argv = ["operations", subject, *["--json"] * as_json]
    for number, value in pairs:
        name = SUBJECTS[subject].options[number % len(SUBJECTS[subject].options)]
        argv += [flag(name)] if OPTIONS[name].kind is bool else [f"{flag(name)}={value}"]
    answer(argv)

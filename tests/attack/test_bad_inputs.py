"""Whatever a person or a file says to realrun, the answer is a run or one clear line: never a traceback,
never a hang, never a screenful. No process is started: what would run counts as an answer."""

import json
import os
from importlib.resources import files

import pytest
from hypothesis import strategies as st

from realrun.cli.jobs import OTHERS
from realrun.cli.main import main
from realrun.cli.options import BOX, PIPELINE, RUN, SIZES
from realrun.launch import ranks
from simlab.cli.options import flag
from simlab.cli.plan_options import FIELDS
from tests.support.attacks import Ends, attacked, said

EACH, FEW = 400, 15
"""Inputs of each kind, five of them: in all, and in the short part."""
CLUSTERS = json.loads((files("simlab.spec") / "data" / "clusters.json").read_text(encoding="utf-8"))

NASTY = st.sampled_from([
    "", " ", "0", "-1", "1", "2", "3", "4", "8", "0.5", "1e9", "1e400", ".inf", "-.inf", "nan", ".nan",
    "inf", "NaN", "true", "null", "~", "abc", "fp32", "bf16", "1f1b", "gpipe,gpipe", "zb-v", "torch",
    "dgx-a100", "[1]", "[[[[1]]]]", "{a: 1}", "{}", "[]", "'", '"', "&a [*a]", "*a", "!!python/object:os.system x",
    "!!binary aGk=", "2020-01-01", "0x10", "0o7", "1_000", "9" * 5000, "a" * 5000, "../../etc/passwd",
    "/dev/null", "/dev/zero", "\\u0000", "\u202e", "🙂", "--help", "1,2", "1 2", "% d", "tp,dp",
])  # fmt: skip
NAMES = st.sampled_from(
    [*FIELDS, *PIPELINE, *BOX, *SIZES, *RUN, *OTHERS, "timeout_s", "pP", "", "-", "?"]
)
PRINTED = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), max_size=60)
VALUES = NASTY | PRINTED | st.integers().map(str) | st.floats().map(str)


class WouldRun(Exception):
    """The command was accepted."""


@pytest.fixture
def answer(tmp_path, monkeypatch, capsys):
    """argv → what the command says on stderr when it is refused, would run, or gives help."""

    def accepted(*arguments, **options):
        raise WouldRun

    def would_run(argv):
        try:
            return main(argv)
        except WouldRun:
            return None

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ranks, "run", accepted)
    monkeypatch.setenv("COLUMNS", "100")
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    ends = Ends(would_run, capsys)

    def run(argv):
        status, _, err = ends(argv)
        assert status in (None, 0, 1, 2), (status, argv)
        if status:
            assert len(said(err)) == 1 or "usage:" in err or "error:" in err, (argv, err)
        return err

    yield run
    assert not list(tmp_path.glob(".realrun.lock"))
    ends.tell()


@attacked(
    EACH,
    FEW,
    st.lists(st.tuples(NAMES, VALUES), max_size=6),
    st.sampled_from(["", "\n- 1", "\n}", "\t", "---\n"]),
)
def test_plan_files(answer, tmp_path, lines, end):
    text = "\n".join(f"{name}: {value}" for name, value in lines) + end
    (tmp_path / "plan.yaml").write_text(text, encoding="utf-8")
    answer(["--plan", "plan.yaml"])


@attacked(EACH, FEW, st.lists(st.tuples(NAMES, VALUES), min_size=1, max_size=5))
def test_flags(answer, tmp_path, pairs):
    argv = []
    for name, value in pairs:
        argv += [flag(name)] if name in OTHERS and name not in ("csv", "group", "inject") else []
        argv += [] if name in ("resume", "elastic") else [flag(name), value]
    answer(argv)


CELLS = st.sampled_from(["0F0", "0B0", "1F0", "1B0", "0I0", "0W0", "0F1", "2F0", "", " ", "F", "0F", "0F-1",
                         "9" * 30 + "F0", "0X0", "0F0 0B0", "0RECV_F0", "OVERLAP", '"', ";", "🙂"])  # fmt: skip


@attacked(EACH, FEW, st.lists(st.lists(CELLS | PRINTED, max_size=6), max_size=5))
def test_programs(answer, tmp_path, rows):
    (tmp_path / "mine.csv").write_text("\n".join(map(",".join, rows)), encoding="utf-8")
    answer(["--csv", "mine.csv", "--compute", "padded"])


def changed(entry, path, value):
    """A copy of `entry` with `value` at a place that `path`, numbers, leads to."""
    entry = json.loads(json.dumps(entry))
    place = entry
    for number in path:
        name = sorted(place)[number % len(place)]
        if not isinstance(place[name], dict) or not place[name]:
            break
        place = place[name]
    else:
        name = sorted(place)[0]
    place[name] = value
    return entry


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | PRINTED | NASTY,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(PRINTED, inner, max_size=3),
    max_leaves=5,
)


@attacked(
    EACH,
    FEW,
    st.sampled_from(sorted(CLUSTERS)),
    st.lists(st.integers(0, 20), max_size=3),
    JSON,
    st.booleans(),
)
def test_cluster_files(answer, tmp_path, name, path, value, whole):
    data = value if whole else changed(CLUSTERS[name], path, value)
    (tmp_path / "cluster.json").write_text(json.dumps(data), encoding="utf-8")
    answer(["--dp", "2", "--cluster", "cluster.json"])


VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
NO_NUMBER = st.sampled_from(
    ["", "-1", "one", "1.5", "0x1", "²", "1e3", "9" * 5000, " 1", "１", "nan"]
)


@attacked(
    EACH,
    FEW,
    st.dictionaries(
        st.sampled_from(VARIABLES), NO_NUMBER | PRINTED.filter(lambda t: not t.isdecimal())
    ),
)
def test_torchrun_variables(answer, tmp_path, variables):
    """Each is refused, or not looked at, before any rank waits for another."""
    wanted = {
        "RANK": "0",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "1",
    } | variables
    with pytest.MonkeyPatch.context() as patched:
        for name, value in wanted.items():
            patched.setenv(name, value)
        assert os.environ["WORLD_SIZE"] == wanted["WORLD_SIZE"]
        answer(["--dp", "2", "--elastic", "--resume", "--checkpoint-every", "2"])

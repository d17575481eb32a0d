"""What the planner and the diagnosis write is said in Chinese in a lesson, whatever they find."""

import re
from dataclasses import replace
from unicodedata import east_asian_width

import pytest

import simlab as sl
from simlab.apps import cells
from simlab.diagnosis import (
    Cause,
    Hang,
    diagnose,
    hang_in_logs,
    hang_of,
    profile_graph,
    trace_graph,
)
from simlab.diagnosis.hangs.hang import REASONS
from simlab.diagnosis.straggler import GPU, LOSS, SLOW_DATA, SLOW_HOST, UNKNOWN, Straggler
from simlab.lessons.phrases import phrase
from simlab.lessons.subjects.operating import hidden
from simlab.lessons.words import LANGUAGES
from simlab.planner import explanation, search
from simlab.planner.explain import PARTS
from simlab.planner.explanation_text import explanation_text
from tests.simlab.planner.test_search import SPACE, with_memory
from tests.support.chinese import CODE, LOANS, english_words
from tests.support.made_profiles import profiles

GLOO = {"profiling_name": "gloo:all_reduce", "collective_seq_id": 1, "retired": True}
VERDICTS, TIED = ("fits", "tight"), (0, 1, 3)


@pytest.fixture
def report_in(monkeypatch):
    """What `report` shows of a text in a language."""
    shown = []
    monkeypatch.setattr(cells, "show", lambda text, kind: shown.append(text()))

    def report(text, tongue="zh"):
        monkeypatch.setenv("SIMLAB_LANG", tongue)
        cells.report(text)
        return shown.pop().removeprefix("```text\n").removesuffix("\n```")

    return report


def english_lines(text, *names):
    """The lines of a report in Chinese that keep English words other than those `names`."""
    kept = {*LOANS, "ep", *names}
    return [line for line in text.split("\n") if english_words(CODE.sub("", line), kept)]


@pytest.fixture(scope="module")
def why():
    """The explanation of a search, with rivals, families and changes."""
    space = replace(SPACE, cluster=with_memory(12e9), fixed={"precision": "bf16"})
    return explanation(search(space, kept=6, layered=0))


def test_a_report_is_as_it_was_in_english_and_keeps_its_lines_in_chinese(why, report_in):
    english = explanation_text(why)
    assert report_in(english, LANGUAGES[0]) == english
    chinese = report_in(english).split("\n")
    starts = [len(line) - len(line.lstrip()) for line in english.split("\n")]
    assert [len(line) - len(line.lstrip()) for line in chinese] == starts
    assert chinese[0].startswith("最佳方案：计算占一步的 ")


@pytest.mark.parametrize("ties", TIED)
@pytest.mark.parametrize("more", [False, True])
@pytest.mark.parametrize("verdict", VERDICTS)
def test_every_sentence_of_an_explanation_is_said(why, report_in, ties, more, verdict):
    best = replace(why.best, fit=why.best.fit._replace(verdict=verdict))
    told = replace(why, best=best, ties=ties, more_ties=more and ties > 0)
    text = explanation_text(told)
    assert why.runner_up and why.families and why.changes
    assert english_lines(report_in(text)) == []
    far = told.uncertainty._replace(is_near=False, differs=("architecture",))
    text = explanation_text(replace(told, uncertainty=far))
    assert "measuring decides" in text and english_lines(report_in(text)) == []
    gone = replace(told, changes=[one._replace(best=None, same=False) for one in why.changes])
    assert english_lines(report_in(explanation_text(gone))) == []


@pytest.mark.parametrize("name", [*PARTS, "compute", "bubble", "optimizer"])
def test_every_part_of_a_step_is_named(why, report_in, name):
    most = why.runner_up._replace(difference_s={name: 0.5, "compute": -0.25})
    assert english_lines(report_in(explanation_text(replace(why, runner_up=most)))) == []
    spent = dict.fromkeys(why.waterfall_s._fields, 1.0) | {name: 2.0}
    told = replace(why, waterfall_s=type(why.waterfall_s)(**spent))
    assert english_lines(report_in(explanation_text(told))) == []


@pytest.mark.parametrize("seed", range(6))
def test_a_case_on_call_is_diagnosed(report_in, seed):
    text = report_in(str(diagnose(trace_graph(hidden(seed).trace))))
    assert english_lines(text) == [] and "关键路径：计算 " in text


CAUSES = (GPU, LOSS, SLOW_DATA, SLOW_HOST, UNKNOWN)
BOTTLENECKS = ("compute", "communication", "data", "host", "bubble", "optimizer", "straggler")


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("bottleneck", BOTTLENECKS)
def test_every_sentence_of_a_diagnosis_is_said(report_in, bottleneck, cause):
    found = diagnose(trace_graph(hidden(0).trace))
    each = found.step_s / 8
    spent = found.spent._replace(data=each, host=each, optimizer=each, waiting=each)
    spent = spent._replace(exposed={"dp": each, "communication": each / 2})
    slow = Straggler(1, 1.5, each, cause)
    told = replace(found, bottleneck=bottleneck, straggler=slow, spent=spent)
    assert english_lines(report_in(str(told))) == []


def test_a_note_on_a_measured_trace_is_said(report_in):
    trace = hidden(0).trace
    trace.metadata |= {"source": "measured", "shared": True}
    text = str(diagnose(trace_graph(trace)))
    assert "Ops or messages shared" in text
    assert english_lines(report_in(text)) == []


def verdict(cap, program):
    """What the puzzle of lesson 2 says of `program` where a rank may hold `cap` microbatches."""
    times = sl.OpTimes(forward_s=1e-3, input_grad_s=1e-3, weight_grad_s=1e-3)
    return sl.Puzzle(3, 4, times, cap=cap).check(program).text


SPLIT = re.sub(r"(\d)B(\d)", r"\1I\2 \1W\2", str(sl.generate("1f1b", 3, 4)))
TRIES = {
    "Valid, within the cap": (3, SPLIT),
    "Too much memory": (2, SPLIT),
    "optimal": (5, str(sl.generate("zb-h2", 3, 4))),
}


@pytest.mark.parametrize("start", TRIES)
def test_what_a_puzzle_says_of_a_try_is_said(start):
    told = verdict(*TRIES[start])
    assert start in told
    assert english_words(phrase(told, tongue="zh")) == []


WRONG = {"never runs": "0F0 0B0\n1F1 1B1", "has no backward": "0F0 0F1 0B0"}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_wrong_with_the_programs_of_lesson_1_is_said(mistake):
    with pytest.raises(sl.ProgramError, match=mistake) as wrong:
        sl.validate(sl.Program.from_text(WRONG[mistake]))
    assert english_words(phrase(str(wrong.value), tongue="zh")) == []


def places(line):
    """How many places of a monospaced font `line` takes: a Chinese character takes two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in line)


@pytest.mark.parametrize("held", ["   equal", "  differ"])
def test_a_comparison_is_said_and_stays_in_columns(report_in, held):
    program, times = sl.generate("1f1b", 12, 12), sl.OpTimes(forward_s=0.02, backward_s=0.04)
    traces = [sl.simulate(program, times, link=sl.Link(latency_s=s)) for s in (0.0, 0.005)]
    english = str(sl.compare(*traces)).replace("   equal", held)
    chinese = report_in(english)
    assert english_lines(chinese) == []
    assert {*map(places, chinese.split("\n"))} == {*map(places, english.split("\n"))}


HANG = Hang("tp", (0, 1, 2), 4, "all_reduce", (1,), (0, 2), "missing", "", (3, 4))
NAMES = (
    "recv",
    "send",
    "train.py",
    "step",
    "gloo",
    "json",
    "Float",
    "TORCH",
    "FR",
    "BUFFER",
    "SIZE",
)
DETAILS = (
    "The last that rank 1 called is all_reduce number 3.",
    "The last that rank 1 called is all_reduce number 3, at train.py:12 step.",
    "Rank 1 has called nothing at all.",
    "Rank 1 has called nothing of this group.",
    "Rank 1 called all_reduce of [[8]] ['Float'].",
)
LINE = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1, OpType=ALLREDUCE, Timeout"
LOGS = ("The log of rank 1 says: `x`",)
WAITS = (
    "rank 0 waits in recv number 4 of group pp for rank 2.",
    "ranks 0, 5 wait in all_reduce number 4 of group tp for ranks 1, 2.",
    "rank 0 waits in send number 4 of group pp for its end.",
)


@pytest.mark.parametrize("culprit", [(1,), (1, 2)])
@pytest.mark.parametrize("waiting", [(0,), (), (0, 3)])
@pytest.mark.parametrize("reason", REASONS)
def test_every_sentence_of_a_hang_is_said(report_in, reason, culprit, waiting):
    causes = reason != "none" and [
        Cause("tp", (0, 1), 4, name, culprit, waiting, reason, detail)
        for name in ("all_reduce", "recv", "send")[: 3 if len(culprit) == 1 else 1]
        for detail in DETAILS
    ]
    said = hang_in_logs([(None, LINE)]).logs
    several = HANG._replace(
        logs=said + LOGS, reason=reason, causes=tuple(causes or ()), waits=WAITS * 5
    )
    assert english_lines(report_in(str(several)), *NAMES) == []


@pytest.mark.parametrize("dumps", [[{}], [{"entries": [GLOO]}]])
def test_no_hang_is_said(report_in, dumps):
    text = str(hang_of(list(enumerate(dumps))))
    assert text.count("\n") == 1 and english_lines(report_in(text), *NAMES) == []


@pytest.mark.parametrize("case", ["no steps", "few steps"])
def test_notes_on_a_profile_are_said(report_in, case):
    slices = [("aten::mm", "cpu_op", 0, 9), ("x", "`tpu`", 9, 10)]
    if case == "few steps":
        slices += [("ProfilerStep#1", "user_annotation", 0, 10), ("ProfilerStep#2", "", 10, 11)]
    events = [
        {"ph": "X", "name": name, "cat": what, "pid": 1, "tid": 1, "ts": start, "dur": end - start}
        for name, what, start, end in slices
    ]
    notes = diagnose(profile_graph([{"traceEvents": events}])).notes
    assert len(notes) == (4 if case == "few steps" else 3)
    assert english_lines(report_in("\n".join(notes)), "profile") == []


@pytest.mark.parametrize("how", ["", "`x`"])
@pytest.mark.parametrize("fault", ["more ops", "larger batch", "no shapes"])
def test_what_a_rank_has_more_is_said(report_in, fault, how):
    shapes = fault != "no shapes"
    made = profiles("ddp", fault if shapes else "slower ops", 4, shapes=shapes)
    text = str(diagnose(profile_graph(made)))
    if not how:
        text = text.replace(", most of their time in 'my extra products'", "")
    lines = english_lines(report_in(text), "my", "extra", "products", "aten", "mm")
    assert [line for line in lines if "rank 1" in line or "profile" not in line] == []

"""Explorers as data: what the front end is told of them, and names that do not exist."""

import json

import pytest

import simlab as sl
from simlab.explorers import NAMES, explorer
from simlab.explorers.explorer import Answer, Control, Explorer, Figure, Timeline
from simlab.views.chart import Axis, Chart, Line, Words
from simlab.views.language import LANGUAGE
from simlab.views.packing import panels

WORDS = Words("one", "一")
DP = Control("dp", WORDS, (1, 2, 4), 2, names=(WORDS, WORDS, WORDS))


def test_what_the_front_end_gets_is_plain_and_only_timelines_hold_bytes():
    line = Line((0, 1), (0.0, 2.0), "ink", WORDS, tips=(WORDS, WORDS))
    chart = Chart("curve", WORDS, Axis(WORDS, "log2"), Axis(WORDS), (line,))
    answer = Answer((Figure(WORDS, ("3 s",), WORDS),), (chart,), WORDS, ("a",), {"dp": range(3)})
    sent = json.loads(json.dumps(answer.to_dict()))
    assert sent["figures"] == [
        {"label": WORDS._asdict(), "values": ["3 s"], "tip": WORDS._asdict()}
    ]
    assert sent["values"] == {"dp": [0, 1, 2]} and sent["heads"] == ["a"]
    assert sent["pictures"][0]["marks"][0]["tips"] == [WORDS._asdict()] * 2
    run = sl.simulate(sl.generate("gpipe", 2, 2), sl.OpTimes(forward_s=1, backward_s=2))
    timeline = Timeline("steps", panels([run])).to_dict()
    assert timeline["picture"] == "timeline" and isinstance(timeline["panels"][0]["boxes"], bytes)


def test_an_explorer_tells_its_controls_and_refuses_others():
    found = Explorer("x", WORDS, (DP,), lambda state: Answer(), play="dp")
    sent = json.loads(json.dumps(found.to_dict()))
    assert sent["controls"][0]["values"] == [1, 2, 4] and sent["play"] == "dp"
    assert sent["controls"][0]["names"] == [WORDS._asdict()] * 3
    assert found.start(dp=4) == {"dp": 4}
    with pytest.raises(sl.InputError, match="no control 'pd'"):
        found.start(pd=4)


def test_an_explorer_that_does_not_exist_is_refused():
    with pytest.raises(sl.InputError, match="no explorer 'memori'"):
        explorer("memori")


def test_a_reply_is_the_answer_or_says_why_there_is_none():
    def answer(state):
        if state["dp"] == 1:
            raise sl.InputError("dp = 1: give 2 or more")
        return Answer(note=WORDS)

    found = Explorer("x", WORDS, (DP,), answer)
    assert found.reply({"dp": 2}) == Answer(note=WORDS).to_dict() | {"refused": None}
    english = "dp = 1: give 2 or more"  # nothing that controls can bring about
    assert found.reply({"dp": 1}) == {"refused": {"en": english, "zh": english}}


@pytest.mark.parametrize(
    "name, said, sentence",
    [
        ("memory", {"dp": 3}, "dp = 3: give one of 1, 2, 4, 8,"),
        ("memory", {"cluster": "dgx-h10"}, "cluster = 'dgx-h10', did you mean 'dgx-h100'?: give"),
        ("zero_grid", {"zero": 4}, "zero = 4: give one of 0, 1, 2, 3"),
        ("pipeline", {"first": "x"}, "first = 'x': give one of"),
        ("collectives", {"ranks": 1}, "ranks = 1: give one of 2, 3, 4,"),
        ("plan", {"microbatches": 0}, "microbatches = 0: give one of 1, 2, 3, ..., 128"),
        ("causal_mask", {"cp": 3}, "cp = 3: give one of 2, 4, 8"),
    ],
)
def test_a_value_that_no_control_offers_is_refused_with_those_that_one_does(name, said, sentence):
    found = explorer(name)
    refused = found.reply(found.start(**said))["refused"]["en"]
    assert refused.startswith(sentence)


def test_a_state_that_lacks_a_control_is_refused():
    assert "no 'step'" in explorer("causal_mask").reply({"cp": 4})["refused"]["en"]


@pytest.mark.parametrize("name", NAMES)
def test_every_explorer_opens_with_pictures_in_both_languages_and_values_that_it_offers(name):
    found = explorer(name)
    assert found.name == name
    state = found.start()
    for control in found.controls:
        assert control.start in control.values, control.name
        assert control.names is None or len(control.names) == len(control.values)
    reply = found.reply(state)
    assert not reply["refused"] and reply["pictures"]
    keys = [picture["key"] for picture in reply["pictures"]]
    assert len(keys) == len(set(keys))
    if found.play:
        assert found.play in state


def test_a_category_of_memory_has_one_colour_in_every_explorer():
    table = {entry["en"]: entry["colour"] for entry in LANGUAGE["memory"].values()}
    showing = set()
    for name in NAMES:
        found = explorer(name)
        for picture in found.answer(found.start()).pictures:
            for mark in picture.marks if isinstance(picture, Chart) else ():
                if mark.name and mark.name.en in table:
                    assert mark.colour == table[mark.name.en], (name, picture.key, mark.name.en)
                    showing.add(name)
    assert showing == {"memory", "zero_grid", "context", "plan", "challenge"}


def test_the_pipeline_says_which_controls_its_schedules_do_not_read():
    found = explorer("pipeline")
    idle = {*found.answer(found.start()).idle}
    assert idle == {"chunks", "weight_share"}
    assert {*found.answer(found.start(second="interleaved-1f1b")).idle} == {"weight_share"}
    assert {*found.answer(found.start(second="zb-h1")).idle} == {"chunks"}
    for control in idle:  # what is idle changes nothing indeed
        values = next(each.values for each in found.controls if each.name == control)
        figures = [found.answer(found.start(**{control: value})).figures for value in values]
        assert all(each == figures[0] for each in figures)


@pytest.mark.parametrize("name", NAMES)
def test_the_title_of_an_explorer_is_a_title_in_both_languages(name):
    title = explorer(name).title
    assert not title.en[0].islower() and not title.zh[0].islower()


@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_the_ring_explains_scores_of_ranks_that_there_are(ranks):
    ring = explorer("ring")
    note = ring.answer(ring.start(ranks=ranks)).note
    assert f"0←{ranks - 1} " in note.en and f"0←{ranks - 1} " in note.zh


@pytest.mark.parametrize("split", [False, True])
def test_the_matrix_split_says_what_a_ring_sends_of_the_collectives_that_there_are(split):
    found = explorer("matrix_split")
    note = found.answer(found.start(sequence_parallel=split, tp=4)).note.en
    assert ("1.5 times the buffer of an all-reduce" in note) == (not split)
    assert ("0.75 of the buffer of a gather" in note) == split

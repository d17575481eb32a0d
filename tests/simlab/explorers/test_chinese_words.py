"""In Chinese, an explorer shows Latin letters only in names, units and abbreviations."""

import re
from itertools import combinations

import pytest

from simlab.errors import SimlabError
from simlab.explorers import NAMES, explorer
from simlab.spec.cluster import clusters, load_cluster
from simlab.trace import ACTIVATIONS, LIVE
from simlab.training.uncertainty import recorded
from simlab.views.language import LANGUAGE, REFUSALS, refusal, said
from simlab.views.scene import memory_label
from tests.support.chinese import english_words

SUITE = re.compile("|".join(sorted({its.suite for its in recorded()}, key=len, reverse=True)))
# the label of the memory strip is a word of the table in Chinese
NOT_SHOWN = {
    "mark",
    "picture",
    "key",
    "scale",
    "colour",
    "pattern",
    "outline",
    "symbol",
    "memory_label",
    "control",
}
PACKED = {"boxes", "rows", "kinds", "used", "ops", "memory", "holders", "waits", "row"}
MOST_VALUES = 9  # of a control, spread over its values
FEW_VALUES = 3  # the same, where two controls are moved
QUOTED = re.compile(r"'[^']*'|\w+(?= = )")
"""Values and fields, which a Chinese sentence quotes as they are."""
ONE_NODE_OF_72 = {"cluster": "gb200-nvl72", "nodes": 1, "tp": 1, "pp": 1}
REFUSED = [  # a state for each reason that there is
    ("collectives", {"algorithm": "halving-doubling", "ranks": 6}),
    ("collectives", {"algorithm": "hierarchical", "ranks": 9}),
    ("pipeline", {"first": "dualpipe", "stages": 3}),
    ("pipeline", {"second": "dualpipe-v", "stages": 5}),
    ("ring", {"model": "gpt3-175b"}),
    ("ring", {"model": "deepseek-v2"}),
    ("ring", {"model": "nemotron-3-nano-30b-a3b"}),
    ("plan", {"nodes": 8}),
    ("plan", {"tp": 20}),
    ("plan", {"tp": 16, "dp": 1, "pp": 2}),
    ("plan", ONE_NODE_OF_72 | {"model": "mixtral-8x22b", "tp": 3, "dp": 24}),
    ("plan", ONE_NODE_OF_72 | {"cp": 3, "dp": 24}),
    ("plan", {"model": "deepseek-v3"}),
    ("plan", {"model": "deepseek-v2", "tp": 1, "pp": 1, "dp": 32, "recompute": "per-op"}),
    (
        "plan",
        {"model": "nemotron-3-nano-30b-a3b", "tp": 1, "pp": 1, "dp": 32, "recompute": "per-op"},
    ),
    ("plan", {"model": "nemotron-3-nano-30b-a3b", "tp": 16, "pp": 1, "dp": 2}),
    ("plan", {"model": "nemotron-3-super-120b-a12b"}),
    ("plan", {"model": "megatron-530b"}),
    ("plan", {"nodes": 64, "pp": 64}),
    ("plan", {"cluster": "dgx-v100"}),
    ("plan", {"schedule": "dualpipe-v", "microbatches": 1}),
    ("plan", {"schedule": "dualpipe", "microbatches": 1}),
    ("plan", {"schedule": "dualpipe", "zero": 2}),
    ("plan", {"schedule": "dualpipe", "nodes": 1, "pp": 1}),
    ("challenge", {"task": 11, "tp": 16, "pp": 16}),
    ("challenge", {"task": 21, "microbatch_size": 8}),
    ("plan", {"microbatches": 129}),  # as an address may ask for it
]


def texts(item):
    """Each text that is shown of an answer or a control in Chinese."""
    if isinstance(item, str):
        yield said(item, "zh")
    elif isinstance(item, dict) and set(item) == {"en", "zh"}:
        yield said(item["zh"], "zh")
    elif isinstance(item, dict):
        for name, part in item.items():
            if name not in NOT_SHOWN | PACKED:
                yield from texts(part)
    elif isinstance(item, (list, tuple)):
        for part in item:
            yield from texts(part)


def shown(control):
    """What a control says: its label, and its values where they have no names."""
    offered = control.names or [value for value in control.values if isinstance(value, str)]
    return [*texts(control.label._asdict()), *(text for each in offered for text in _named(each))]


def _named(each):
    return texts(each if isinstance(each, str) else each._asdict())


def why(found, state):
    """Why there is no answer for `state`; None where there is one."""
    try:
        found.ask(state)
    except SimlabError as error:
        return refusal(error)
    return None


def english_left(reasons):
    """{reason in Chinese: what of it a Chinese reader should not meet}."""
    gpus = [load_cluster(name).gpu.name for name in clusters()]
    found = {
        each.zh: english_words(QUOTED.sub("", each.zh), gpus) + re.findall("[,:;] ", each.zh)
        for each in reasons
    }
    return {text: wrong for text, wrong in found.items() if wrong}


def pairs(found):
    """The start with two controls moved, for all pairs of controls."""
    start, moves = found.start(), {}
    for control in found.controls:
        step = -(-len(control.values) // FEW_VALUES)
        moves[control.name] = [*control.values[::step], control.values[-1]]
    for one, other in combinations(moves, 2):
        for first in moves[one]:
            yield from (start | {one: first, other: second} for second in moves[other])


def states(found):
    """The start, and each control moved by itself."""
    start = found.start()
    yield start
    for control in found.controls:
        step = max(1, len(control.values) // MOST_VALUES)
        yield from (start | {control.name: value} for value in control.values[::step])
    for name, values in found.answer(start).values.items():  # which follow from the others
        yield start | {name: values[len(values) // 2]}


@pytest.mark.parametrize("name", NAMES)
def test_an_explorer_in_chinese_has_no_english_word(name):
    found = explorer(name)
    said_there = [said(found.title.zh, "zh"), *(t for c in found.controls for t in shown(c))]
    for state in states(found):
        try:
            said_there += texts(found.answer(state).to_dict() | {"values": {}})
        except SimlabError:
            continue  # the start with this value is not possible
    wrong = {
        text: words
        for text in {*said_there}
        if (words := english_words(SUITE.sub("", text)))  # published runs are named as they are
    }
    assert wrong == {}
    assert [text for text in said_there if re.search("[,:;] ", text)] == []


@pytest.mark.parametrize("name", NAMES)
def test_why_two_controls_do_not_go_together_is_said_in_chinese(name):
    found = explorer(name)
    assert english_left(filter(None, (why(found, state) for state in pairs(found)))) == {}


@pytest.mark.parametrize(("name", "moved"), REFUSED)
def test_every_reason_is_said_in_chinese_with_the_values_of_the_english_one(name, moved):
    found = explorer(name)
    reason = why(found, found.start(**moved))
    assert reason.en != reason.zh and english_left([reason]) == {}
    assert {*re.findall(r"\d+", reason.zh)} == {*re.findall(r"\d+", reason.en)}
    assert found.reply(found.start(**moved)) == {"refused": reason._asdict()}


def test_the_table_of_reasons_has_no_text_that_nothing_says():
    reasons = "\n".join(why(explorer(name), explorer(name).start(**on)).en for name, on in REFUSED)
    parts = {english: re.split(r"\{\w+\}", english) for english, _ in REFUSALS}
    found = {
        english: re.search(".+?".join(map(re.escape, texts)), reasons)
        for english, texts in parts.items()
    }
    assert [english for english, there in found.items() if not there] == []


def test_a_reason_that_the_table_does_not_have_is_said_in_english():
    assert refusal(SimlabError("no such thing")) == ("no such thing", "no such thing")


@pytest.mark.parametrize(("category", "chunks"), [(ACTIVATIONS, 1), (LIVE, 1), (LIVE, 2)])
def test_the_table_has_the_label_of_every_memory_strip(category, chunks):
    label = memory_label(category, chunks).replace("\n", " ")
    assert label in [word["en"] for word in LANGUAGE["words"].values()]


def test_terms_are_replaced_as_whole_words_and_the_longest_first():
    assert said("stage 1 compute", "zh") == "stage 1 计算"
    assert said("all-reduce of a bucket", "en") == "all-reduce of a bucket"
    assert said("idle / makespan 27.3%", "zh") == "空闲 / 总时长 27.3%"
    assert said("playback headroom", "zh") == "playback headroom"
    assert said("backward head", "zh") == "输出头的反向"
    assert said("forward block 3", "zh") == "第 3 层的前向"
    assert said("scores 0←3, step 2", "zh") == "注意力 0←3，第 2 步"


def test_what_joins_english_terms_becomes_chinese_punctuation():
    assert said("QKV, attention, output", "zh") == "QKV、注意力、输出"
    assert said("rank 0: stages 0, 7", "zh") == "rank 0：stage 0、7"
    assert said("Simulated: gpipe, makespan 1,920.0 ms", "zh") == "仿真：gpipe，总时长 1,920.0 ms"
    assert said("dp 0, cp 1; node 2", "zh") == "dp 0，cp 1；节点 2"
    assert said("QKV, attention", "en") == "QKV, attention"


def test_an_english_word_would_be_noticed():
    assert english_words("第 3 轮: waiting for rank 2") == ["waiting", "for"]
    assert not re.search("[a-z]", said("compute", "zh"))

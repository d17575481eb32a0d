"""What a learner is told to say aloud: how long it takes, that it speaks of the subject and not of the
course, that it claims no experience that the learner lacks, and that facts of a date have a source."""

import re
from pathlib import Path

import pytest
import yaml

from simlab.lessons import book, words
from tests.support.spoken import chinese_syllables, english_words, number_words, seconds

LONGEST_S, HEADLINE_S = 75, 15
QUESTIONS = {
    question["id"]: question
    for question in yaml.safe_load(
        (Path(__file__).parents[2] / "notebooks" / "questions.yml").read_text(encoding="utf-8")
    )
}
COURSE = {
    "en": r"\b(lessons?|exercises?|notebooks?|(this|the) (cell|course)|(table|picture) (above|below)|simlab|realrun)\b",
    "zh": r"下一课|[这本第][ \d]*课|练习|单元格|表里|图里|上表|上图|上面的|下面的|simlab|realrun",
}
CLAIMED = {
    "en": r"\bI (have (run|measured|counted|checked|killed|tried|taken|trained|seen)|ran|measured|counted|checked|killed|trained)\b",
    "zh": r"我.{0,10}(实测|跑过|试过|验证过|数过|杀掉|训过|见过)",
}
WHERE = {"en": r"process|simulation", "zh": r"进程|仿真"}
DATED = (
    r"DeepSpeed|NCCL('s)? (can|has|RAS|Inspector)|RAS\b|FSDP2|Megatron-(LM|Core)|torchtitan|torchft|torch 2\.|Llama 3|MegaScale|"
    r"Meta\b|NVFP4|MXFP8|Muon|DiLoCo|DualPipe|Transformer Engine|[Ss]ymmetric memory"
)


def said(identifier, tongue):
    """[each text of a question that is said aloud or ticked as said]."""
    table = words.entry(identifier, tongue=tongue)
    return [table["headline"], table["spoken"], *table["points"]]


every = pytest.mark.parametrize("identifier", book.questions())
both = pytest.mark.parametrize("tongue", words.LANGUAGES)


@both
@every
def test_an_answer_takes_at_most_75_seconds_aloud(identifier, tongue):
    took = seconds(words.entry(f"{identifier}.spoken", tongue=tongue), tongue=tongue)
    assert 30 <= took <= LONGEST_S, f"{took:.0f} s"


@both
@every
def test_a_headline_takes_at_most_15_seconds_aloud(identifier, tongue):
    took = seconds(words.entry(f"{identifier}.headline", tongue=tongue), tongue=tongue)
    assert 4 <= took <= HEADLINE_S, f"{took:.0f} s"


@both
@every
def test_no_sentence_that_is_said_aloud_speaks_of_the_course(identifier, tongue):
    for text in said(identifier, tongue):
        assert not (found := re.search(COURSE[tongue], text, re.IGNORECASE)), found


@both
@every
def test_what_is_claimed_as_done_names_the_processes_or_the_simulation_where_it_was_done(
    identifier, tongue
):
    for text in said(identifier, tongue):
        for sentence in re.split(r"(?<=[.:;])\s|[。；]", text):
            if re.search(CLAIMED[tongue], sentence):
                assert re.search(WHERE[tongue], sentence), sentence


@every
def test_what_is_true_of_a_release_or_a_paper_has_its_source_in_the_map(identifier):
    follow_ups = words.entry(f"{identifier}.follow_ups", tongue="en")
    text = " ".join(said(identifier, "en") + [each["answer"] for each in follow_ups])
    if found := re.search(DATED, text):
        assert QUESTIONS[identifier].get("facts"), found


@both
@every
def test_a_follow_up_is_asked_without_a_cell_to_look_at(identifier, tongue):
    tied = {
        "en": r"\bhere\b|\babove\b|the (last|first) (plan|table)|the (table|cell)",
        "zh": r"这里|上面|表里|最后的方案",
    }
    for follow_up in words.entry(f"{identifier}.follow_ups", tongue=tongue):
        assert not re.search(tied[tongue], follow_up["question"]), follow_up["question"]


@both
@every
def test_a_follow_up_is_answered_without_a_cell_a_lesson_or_an_id(identifier, tongue):
    """An interview and a page of questions show the answer, too; what to do in the notebook is its `try`."""
    tied = {
        "en": r"\b(cell|lesson|exercise|notebook|explorer|simlab|realrun)s?\b|\b(table|picture|line|row|bar|box)s? (above|below)"
        r"|\b(in|of|after) (the|this) (\w+ )?(table|picture|bars|box)\b|marked line|section after|\b([wbde]\d\d|t[1-5])\b|:$",
        "zh": r"单元格|课|练习|探索器|标出的|上面|下面|上[图表]|[图表]里|simlab|realrun|(?<![a-z])([wbde]\d\d|t[1-5])\b|：$",
    }
    for follow_up in words.entry(f"{identifier}.follow_ups", tongue=tongue):
        assert not (found := re.search(tied[tongue], follow_up["answer"], re.IGNORECASE)), found


@pytest.mark.parametrize("key", words.keys("zh"))
def test_gathering_has_one_chinese_word(key):
    """The collective is an all-gather; what it does is 收集."""
    text = words.word(key, tongue="zh")
    assert not re.search(r"[\u4e00-\u9fff，。；、] ?gather ?[\u4e00-\u9fff，。；、]", text), text


def test_numbers_and_formulas_are_counted_as_they_are_spoken():
    assert [number_words(text) for text in ("0", "7", "16", "20", "46", "312", "65504")] == [
        *(1, 1, 1, 1, 2, 3, 6)
    ]
    assert number_words("1.75") == 4 and number_words("16,384") == 6
    assert english_words("(p−1)(F+B)") == len(["p", "minus", "one", "times", "F", "plus", "B"])
    assert english_words("an all-reduce of 2 GB") == 6
    assert chinese_syllables("占整步的 (p−1)/m") == 4 + 5 and chinese_syllables("GPU 数") == 4

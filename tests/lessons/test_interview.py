"""Interview mode: chains of questions, what is read, a timed session with its advice, and paths."""

import pytest

from simlab.lessons import book, words
from simlab.lessons.drill import chains, rounds
from simlab.lessons.drill.items import Item, pose
from simlab.lessons.drill.session import Session

CHAINS = [*chains.CHAINS]


def right_texts(asked):
    return {name: str(value) for name, value in asked.answer.items()}


def wrong_texts(asked):
    names = ("points", "held", "answer")
    return {name: {"points": "1", "held": "no", "answer": "-12345"}[name] for name in names}


def test_there_are_chains_of_three_to_five_questions_for_twenty_questions():
    assert len(CHAINS) >= 20 and {*CHAINS} <= {*book.questions()}
    for name in CHAINS:
        links = chains.CHAINS[name]
        assert 3 <= 1 + len(links) <= 5 and len({*links}) == len(links)
        for tongue in words.LANGUAGES:
            assert len(words.entry(f"chains.{name}", tongue=tongue)) == len(links), name


@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_no_link_needs_a_lesson_beside_it(monkeypatch, tongue):
    """What is told after it is a whole answer, that ends in a sentence and shows to nothing on a page."""
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    of_a_page = ("above", "marked line", "explorer", "section after", "上面", "标记", "探索器")
    for link in {link for links in chains.CHAINS.values() for link in links}:
        if chains.is_exercise(link):
            assert book.exercise(link[0]).asked_in_drill()
        else:
            question, answer = chains.follow_up(link)
            assert answer.endswith((".", "。", "）", ")")), (link, answer[-40:])
            assert not any(place in question + answer for place in of_a_page), link


@pytest.mark.parametrize("name", CHAINS)
def test_each_question_of_a_chain_follows_what_the_interviewer_says_of_the_last_answer(name):
    parts = rounds.parts(Item("chain", name))
    opening = pose(parts[0], "1")
    assert opening.shown and words.word(f"{name}.title") in opening.text
    for at, part in enumerate(parts[1:]):
        asked = pose(part, "1")
        assert asked.text.startswith(chains.lead(name, at)) and rounds.whole(part).name == name
        assert asked.right(asked.read(right_texts(asked)))


@pytest.mark.parametrize("held", [0, 1, 2, 3, 4])
def test_a_chain_ends_where_the_learner_stops_and_says_how_far_it_went(held):
    session, links = Session(2, "s", ["b09", "d09"], kinds=["chain"]), 4
    for _ in range(held):
        session.answer(right_texts(session.question()))
    first = rounds.whole(Item(*session.state["items"][0]))
    if held < links:
        _, said = session.answer(wrong_texts(session.question()))
        assert said[-1] == words.word("drill.chain_held", held=held, links=links)
    assert rounds.whole(session.question().item) != first
    assert session.count == session.at + links

"""Interview mode: chains of questions, what is read, a timed session with its advice, and paths."""

import re
from random import Random

import pytest
import yaml

from simlab.apps.drill import Drill
from simlab.cli.main import main
from simlab.diagnosis import hang_of
from simlab.errors import InputError
from simlab.lessons import NOTEBOOKS, book, progress, words
from simlab.lessons.drill import chains, paths, rounds
from simlab.lessons.drill.advice import advice as advice_on
from simlab.lessons.drill.artefacts import (
    ARTEFACTS,
    launch_scripts,
    loss_curves,
    nccl_tables,
    profiles,
    recorders,
)
from simlab.lessons.drill.items import Item, pose
from simlab.lessons.drill.session import MORE, ORDER, Session
from simlab.lessons.prediction import Choice
from tests.support.simlab_commands import answer

CHAINS = [*chains.CHAINS]


def right_texts(asked):
    return {name: str(value) for name, value in asked.answer.items()}


def test_there_are_chains_of_three_to_five_questions_for_twenty_questions():
    assert len(CHAINS) >= 20 and {*CHAINS} <= {*book.questions()}
    for name in CHAINS:
        links = chains.CHAINS[name]
        assert 3 <= 1 + len(links) <= 5 and len({*links}) == len(links)
        for tongue in words.LANGUAGES:
            assert len(words.entry(f"chains.{name}", tongue=tongue)) == len(links), name


@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_each_link_has_a_whole_answer(monkeypatch, tongue):
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    for link in {link for links in chains.CHAINS.values() for link in links}:
        if chains.is_exercise(link):
            assert book.exercise(link[0]).asked_in_drill()
        else:
            _, answer = chains.follow_up(link)
            assert answer.endswith((".", "。", "）", ")")), (link, answer[-40:])


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
        _, said = session.answer(wrong(session.question()))
        assert said[-1] == words.word("drill.chain_held", held=held, links=links)
    assert rounds.whole(session.question().item) != first
    assert session.count == session.at + links


@pytest.mark.parametrize("seed", range(20))
def test_the_diagnosis_of_a_made_profile_finds_the_fault_that_was_put_in(seed):
    for fault in profiles.FAULTS:
        made = profiles.made(Random(seed), fault, seed % profiles.RANKS)
        blamed = seed % profiles.RANKS if fault in ("gpu", "data") else profiles.OF_ALL
        assert profiles.diagnosis(made) == (fault, blamed)


@pytest.mark.parametrize("fault", nccl_tables.FAULTS)
def test_a_table_of_nccl_tests_is_told_from_others_through_its_noise(fault):
    for seed in range(20):
        assert nccl_tables.diagnosis(nccl_tables.measured(Random(seed), fault)) == fault


@pytest.mark.parametrize("fault", loss_curves.FAULTS)
def test_the_fault_of_a_loss_curve_and_its_first_step_are_found(fault):
    for seed in range(50):
        curve = loss_curves.curve(Random(seed), fault, 18)
        assert loss_curves.diagnosis(curve) == (fault, curve[18].step)


@pytest.mark.parametrize("reason", recorders.REASONS)
def test_the_diagnosis_of_made_dumps_finds_the_rank_and_what_it_did(reason):
    for seed in range(20):
        made = recorders.recorded(Random(seed), 8, reason, seed % 8)
        hang = hang_of([*enumerate(made.dumps)])
        assert (hang.reason, hang.culprit) == (reason, (seed % 8,))


def test_the_reader_of_scripts_takes_the_right_one_and_refuses_each_mistake_alone():
    assert not launch_scripts.refusal(launch_scripts.RIGHT)
    for name, text in launch_scripts.WRONG.items():
        assert launch_scripts.refusal(launch_scripts.RIGHT | {name: text}), name
    for seed in range(20):
        made = launch_scripts.launch_script(Random(seed))
        lines = enumerate(zip(launch_scripts.RIGHT.values(), made.rows), 1)
        wrong = [float(at) for at, (text, (shown,)) in lines if not shown.endswith(text)]
        assert [*made.answer.values()] == wrong and len(wrong) == launch_scripts.MISTAKES


@pytest.mark.parametrize("tongue", words.LANGUAGES)
@pytest.mark.parametrize("name", ARTEFACTS)
def test_an_artefact_is_asked_and_explained_in_both_languages(monkeypatch, tongue, name):
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    for seed in range(8):
        asked = pose(Item("artefact", name), str(seed))
        right = asked.read(right_texts(asked))
        said = asked.said(right)
        assert asked.right(right) and asked.rows and "{" not in "".join([asked.text, *said])
        names = "".join([*asked.rows[0], *(row[0] for row in asked.rows)])
        if tongue == "zh" and name in ("profile", "recorder"):
            assert not re.search(r"step|products|call|started", names)


class Clock:
    """A clock that goes on by as many seconds as each answer takes."""

    def __init__(self):
        self.now_s = 0.0

    def __call__(self):
        return self.now_s


def played(knows, takes_s=60.0, hints=0, seed="1"):
    """An interview with a learner: knows(posed) says whether an answer is right."""
    clock = Clock()
    session = Session.interview(seed, clock=clock)
    while (asked := session.question()) is not None:
        clock.now_s += takes_s
        texts = right_texts(asked) if knows(asked) else wrong(asked)
        session.answer(texts, hints=hints)
    return session


def wrong(asked):
    """Texts that every field takes and that are wrong."""
    return {
        name: next((one for one in field.options if one != asked.answer[name]), "")
        if isinstance(field, Choice)
        else str("0" if asked.at_least else asked.answer[name] + 997)
        for name, field in asked.fields.items()
    }


def test_an_interview_is_over_after_45_minutes_and_is_not_gone_on_with():
    session = played(lambda asked: True, takes_s=300.0)
    assert (session.at, session.left_min) == (9, 0.0) and session.is_over
    assert Session.kept() is None and session.report()["advice"]["minutes"] == 45.0
    kinds = {Item(*one["item"]).kind for one in played(lambda asked: True).state["results"]}
    assert kinds == {"aloud", "exercise", "chain", "artefact", "board", "case"}


def test_an_interview_that_is_left_goes_on_with_the_time_that_was_left():
    clock = Clock()
    session = Session.interview("1", clock=clock)
    session.question()
    clock.now_s = 600.0
    session.answer(right_texts(session.question()))
    assert Session.kept().left_min == 35.0
    clock.now_s = 99999.0  # a night goes by
    again = Session.kept(clock=clock)
    again.question()
    clock.now_s += 60.0
    again.answer(right_texts(again.question()))
    assert again.left_min == 34.0


def test_an_interview_that_is_stopped_early_is_not_told_that_time_ran_out():
    clock = Clock()
    session = Session.interview("1", clock=clock)
    session.answer(right_texts(session.question()))
    assert words.word("drill.advice.missed", kinds="").split("{")[0][:20] not in " ".join(
        session.advice()["next"]
    )


@pytest.mark.parametrize(
    "result",
    [
        {"right": True, "took_s": "x", "item": ["aloud", "b09"]},
        {"right": True},
        {"right": True, "item": ["a"]},
    ],
)
def test_a_damaged_interview_is_not_gone_on_with(result):
    session = Session.interview("1")
    session.answer(right_texts(session.question()))
    kept = progress.load()
    kept["drill"]["session"]["results"] = [result]
    progress.save(kept)
    assert Session.kept() is None


def test_a_notebook_that_takes_an_interview_over_ends_with_its_time():
    clock = Clock()
    session = Session.interview("1", clock=clock)
    session.question()
    clock.now_s = 44 * 60.0
    session.answer(right_texts(session.question()))
    notebook = Drill(3)
    assert notebook.drill.left_min == 1.0
    assert "1 of 45 minutes" in notebook.children[0].value
    notebook.drill.question()
    notebook.drill._clock = lambda: notebook.drill._asked[1] + 120.0
    notebook.answer(**right_texts(notebook.drill.question()))
    assert notebook.drill.is_over and notebook.children[-1].description == words.word("drill.begin")


def test_who_is_right_everywhere_is_told_so_and_what_is_harder():
    advice = played(lambda asked: True).advice()
    assert not advice["weak"] and not advice["slow"] and len(advice["strong"]) >= 5
    assert advice["next"] == [words.word("drill.advice.harder")]


def test_who_is_right_but_slow_is_told_to_be_shorter():
    advice = played(lambda asked: True, takes_s=200.0).advice()
    assert advice["slow"] and words.word("drill.advice.shorter") in advice["next"]


@pytest.mark.parametrize("kind", ["board", "chain", "artefact", "exercise"])
def test_who_fails_at_one_kind_is_sent_to_that_kind(kind):
    advice = played(lambda asked: rounds.skill(asked.item) != kind).advice()
    name = words.word(f"drill.skills.{kind}")
    assert any(one.startswith(name) for one in advice["weak"])
    assert not any(one.startswith(name) for one in advice["strong"])
    assert advice["next"][0] == words.word(f"drill.advice.{kind}")  # and no lesson before it
    for other in {"aloud", "board", "chain", "artefact"} - {kind}:
        assert words.word(f"drill.advice.{other}") not in advice["next"]


@pytest.mark.parametrize("seed", range(10))
def test_an_interview_asks_nothing_twice_and_goes_through_many_subjects(seed):
    state = Session.interview(str(seed)).state
    asked = [*dict.fromkeys(rounds.whole(Item(*part)) for part in state["items"])]
    once = [one for item in asked for one in rounds.asks(item)]
    assert len(once) == len({*once})
    assert len({rounds.subject(item) for item in asked[: len(ORDER)]}) >= len(ORDER) - 1


@pytest.mark.parametrize(
    "subject", ["bubbles", "memory", "layer", "sequences", "faults", "experts"]
)
def test_an_interview_comes_back_to_a_subject_in_which_an_answer_was_wrong(subject):
    """In the time of 27 answers a gap is found in each subject with at least five questions."""
    name = words.word(f"drill.areas.{subject}")
    for seed in "123":
        advice = played(
            lambda asked: rounds.subject(asked.item) != subject, 100.0, seed=seed
        ).advice()
        assert any(one.startswith(name) for one in advice["weak"]), seed
        lesson = words.word("drill.advice.lessons", numbers=book.number(subject))
        assert advice["next"][0] == lesson


def test_a_number_that_a_chain_asks_for_is_one_by_head_and_belongs_to_its_own_question():
    results = [
        {"item": ["chain", part], "right": right, "given": {}, "hints": 0, "took_s": 60.0}
        for part, right in [("t4.0", True), ("t4.1", False), ("w06.0", True), ("w06.1", False)]
    ]
    found = advice_on(results, [])
    numbers = words.word(
        "drill.advice.scored", what=words.word("drill.skills.exercise"), right=0, count=2
    )
    memory = words.word(
        "drill.advice.scored", what=words.word("drill.areas.memory"), right=0, count=2
    )
    assert found["weak"] == [numbers, memory]
    assert any(one.startswith(words.word("drill.skills.aloud")) for one in found["strong"])


def test_the_mistakes_of_a_script_are_right_in_any_order():
    asked = pose(Item("artefact", "launch"), "1")
    first, *others = asked.answer.values()
    given = dict(zip(asked.fields, [*others, first]))
    assert asked.right(given) and not asked.right({**given, "third": others[0]})


def test_every_case_and_artefact_is_about_a_subject():
    for item in rounds.items():
        for part in rounds.parts(item):
            assert rounds.subject(part) in book.SUBJECTS, part
    assert rounds.subject(Item("board", "llama3.activations")) == "memory"


def test_who_is_right_nowhere_is_sent_to_lessons():
    advice = played(lambda asked: False).advice()
    assert not advice["strong"] and str(book.number("memory")) in advice["next"][0]
    assert advice["next"][0].startswith(words.word("drill.advice.lessons", numbers="")[:20])


def test_who_needs_hints_is_not_strong():
    advice = played(lambda asked: True, hints=1).advice()
    assert not advice["strong"] and advice["weak"]


def test_who_does_not_know_a_subject_is_sent_to_its_lesson():
    def result(kind, name, right):
        return {"item": [kind, name], "right": right, "given": {}, "hints": 0, "took_s": 60.0}

    memory = [result("aloud", "w02", False), result("exercise", "w05", False)]
    others = [result("aloud", "b09", True), result("exercise", "t3", True)]
    assert {book.subject(one["item"][1]) for one in memory} == {"memory"}
    advice = advice_on([*memory, *others], [])
    assert advice["next"][0] == words.word("drill.advice.lessons", numbers=book.number("memory"))
    assert words.word("drill.advice.questions", names="w02 w05") in advice["next"]
    right = result("exercise", "w04", True)
    one_wrong = advice_on([memory[0], right, *others], [])  # of two: that may be bad luck
    assert not one_wrong["weak"] and not any("lesson" in one for one in one_wrong["next"])


@pytest.mark.parametrize("name", paths.PATHS)
def test_a_path_has_fifteen_questions_of_their_lessons_and_none_that_is_known(name):
    found = paths.path(name)
    questions = [step["question"] for step in found["steps"]]
    assert len({*questions}) == len(questions) == 15 and {*questions} <= {*book.questions()}
    assert not {*questions} & {*found["known"]} and {*found["known"]} <= {*book.questions()}
    listed = yaml.safe_load((NOTEBOOKS / "questions.yml").read_text(encoding="utf-8"))
    notebooks = {one["id"]: one["notebook"] for one in listed}
    for step in found["steps"]:
        assert int(notebooks[step["question"]][:2]) == step["lesson"], step["question"]


def test_there_is_no_other_path():
    with pytest.raises(InputError, match=r"'short'.*two-evenings"):
        paths.path("short")


@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_the_command_prints_paths_and_refuses_an_interview_of_one_kind(monkeypatch, capsys, tongue):
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    assert main(["drill", "--path", "after-fsdp"]) == 0
    assert "drill --only w10 b04" in capsys.readouterr().out.replace("\n", " ")
    assert len(answer(capsys, ["drill", "--path", "two-evenings"])["steps"]) == 15
    assert main(["drill", "--interview", "--kind", "board"]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_every_kind_and_every_lesson_has_a_name_in_the_advice():
    kinds = {*ORDER, *MORE}
    assert kinds <= {*words.entry("drill.skills")} and kinds <= {*words.entry("drill.advice")}
    assert {*book.SUBJECTS} <= {*words.entry("drill.areas")}

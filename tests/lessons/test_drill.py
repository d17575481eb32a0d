"""The drill: questions with numbers of their own, right and wrong answers, spacing, resuming."""

import json
import os
import re
import subprocess
import sys
from datetime import date, timedelta

import pytest

from simlab.apps import Drill
from simlab.cli.commands.drill import _aligned, _named, _plain, _say, _width, _wrapped
from simlab.errors import InputError
from simlab.lessons import book, progress, words
from simlab.lessons.drill import on_call
from simlab.lessons.drill.items import Item, items, pose
from simlab.lessons.drill.session import DAYS, Session
from simlab.lessons.prediction import Choice

TODAY = date(2026, 11, 23)


def right_texts(asked):
    """The texts that answer a question rightly."""
    return {name: str(value) for name, value in asked.answer.items()}


def wrong_texts(asked):
    texts = right_texts(asked)
    name = next(iter(asked.fields))
    return texts | {name: "0" if asked.at_least else str(asked.answer[name] / 3 - 1)}


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("cause", on_call.CAUSES)
def test_the_evidence_of_a_case_leads_to_its_rank(cause, seed):
    case = on_call.case(cause, str(seed))
    body = {at: row[1:] for at, row in enumerate(case.rows[1:])}
    if cause in ("slow_gpu", "uneven_stages"):
        spent = [[float(cell) for cell in row[1:]] for row in case.rows[2:]]
        assert max(range(len(spent)), key=lambda rank: spent[rank][-1]) == case.rank
        changed = spent[case.rank][-1] > 1.2 * spent[case.rank][0]
        assert changed == (cause == "slow_gpu")
    elif cause == "stopped":
        waiting_for_nothing = [rank for rank, row in body.items() if row[2] == "–"]
        assert [rank for rank in waiting_for_nothing if body[rank][1] != "optimizer"] == [case.rank]
    elif cause == "wrong_order":
        own = [rank for rank, row in body.items() if f"{rank}F" in row[2]]
        assert own == [case.rank]
    else:
        grown = [float(row[-1]) - float(row[0]) for row in body.values()]
        assert max(range(len(grown)), key=grown.__getitem__) == case.rank and max(grown) > 0.9


@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_no_exercise_is_asked_with_a_number_that_nobody_would_say(tongue, monkeypatch):
    """400 TFLOP/s are not said as 4e+14 FLOP/s."""
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    asked = items(["exercise"])
    texts = [pose(item, seed).text for item in asked for seed in "12345"]
    assert [text for text in texts if re.search(r"\de\+\d", text)] == []
    assert any(re.search(r"\b(312|989) TFLOP/s", text) for text in texts)
    assert any(re.search(r"\b(150|400) TFLOP/s", text) for text in texts)


@pytest.mark.parametrize("cause", on_call.CAUSES)
def test_where_stacks_are_shown_it_is_said_that_nothing_moves(cause):
    asked = pose(Item("case", cause), "1")
    stacks = asked.rows[0][1] == words.word("drill.cells.last_op_done")
    assert stacks == (words.word("drill.nothing_moves") in asked.text)


def test_a_wrong_number_is_answered_with_how_it_is_computed_and_a_right_one_is_not():
    asked = pose(Item("exercise", "b07"), "1")
    right = asked.answer["answer"]
    (computed,) = (text for text in asked.said({"answer": right + 1}) if "computed" in text)
    said, code = computed.removesuffix("\n```").split("```python\n")
    numbers = {name: int(n) for name, n in re.findall(r"(\w+) = (\d+)", said)}
    made = {}
    exec(code, made)
    assert made["solution_b07"](**numbers) == right
    assert not any("computed" in text for text in asked.said({"answer": right}))


@pytest.mark.parametrize("name", ["b04", "w12", "d19", "w05"])
def test_counts_are_written_as_they_are_said_and_not_in_powers_of_ten(name):
    for seed in "123":
        asked = pose(Item("exercise", name), seed)
        said = [asked.text, *asked.said({"answer": asked.answer["answer"] * 3})[:1]]
        assert not re.search(r"\de[+]\d", " ".join(said)), said


def test_the_terminal_leaves_code_as_it_is(capsys):
    line = "def " + "a" * 60 + "(parameters: float) -> " + "b" * 30
    _say(f"```python\n{line}\n```\n{line}")
    shown = capsys.readouterr().err.splitlines()
    assert shown[0] == line and len(shown) > 2


def test_there_is_no_other_case():
    with pytest.raises(InputError, match=r"'fire'.*slow_gpu"):
        on_call.case("fire", "0")


@pytest.mark.parametrize("item", items(), ids=" ".join)
def test_a_question_takes_its_answer_and_refuses_another_and_changes_with_its_seed(item):
    asked = pose(item, "1")
    given = asked.read(right_texts(asked))
    assert asked.right(given) and asked.said(given)
    assert not asked.right(asked.read(wrong_texts(asked)))
    assert pose(item, "1").text == asked.text
    if item.kind != "aloud":
        others = [pose(item, str(seed)) for seed in range(2, 12)]
        assert any((one.text, one.rows) != (asked.text, asked.rows) for one in others)


def test_an_item_comes_back_later_the_more_often_it_was_right_and_at_once_when_it_was_wrong():
    session = Session(3, "s", ["leak"], today=TODAY)
    for step in (1, 2):
        session.answer(right_texts(session.question()))
        box = progress.load()["drill"]["boxes"]["case leak"]
        assert box == {"step": step, "due": (TODAY + timedelta(days=DAYS[step])).isoformat()}
    session.answer(wrong_texts(session.question()))
    assert progress.load()["drill"]["boxes"]["case leak"]["due"] == TODAY.isoformat()


def test_items_that_are_due_come_before_new_ones_and_those_that_are_not_due_come_last():
    session = Session(1, "s", ["leak"], today=TODAY)
    session.answer(right_texts(session.question()))
    both = ["leak", "stopped"]
    assert Session(2, "t", both, today=TODAY).state["items"] == [
        ["case", "stopped"],
        ["case", "leak"],
    ]
    later = TODAY + timedelta(days=1)
    assert Session(2, "t", both, today=later).state["items"] == [
        ["case", "leak"],
        ["case", "stopped"],
    ]


def test_a_session_is_left_and_goes_on_with_the_same_questions():
    session = Session(4, "s", today=TODAY)
    session.answer(right_texts(session.question()))
    following = session.question()
    again = Session.kept(today=TODAY)
    assert again.at == 1 and again.count == 4 and again.right == 1
    assert (again.question().text, again.question().rows) == (following.text, following.rows)
    while again.question():
        again.answer(right_texts(again.question()))
    assert Session.kept() is None and again.report()["right"] == 4


def test_a_text_that_is_no_value_keeps_the_question():
    session = Session(1, "s", ["leak"])
    with pytest.raises(InputError, match="'many' is no number"):
        session.answer({"rank": "many", "cause": "leak"})
    assert session.at == 0


@pytest.mark.parametrize(
    ("count", "only", "message"), [(0, None, "0 questions"), (1, ["b99"], "b99")]
)
def test_a_drill_that_cannot_be_is_refused(count, only, message):
    with pytest.raises(InputError, match=message):
        Session(count, "s", only)


ALOUD = Item("aloud", "b09")


@pytest.mark.parametrize("text", ["12", "-1", "2.5", "", "many"])
def test_only_a_number_of_points_from_0_to_5_is_taken(text):
    with pytest.raises(InputError):
        pose(ALOUD, "1").read({"points": text})
    assert pose(ALOUD, "1").read({"points": " 5 "}) == {"points": 5.0}


@pytest.mark.parametrize("points", [0.0, 5.0])
def test_the_points_are_shown_before_they_are_counted_and_not_again(points):
    asked = pose(ALOUD, "1")
    assert words.entry("b09.points")[0] in asked.shown
    said = asked.said({"points": points})
    assert said[-1] == words.word("b09.spoken")
    assert not any(words.entry("b09.points")[0] in text for text in said)


def found(*names):
    """Progress with a committed prediction and its result for each name."""
    kept = {}
    for name in names:
        values = {
            field: getattr(one, "options", (1.0,))[0]
            for field, one in book.prediction(name).fields.items()
        }
        kept[name] = {"values": values, "found": values}
    progress.save(progress.load() | {"predictions": kept})


def test_a_prediction_after_a_change_is_asked_with_what_was_asked_before_it():
    found("d15.change", "d15", "d22.plastic")
    before, after = (words.word(key) for key in ("d15.prediction.text", "d15.change.text"))
    assert pose(Item("prediction", "d15.change"), "1").text == f"{before}\n\n{after}"
    assert pose(Item("prediction", "d15"), "1").text == before
    assert pose(Item("prediction", "d22.plastic"), "1").text == words.word("d22.plastic.text")


def test_what_only_the_lesson_shows_is_not_asked_without_it():
    found("d18.blind", "d18")
    predictions = [item.name for item in items() if item.kind == "prediction"]
    assert predictions == ["d18"]


@pytest.mark.parametrize(("tongue", "unit"), [("en", "x"), ("zh", "倍")])
def test_a_unit_is_in_the_learners_language(monkeypatch, tongue, unit):
    monkeypatch.setenv("SIMLAB_LANG", tongue)
    found("t4.change")
    asked = pose(Item("prediction", "t4.change"), "1")
    assert asked.unit("times") == unit
    assert f"1 {unit}" in asked.said({"times": 7.0})[0]


def terminal(arguments, typed):
    environment = os.environ | {"SIMLAB_LANG": "en"}
    return subprocess.run(
        [sys.executable, "-m", "simlab", "drill", *arguments],
        input=typed,
        capture_output=True,
        text=True,
        env=environment,
    )


def test_the_terminal_asks_stops_and_goes_on(tmp_path):
    first = terminal(
        ["--questions", "2", "--only", "leak", "--seed", "7", "--json"], "x\n99\n5\nq\n"
    )
    assert first.returncode == 0, first.stderr
    assert "'x' is no number" in first.stderr
    assert max(map(len, first.stderr.splitlines())) <= 80
    report = json.loads(first.stdout)
    assert (report["questions"], report["answered"], report["right"]) == (2, 1, 0)
    second = terminal(["--json"], "q\n")
    assert "at question 2 of 2" in second.stderr
    written = terminal(["--export", str(tmp_path / "mine.json")], "")
    assert written.returncode == 0
    assert "case leak" in json.loads((tmp_path / "mine.json").read_text())["drill"]["boxes"]


def test_a_drill_that_is_stopped_before_its_first_answer_is_not_promised_to_go_on():
    stopped = terminal(["--questions", "2", "--only", "leak", "--seed", "7"], "q\n")
    assert stopped.returncode == 0
    said = "Stopped before the first answer: nothing is kept."
    assert stopped.stderr.splitlines()[-1] == said


def test_the_terminal_shows_what_was_set_off_without_its_stars_and_questions_apart():
    assert _plain("a *static* job, **one** of 2 * 3 * 4") == "a static job, one of 2 * 3 * 4"
    typed = "\n12\n4\n"
    done = terminal(["--questions", "2", "--only", "b09", "--seed", "1"], "5\n" * 2 + typed)
    assert "\n\nQuestion 2 of 2." in done.stderr.replace("> ", "").replace("\r", "")


def test_chinese_is_wrapped_and_aligned_by_the_columns_that_it_takes():
    text = (
        "只要优化器、随机数和数据位置也存了下来，中途被杀的任务可以从最近的 checkpoint 恢复。" * 3
    )
    lines = _wrapped(text).split("\n")
    assert "".join(lines).replace(" ", "") == text.replace(" ", "")
    assert all(66 < _width(line) <= 80 for line in lines[:-1])
    assert not any(line[0] in "，。、" for line in lines)
    first, second = _aligned([["步", "1"], ["step", "20"]]).split("\n")
    assert _width(first) == _width(second)


@pytest.mark.parametrize("cause", on_call.CAUSES)
def test_the_table_of_a_case_is_in_chinese(monkeypatch, cause):
    monkeypatch.setenv("SIMLAB_LANG", "zh")
    rows = pose(Item("case", cause), "1").rows
    names = [*rows[0], *(row[0] for row in rows)]
    assert not any(re.search(r"[a-z]{2,} [a-z]{2,}|, [a-z]", name) for name in names), names


def test_another_seed_begins_another_drill_and_the_same_one_goes_on():
    terminal(["--questions", "3", "--seed", "7", "--json"], "q\n")
    session = Session(3, "7", ["leak"])
    session.answer(right_texts(session.question()))
    for seed, said in (("7", "question 2 of 3"), ("8", "Question 1 of 4")):
        done = terminal(["--questions", "4", "--seed", seed], "q\n")
        assert said in done.stderr, seed


def test_the_terminal_refuses_what_it_cannot_ask():
    done = terminal(["--only", "b99"], "")
    assert done.returncode == 2 and "b99" in done.stderr and "Traceback" not in done.stderr
    done = terminal(["--export", "/nowhere/at/all.json"], "")
    assert done.returncode == 2 and "/nowhere/at/all.json" in done.stderr


def test_the_drill_in_a_notebook_goes_on_where_the_terminal_stopped():
    session = Session(2, "s", ["leak", "stopped"])
    session.answer(right_texts(session.question()))
    board = Drill()
    assert "Question 2 of 2" in board.children[0].value
    board.answer(**right_texts(board.drill.question()))
    assert "Right" in board.children[-2].value
    assert "2 of 2 right" in board.children[-2].value
    board.children[-1].click()
    assert "Question 1 of 20" in board.children[0].value


def test_a_drill_with_a_seed_in_a_notebook_goes_on_when_its_cell_runs_again():
    board = Drill(3, seed="7")
    board.answer(**right_texts(board.drill.question()))
    assert "Question 2 of 3" in Drill(3, seed="7").children[0].value
    assert "Question 1 of 3" in Drill(3, seed="8").children[0].value


def test_a_second_unreadable_answer_in_a_notebook_replaces_the_first_complaint():
    board = Drill(1, only=["leak"])
    before = len(board.children)
    for text in ("many", "few"):
        board.fields["rank"].value = text
        board.children[-1].click()
        complaints = [
            one.value for one in board.children if "no number" in getattr(one, "value", "")
        ]
        assert len(complaints) == 1 and text in complaints[0] and len(board.children) == before


@pytest.mark.parametrize("text", ["²", "9" * 6000, "0", "7", "１"])
def test_what_is_no_number_of_a_choice_is_asked_for_again(text):
    """Python takes '²' for a digit and no int, and no int of more than 4,300 digits."""
    field = Choice("a", "b", "c")
    assert _named(field, text) == text
    assert _named(field, "2") == "b"
    with pytest.raises(InputError) as error:
        field.read(text)
    assert len(str(error.value)) < 300


def test_a_file_of_progress_that_holds_something_else_is_begun_anew():
    for drill in (
        {"boxes": [1], "session": {"seed": "a", "items": 5, "results": []}},
        {"boxes": {"case leak": 5}, "session": {"seed": "a", "items": [[1]], "results": []}},
        {"boxes": {"case leak": {"step": "x", "due": 3}}, "session": [1]},
        {"session": {"seed": "a", "items": [["case", "leak"], ["case", "leak"]], "results": [5]}},
    ):
        progress.path().write_text(json.dumps({"drill": drill}))
        assert Session.kept() is None
        assert Session(3, "seed").count == 3


def test_a_drill_counts_what_was_asked_for_however_a_chain_ends(monkeypatch):
    monkeypatch.setenv("SIMLAB_LANG", "en")
    session, heads = Session(3, "7", kinds=["chain"]), []
    while (asked := session.question()) is not None:
        heads.append(session.head())
        if asked.at_least:
            with pytest.raises(InputError, match="'hint' is no number of points: enter 0, 1"):
                asked.read_one(next(iter(asked.fields)), "hint")
        session.answer(dict.fromkeys(asked.fields, "0"))
    assert heads == [f"Question {number} of 3, part 1." for number in (1, 2, 3)]
    mixed = Session(2, "7", kinds=["chain"])
    mixed.answer(dict.fromkeys(mixed.question().fields, "5"))
    assert mixed.head() == "Question 1 of 2, part 2."
    assert mixed.ended() == "Stopped after 1 of 2 questions."

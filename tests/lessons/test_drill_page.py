"""The drill of the page, as its worker asks for it, and the interview of a notebook."""

import json

import pytest

from simlab.apps.drill import Drill
from simlab.errors import InputError
from simlab.lessons import progress
from simlab.lessons.drill.page import COUNTS, QUESTIONS, Asker
from simlab.lessons.drill.posed import POINTS, Item
from simlab.lessons.drill.rounds import parts, whole
from simlab.lessons.drill.session import INTERVIEW_MIN, Session


@pytest.fixture(autouse=True)
def kept(tmp_path, monkeypatch):
    monkeypatch.setenv("SIMLAB_PROGRESS", str(tmp_path / "folder" / "progress.json"))
    monkeypatch.setenv("SIMLAB_LANG", "en")


@pytest.fixture
def asker():
    return Asker(lambda text: f"<{text}>")


def right(session):
    """The texts of a right answer to the question that `session` asks."""
    return {name: str(value) for name, value in session.question().answer.items()}


def asks(asker, do, **more):
    reply = asker.reply({"do": do, "tongue": "en", **more})
    json.dumps(reply)  # plain, for the page
    return reply


@pytest.mark.parametrize("kind", ["", "board", "chain", "artefact", "case", "exercise", "aloud"])
def test_a_drill_is_asked_to_its_end_and_comes_back_as_progress(asker, kind):
    reply = asks(asker, "begin", kind=kind, progress="{}")
    drawn = {whole(Item(*pair)) for pair in asker.session.state["items"]}
    assert 0 < len(drawn) <= COUNTS.get(kind, QUESTIONS)  # a case comes again where there are few
    while "ended" not in reply:
        posed = asker.session.question()
        assert reply["text"] == f"<{posed.text}>" and reply["head"].startswith("Question ")
        assert [field["name"] for field in reply["fields"]] == [*posed.fields]
        judged = asks(asker, "answer", texts=right(asker.session), hints=len(reply["hints"]))
        assert judged["right"] and judged["said"].startswith("<Right.")
        reply = judged if "ended" in judged else asks(asker, "ask")
    assert reply["ended"] == f"{asker.session.count} of {asker.session.count} right."
    assert json.loads(reply["progress"]) == progress.load()


def test_what_was_left_goes_on_and_what_cannot_be_read_is_told(asker):
    assert asks(asker, "go_on", progress="{}")["none"]
    first = asks(asker, "begin", kind="aloud", progress="{}")
    assert first["shown"] and first["show"] == "Show the five points"
    wrong = asks(asker, "answer", texts={"points": "9"}, hints=0)
    assert wrong["wrong"].startswith("'9' is no number of points") and asker.session.at == 0
    judged = asks(asker, "answer", texts={"points": str(POINTS)}, hints=0)
    other = Asker(str)
    left = asks(other, "go_on", progress=judged["progress"])
    assert left["head"] == "Question 2 of 10."
    assert asks(other, "stop")["ended"] == "Stopped after 1 of 10 questions."
    assert other.reply({"do": "stop", "tongue": "zh"})["ended"].endswith("停止。")
    chinese = other.reply({"do": "ask", "tongue": "zh"})
    assert chinese["text"] != left["text"] and "2" in chinese["head"]


def test_an_interview_ends_in_advice_on_the_page(asker, monkeypatch):
    asks(asker, "begin", kind="interview", progress="{}")
    clock = iter(range(0, 10**6, 60 * INTERVIEW_MIN // 4))
    asker.session._clock = lambda: next(clock)
    reply = {}
    while "ended" not in reply:
        asks(asker, "ask")
        reply = asks(asker, "answer", texts=right(asker.session), hints=0)
    assert "Do next:" in reply["advice"] and reply["ended"] and reply["missed"] == []
    assert "python -m" not in reply["advice"]


def test_of_a_whiteboard_case_the_page_keeps_the_case_in_view_and_names_what_was_missed(asker):
    first = asks(asker, "begin", kind="board", progress="{}")
    assert first["about"] == "<>" and first["about_rows"] == []
    asks(asker, "answer", texts=right(asker.session), hints=0)
    second = asks(asker, "ask")
    title = first["text"].removeprefix("<").partition("\n\n")[0]
    assert second["about"].startswith(f"<{title}") and title not in second["text"]
    assert second["about_rows"] == first["rows"]
    told = Asker(str)
    asks(told, "begin", kind="aloud", progress="{}")
    asks(told, "answer", texts={"points": "0"}, hints=0)
    item = told.session.state["results"][0]["item"]
    reply = asks(told, "stop")
    assert reply["missed"] == [item[1]]


def test_the_advice_of_a_bad_interview_names_questions_and_no_commands():
    asker = Asker(str)
    asks(asker, "begin", kind="interview", progress="{}")
    for _ in range(6):
        posed = asker.session.question()
        texts = {
            name: its.options[-1] if hasattr(its, "options") else "0"
            for name, its in posed.fields.items()
        }
        asks(asker, "answer", texts=texts, hints=0)
    advice = asks(asker, "stop")["advice"]
    assert "python" not in advice and "`" not in advice and ".." not in advice


def test_a_notebook_asks_an_interview_and_kinds_and_gives_hints():
    drill = Drill(kinds=["board"], questions=1, seed="1")
    item = drill.drill.question().item
    assert whole(item) != item and drill.drill.count == len(parts(whole(item)))
    hint = drill.children[-3]
    hints = drill.drill.question().hints
    for _ in hints:
        assert not hint.disabled
        hint.click()
    assert hint.disabled
    drill.answer(**right(drill.drill))
    assert drill.drill.state["results"][0]["hints"] == len(hints) > 0
    interview = Drill(interview=True, seed="1")
    assert interview.drill.left_min == INTERVIEW_MIN
    assert interview.drill.state["items"] == Session.interview("1").state["items"]
    with pytest.raises(InputError):
        Drill(kinds=["nothing"])

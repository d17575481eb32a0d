"""The form of the lessons: predictions are kept and compared, cells are held back, attempts are
judged, and both languages have every word."""

import ast
import json
import math
import re
from base64 import b64decode
from random import Random

import ipywidgets as widgets
import pytest
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets.widgets.widget import _instances as LIVE

from simlab.apps import lesson_cells
from simlab.errors import InputError
from simlab.lessons import book, progress, words
from simlab.lessons.answers import alike
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Choice, Number, Prediction
from simlab.views.language import CHINESE_PNG
from simlab.views.still.wording import chinese_font
from tests.support.notebook_code import stubs

SAMPLE = {
    "x01": {
        "prediction": {
            "text": "How long?",
            "fields": {"1f1b": "1F1B", "who": "who wins"},
            "options": {"a": "the first", "b": "the second"},
        },
        "exercise": {
            "text": "Add two numbers.",
            "hints": ["one", "two", "three"],
            "mistakes": {
                "product": "You multiplied.",
                "first": "You forgot b.",
                "off": "One too many.",
            },
        },
        "takeaway": "Add.",
        "headline": "Add.",
        "spoken": "I add.",
        "wrong": "Multiply.",
        "refuted": "2 + 3.",
        "points": ["1", "2", "3", "4", "5"],
        "follow_ups": [{"question": f"q{at}", "answer": f"a{at}"} for at in (1, 2, 3)],
    }
}
ASKED = Prediction("x01", {"1f1b": Number("ms"), "who": Choice("a", "b")})


def solution(a, b):
    return a + b


ADD = Exercise(
    "x01",
    level=1,
    draw=lambda draw: {"a": draw.randint(2, 99), "b": draw.randint(3, 99)},
    oracle=lambda a, b: sum((a, b)),
    solution=solution,
    mistakes={
        "product": lambda a, b: a * b,
        "first": lambda a, b: a,
        "off": lambda a, b: a + b + 1,
    },
)


@pytest.fixture
def sample(monkeypatch):
    """A lesson with one question."""
    form = {tongue: words.texts(tongue)["form"] for tongue in words.LANGUAGES}
    monkeypatch.setattr(words, "texts", lambda tongue: SAMPLE | {"form": form[tongue]})
    monkeypatch.setattr(book, "predictions", lambda: {"x01": ASKED})
    monkeypatch.setattr(book, "exercises", lambda: {"x01": ADD})
    monkeypatch.setattr(
        book,
        "figures",
        lambda: {"x01": {"sum_ms": Figure(5.0, 0.1), "clock_ms": Figure(5.0, 0.1, measured=True)}},
    )
    monkeypatch.setattr(book, "tries", dict)


def test_a_prediction_is_kept_only_when_every_field_is_filled_in_and_readable(sample):
    with pytest.raises(InputError, match="1F1B: enter your prediction first"):
        ASKED.commit({"1f1b": " ", "who": "a"})
    with pytest.raises(InputError, match="'many' is no number"):
        ASKED.commit({"1f1b": "many", "who": "a"})
    with pytest.raises(InputError, match="'c' is none of a, b"):
        ASKED.commit({"1f1b": "3", "who": "c"})
    assert ASKED.committed() is None
    ASKED.commit({"1f1b": "1,250", "who": "b"})
    assert ASKED.committed() == {"1f1b": 1250.0, "who": "b"}
    ASKED.forget()
    assert ASKED.committed() is None


def test_a_unit_stands_beside_its_field_and_stays_there(sample):
    form = lesson_cells.predict("x01")
    _, numbers, options, *_ = form.box.children
    assert [row.children[-1].value for row in (numbers, options)] == ["ms", ""]
    form.commit(**{"1f1b": "3", "who": "b"})
    assert form.box.children[1].children[-1].value == "ms"


def test_a_changed_line_does_not_change_what_the_drill_takes_for_right(sample):
    form = lesson_cells.predict("x01")
    form.commit(**{"1f1b": "3", "who": "b"})
    form.compare(measured={"1f1b": 60.0, "who": "a"})
    form.compare(measured={"1f1b": 99.0, "who": "b"})  # of another line
    assert progress.load()["predictions"]["x01"]["found"] == {"1f1b": 60.0, "who": "a"}
    ASKED.forget()
    ASKED.commit({"1f1b": "3", "who": "b"})
    form.compare(measured={"1f1b": 99.0, "who": "b"})
    assert progress.load()["predictions"]["x01"]["found"] == {"1f1b": 99.0, "who": "b"}


def test_points_to_tick_are_no_wider_than_their_box(sample):
    """Their margins of 2 px are beside their width, and a box that is too narrow has a scroll bar."""
    before = {*LIVE}
    lesson_cells.closing("x01")
    made = [LIVE[key] for key in {*LIVE} - before]
    widths = {box.layout.width for box in made if isinstance(box, widgets.Checkbox)}
    assert widths == {"calc(100% - 4px)"}


def test_a_comparison_has_a_column_for_each_source_and_how_far_off_the_last_is(sample):
    ASKED.commit({"1f1b": "90", "who": "b"})
    rows = ASKED.compared({"measured": {"1f1b": 60.0}, "simulated": {"1f1b": 45.0, "who": "a"}})
    assert rows[0] == ["", "you predicted", "simulated", "measured", "off by"]
    assert rows[1] == ["1F1B", "90 ms", "45 ms", "60 ms", "50% too high"]
    assert rows[2] == ["who wins", "the second", "the first", "–", "✗"]
    assert ASKED.text("1f1b", 18.749999999999996) == "18.8 ms", "as a table of shares rounds 18.75"
    with pytest.raises(InputError, match="guessed"):
        ASKED.compared({"guessed": {}})


@pytest.mark.parametrize(
    ("guess", "found", "english", "chinese"),
    [
        (43.92, 1, "44 times too high", "是正确值的 44 倍"),
        (1, 3.04, "3 times too low", "正确值是它的 3 倍"),
        (120, 100, "20% too high", "高估 20%"),
        (80, 100, "20% too low", "低估 20%"),
        (99, 100, "✓", "✓"),
        (0, 100, "✗", "✗"),
        (-5, 5, "✗", "✗"),
        (0, 0, "✓", "✓"),
    ],
)
def test_a_wrong_guess_is_told_in_words_how_far_it_is_off(
    sample, monkeypatch, guess, found, english, chinese
):
    ASKED.commit({"1f1b": str(guess), "who": "b"})
    for tongue, told in (("en", english), ("zh", chinese)):
        monkeypatch.setenv("SIMLAB_LANG", tongue)
        assert ASKED.compared({"simulated": {"1f1b": float(found)}})[1][-1] == told


def test_percent_is_read_where_it_is_asked_for(sample):
    share, times, plain = Number("%"), Number("x"), Number("ms")
    assert (share.read("47%"), share.read("47"), share.read("0.47%")) == (47, 47, 0.47)
    with pytest.raises(InputError, match=r"0\.47'?: did you mean 47%"):
        share.read("0.47")
    assert (share.read("0"), times.read("47%"), times.read("0.47")) == (0, 0.47, 0.47)
    with pytest.raises(InputError, match="not asked in percent"):
        plain.read("47%")


def test_a_comma_parts_thousands_and_no_decimals(sample):
    plain = Number("ms")
    assert (plain.read("1,234.5"), plain.read("10,000"), plain.read("１，２３４")) == (
        1234.5,
        1e4,
        1234,
    )
    for text in ("27,3", "0,125", "1,2345", "1,23,456", "1234,567"):
        with pytest.raises(InputError, match="is no number"):
            plain.read(text)


def test_progress_survives_an_unreadable_file_and_keeps_it(sample):
    progress.path().write_text("{ not json")
    assert progress.load()["predictions"] == {}
    assert progress.path().with_name("progress.json.unreadable").read_text() == "{ not json"
    progress.keep("exercises", "x01", {"solved": True})
    assert json.loads(progress.path().read_text())["exercises"] == {"x01": {"solved": True}}


# cells that are held back
# ---------------------------------------------------------------------------------------------


@pytest.fixture
def shell(sample):
    """A notebook's interpreter, with a list of what its cells show."""
    InteractiveShell.clear_instance()
    widgets.Widget.close_all()
    shell = InteractiveShell.instance()
    yield shell
    InteractiveShell.clear_instance()


def shown_by(shell, source):
    """What a cell shows, as a list of widgets and texts."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(source)
    assert result.success, result.error_in_exec
    return captured.stdout, [output.data for output in captured.outputs]


HELD = """from simlab.apps import after
after("x01")
x = 271828
print("the answer is", x)
x"""


def test_a_held_cell_runs_but_shows_nothing_before_the_prediction_is_committed(shell):
    stdout, outputs = shown_by(shell, HELD)
    assert shell.user_ns["x"] == 271828 and "answer" not in stdout
    assert not any("271828" in str(data) for data in outputs)
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    assert place.outputs == ()
    lesson_cells.Guess(ASKED).commit(**{"1f1b": "3", "who": "a"})
    assert "the answer is 271828" in str(place.outputs) and "'text/plain': '271828'" in str(
        place.outputs
    )
    stdout, outputs = shown_by(shell, HELD)  # run again: nothing is held back any more
    assert "the answer is 271828" in stdout


def test_a_held_display_that_is_updated_is_shown_once_as_it_was_last(shell):
    shown_by(
        shell,
        """from IPython.display import display
from simlab.apps import after
after("x01")
panel = display("before", display_id=True)
print("between")
panel.update("last")""",
    )
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    lesson_cells.Guess(ASKED).commit(**{"1f1b": "3", "who": "a"})
    assert "before" not in str(place.outputs)
    assert ["last" in str(output) for output in place.outputs] == [True, False]


def test_a_held_comparison_shows_the_prediction_that_is_committed_after_it_ran(shell):
    source = """from simlab.apps import after, predict
guess = predict("x01")
after("x01")
guess.compare(simulated={"1f1b": 45.0, "who": "a"})"""
    shown_by(shell, source)
    shell.user_ns["guess"].commit(**{"1f1b": "90", "who": "a"})
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    (shown,) = [output["data"]["text/html"] for output in place.outputs]
    assert "90 ms" in shown and "45 ms" in shown and "2 times too high" in shown


def left_by(shell, source):
    """(what the widgets of a cell leave, a function that says what they have left by now)."""
    from IPython.utils.capture import capture_output

    def texts(captured):
        shown = [output.data.get("text/html", "") for output in captured.outputs]
        return [text.partition("</style>")[2] for text in shown if "simlab-left" in text]

    with capture_output() as captured:
        assert shell.run_cell(source).success

    def later(change):
        with capture_output() as captured:
            change()
        return texts(captured)

    return texts(captured), later


def test_a_form_leaves_what_was_asked_and_what_was_committed(shell):
    (left,), later = left_by(shell, "from simlab.apps import predict\nguess = predict('x01')")
    assert "How long?" in left and "1F1B: –" in left and "Run this cell" in left
    guess = shell.user_ns["guess"]
    (left,) = later(lambda: guess.commit(**{"1f1b": "3", "who": "b"}))
    assert "1F1B: 3 ms" in left and "who wins: the second" in left
    (left,) = later(guess._again)
    assert "1F1B: –" in left


def test_points_leave_which_were_ticked_and_texts_leave_themselves(shell):
    ASKED.commit({"1f1b": "3", "who": "b"})
    source = "from simlab.apps import closing, exercise\ntask = exercise('x01')\nclosing('x01')"
    _, outputs = shown_by(shell, source)
    assert "Add two numbers." in str(outputs) and "Hint 2" in str(outputs)
    made = {*LIVE}
    (left,), later = left_by(shell, "closing('x01')")
    assert left.count("☐") == 5 and "☑" not in left
    box = next(LIVE[key] for key in {*LIVE} - made if isinstance(LIVE[key], widgets.Checkbox))
    (left,) = later(lambda: setattr(box, "value", True))
    assert left.count("☑") == 1


def test_a_held_cell_an_explorer_and_the_choice_of_language_leave_how_they_come_back(shell):
    (left,), _ = left_by(shell, HELD)
    assert "prediction x01" in left and "Run this cell" in left
    (left,), _ = left_by(shell, "from simlab.apps import MatrixSplit, tongue\nMatrixSplit(tp=2)")
    assert "MatrixSplit(tp=2)" in left and "data:image/png;base64," in left
    (left,), _ = left_by(shell, "tongue()")
    assert "Coming back?" in left and "Run All Cells" in left


def test_an_exercise_and_the_end_of_a_question_give_nothing_away_before_the_prediction(shell):
    source = "from simlab.apps import closing, exercise\ntask = exercise('x01')\nclosing('x01')"
    shown_by(shell, source)
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    assert place.outputs == ()
    lesson_cells.Guess(ASKED).commit(**{"1f1b": "3", "who": "a"})
    assert len(place.outputs) >= 3


def test_a_choice_is_as_wide_as_its_longest_option(shell):
    shown_by(shell, "from simlab.apps import predict\nguess = predict('x01')")
    number, choice = (shell.user_ns["guess"].inputs[name].layout for name in ("1f1b", "who"))
    assert choice.width == "max-content" and choice.min_width == number.width


def test_explorers_and_forms_follow_the_language(shell):
    shown_by(
        shell,
        """from simlab.apps import MatrixSplit, predict, tongue
tongue()
guess = predict("x01")
explorer, fixed = MatrixSplit(), MatrixSplit(tongue="en")""",
    )
    (toggle,) = [w for w in LIVE.values() if isinstance(w, widgets.ToggleButtons)]
    toggle.value = "zh"
    assert shell.user_ns["explorer"].tongue == "zh" and shell.user_ns["fixed"].tongue == "en"
    form = shell.user_ns["guess"].box
    assert "你的预测" in form.children[0].value


def test_tables_and_sentences_follow_the_language_held_back_or_not(shell):
    shown_by(shell, "from simlab.apps import after, say, table, tongue\ntongue()")
    _, plain = shown_by(shell, 'table(("schedule", "most held"), ("gpipe", "8 microbatches"))')
    shown_by(shell, 'after("x01")\nsay("Best here: 25.0 MiB.")')
    assert "| schedule | most held |" in str(plain)
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    (toggle,) = [w for w in LIVE.values() if isinstance(w, widgets.ToggleButtons)]
    lesson_cells.Guess(ASKED).commit(**{"1f1b": "3", "who": "a"})
    assert place.outputs[0]["data"]["text/markdown"] == "Best here: 25.0 MiB."
    toggle.value = "zh"
    assert place.outputs[0]["data"]["text/markdown"] == "这里最好的是 25.0 MiB。"
    _, again = shown_by(shell, 'table(("schedule", "most held"), ("gpipe", "8 microbatches"))')
    assert "| 调度 | 最多持有 |" in str(again) and "8 个 micro-batch" in str(again)


def test_a_picture_is_drawn_in_the_language_that_is_chosen(shell):
    draw = """import simlab as sl
from IPython.display import display
display(sl.timeline(sl.simulate(sl.generate("gpipe", 2, 2), sl.OpTimes(forward_s=1, backward_s=2))))"""
    shown_by(shell, "from simlab.apps import tongue\ntongue()")
    (toggle,) = [w for w in LIVE.values() if isinstance(w, widgets.ToggleButtons)]
    pictures = []
    for language in ("en", "zh", "en"):
        toggle.value = language
        _, outputs = shown_by(shell, draw)
        pictures += [output["image/png"] for output in outputs if "image/png" in output]
    assert len(pictures) == 3 and pictures[0] == pictures[2]
    assert (pictures[0] != pictures[1]) == (chinese_font() is not None)


def test_curves_are_figures_of_plotly_too_in_the_language_that_is_chosen(shell, monkeypatch):
    """And a copy for reading has stills alone."""
    draw = """import simlab as sl
from simlab.views.still.curves import Curves, curves
curves(Curves("the same batch on more GPUs", "GPUs", [1, 2], "step, s", {"ZeRO-1": [2.0, 1.0]}))"""
    shown_by(shell, "from simlab.apps import tongue\ntongue()")
    (toggle,) = [w for w in LIVE.values() if isinstance(w, widgets.ToggleButtons)]
    for language, title in (
        ("en", "the same batch on more GPUs"),
        ("zh", "同样的 batch，更多 GPU"),
    ):
        toggle.value = language
        _, (data,) = shown_by(shell, draw)
        figure = data["application/vnd.plotly.v1+json"]
        assert figure["layout"]["annotations"][0]["text"] == title
        assert "data:image/png;base64," in data["text/html"] and "image/png" not in data
        assert [trace["name"] for trace in figure["data"]] == ["ZeRO-1", "ZeRO-1"]
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    _, outputs = shown_by(shell, "tongue()\n" + draw)
    assert not [data for data in outputs if "application/vnd.plotly.v1+json" in data]


def test_a_copy_for_reading_has_a_second_picture_for_chinese_readers(shell, monkeypatch):
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    draw = """import simlab as sl
from IPython.display import display
from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers import explorer
from simlab.apps import tongue
tongue()
picture = sl.timeline(sl.simulate(sl.generate("gpipe", 2, 2), sl.OpTimes(forward_s=1, backward_s=2)))
display(picture)
display(ExplorerWidget(explorer("memory")))"""
    _, outputs = shown_by(shell, draw)
    pairs = [(data["image/png"], data[CHINESE_PNG]) for data in outputs if "image/png" in data]
    assert len(pairs) == 2
    for english, chinese in pairs:
        assert isinstance(chinese, str) and b64decode(chinese).startswith(b"\x89PNG")
        english = english if isinstance(english, bytes) else b64decode(english)
        assert (b64decode(chinese) != english) == (chinese_font() is not None)


def test_a_held_picture_is_kept_as_the_text_that_a_notebook_sends(shell):
    source = """import simlab as sl
from IPython.display import display
from simlab.apps import after
after("x01")
picture = sl.timeline(sl.simulate(sl.generate("gpipe", 2, 2), sl.OpTimes(forward_s=1, backward_s=2)))
display(picture)
picture"""
    shown_by(shell, source)
    (place,) = [w for w in LIVE.values() if isinstance(w, widgets.Output)]
    lesson_cells.Guess(ASKED).commit(**{"1f1b": "3", "who": "a"})
    pictures = [output["data"]["image/png"] for output in place.outputs]
    assert len(pictures) == 2
    for picture in pictures:  # bytes would be no address of an image in the page
        assert isinstance(picture, str) and b64decode(picture).startswith(b"\x89PNG")


def test_a_cell_after_a_held_one_shows_what_it_shows(shell):
    shown_by(shell, HELD)
    stdout, _ = shown_by(shell, "print('next')")
    assert stdout == "next\n"


def test_a_copy_for_reading_holds_nothing_back_and_has_both_languages(shell, monkeypatch):
    monkeypatch.setenv("SIMLAB_LESSONS", "rendered")
    stdout, _ = shown_by(shell, HELD)
    assert "the answer is 271828" in stdout
    _, outputs = shown_by(shell, "from simlab.apps import predict\nguess = predict('x01')")
    assert "How long?" in str(outputs) and "你的预测" in str(outputs)


def test_a_name_of_a_cell_that_was_left_out_says_what_to_run(shell, capsys):
    shown_by(shell, "from simlab.apps import tongue\ntongue()")
    result = shell.run_cell("steady.step_s")
    assert isinstance(result.error_in_exec, NameError)
    said = capsys.readouterr().out
    assert "name 'steady' is not defined" in said
    assert "If a cell above makes steady, run that cell, then this one" in said
    shell.run_cell("1 / 0")
    assert "If a cell above" not in capsys.readouterr().out


def test_an_error_in_a_held_cell_is_an_error_and_ends_the_holding(shell):
    result = shell.run_cell('from simlab.apps import after\nafter("x01")\n1 / 0')
    assert isinstance(result.error_in_exec, ZeroDivisionError)
    stdout, _ = shown_by(shell, "print('next')")
    assert stdout == "next\n"


# exercises
# ---------------------------------------------------------------------------------------------


def test_the_judge_tells_the_known_mistakes_from_each_other_and_from_a_right_answer(sample):
    assert ADD.judge(solution).solved
    assert ADD.judge(lambda a, b: a * b).text == "You multiplied."
    assert ADD.judge(lambda a, b: a).text == "You forgot b."
    assert "returns nothing" in ADD.judge(lambda a, b: None).text
    assert "ZeroDivisionError" in ADD.judge(lambda a, b: a / 0).text
    other = ADD.judge(lambda a, b: 2 * (a + b))
    assert not other.solved and "In every set it is 2 times the right answer" in other.text


def test_answers_are_alike_part_by_part():
    assert alike({"a": (1.0, "x")}, {"a": [1.005, "x"]})
    assert not alike({"a": (1.0, "x")}, {"a": [1.02, "x"]})
    assert not alike([1, 2], [1]) and not alike(True, 1.0) and not alike("1", 1)


def test_a_figure_out_of_its_tolerance_fails_the_cell(sample):
    lesson_cells.figures("x01", sum_ms=5.4)
    with pytest.raises(AssertionError, match="sum_ms is 6, not 5"):
        lesson_cells.figures("x01", sum_ms=6.0)
    with pytest.raises(InputError, match="no figure 'other'"):
        lesson_cells.figures("x01", other=1.0)


def test_a_figure_that_a_clock_measures_is_told_and_fails_nothing(sample, monkeypatch):
    told = []
    monkeypatch.setattr(lesson_cells, "say", told.append)
    lesson_cells.figures("x01", clock_ms=5.4)
    assert told == []
    lesson_cells.figures("x01", clock_ms=9.0)
    assert "something else ran" in told[0] and len(told) == 1


# going back to an earlier cell
# ---------------------------------------------------------------------------------------------


def test_a_function_of_another_exercise_is_not_judged(sample):
    verdict = ADD.judge(lambda p, m, rank: 1 / p)
    assert verdict.key == "form.arguments" and not verdict.solved
    assert "x01" in verdict.text and "(a, b)" in verdict.text
    assert ADD.judge(lambda a, b, c=0: a + b + c).solved, "arguments of one's own may be added"


def test_figures_of_another_prediction_are_not_compared_and_not_kept(sample):
    ASKED.commit({"1f1b": "90", "who": "b"})
    with pytest.raises(InputError, match="prediction x01, which has no field gpipe"):
        lesson_cells.Guess(ASKED).compare(simulated={"gpipe": 45.0})
    assert "found" not in progress.load()["predictions"]["x01"]


# all lessons
# ---------------------------------------------------------------------------------------------


def test_both_languages_have_the_same_keys():
    assert sorted(words.keys("en")) == sorted(words.keys("zh"))


@pytest.mark.parametrize("key", words.keys("en"))
def test_every_text_is_in_its_language(key):
    english, chinese = words.word(key, tongue="en"), words.word(key, tongue="zh")
    assert english.strip() and chinese.strip()
    assert not re.search(r"[\u4e00-\u9fff]", english)
    names = re.findall(r"\{(\w*)\}", english)
    if key.startswith("form.") or key.endswith(".drill"):
        assert sorted(names) == sorted(re.findall(r"\{(\w*)\}", chinese))
    code = english.startswith("`") and english.endswith("`")
    if len(english.split()) > 6 and ".options." not in key and not code:
        assert re.search(r"[\u4e00-\u9fff]", chinese), "not translated"


@pytest.mark.parametrize("asked", book.predictions().values(), ids=lambda asked: asked.id)
def test_every_prediction_has_the_words_of_its_fields(asked):
    for tongue in words.LANGUAGES:
        assert words.word(f"{asked.key}.text", tongue=tongue)
        for name, field in asked.fields.items():
            assert words.word(f"{asked.key}.fields.{name}", tongue=tongue)
            for option in getattr(field, "options", ()):
                assert words.word(f"{asked.key}.options.{option}", tongue=tongue)


@pytest.mark.parametrize("asked", book.exercises().values(), ids=lambda asked: asked.id)
def test_every_exercise_takes_its_solution_and_tells_three_plausible_mistakes(asked):
    assert asked.judge(asked.solution).solved
    assert len(asked.mistakes) >= 3 and 1 <= asked.level <= 3
    for name, mistake in asked.mistakes.items():
        assert asked.judge(mistake).key == f"{asked.id}.exercise.mistakes.{name}"
    for tongue in words.LANGUAGES:
        assert len(words.entry(f"{asked.id}.exercise.hints", tongue=tongue)) == 3
        told = words.entry(f"{asked.id}.exercise.mistakes", tongue=tongue)
        assert {*told} == {*asked.mistakes}
    if asked.asked_in_drill():
        case = asked.draw(Random(1))
        assert float(asked.oracle(**case)) == asked.oracle(**case)


def answer_of(code, case):
    """What `code` computes with the parameters `case`; None where it computes nothing by itself."""
    try:
        *before, last = ast.parse(code.strip()).body
        names = vars(math) | case
        exec(compile(ast.Module(before, []), "hint", "exec"), names)
        value = eval(compile(ast.Expression(last.value), "hint", "eval"), names)
    except Exception:
        return None
    return value


@pytest.mark.parametrize("asked", book.exercises().values(), ids=lambda asked: asked.id)
@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_the_last_hint_leaves_a_step_to_the_learner(asked, tongue):
    returned = {
        ast.dump(node.value)
        for node in ast.walk(ast.parse(asked.solution_text()))
        if isinstance(node, ast.Return) and not isinstance(node.value, ast.Name | ast.Constant)
    }
    hint, cases = asked.hints(tongue)[2], asked.cases()[:3]
    pieces = re.findall(r"`([^`]+)`", hint)
    for code in [*pieces, "; ".join(pieces)]:
        given = [answer_of(code, case) for case in cases]
        assert None in given or not all(
            asked.same(answer, asked.oracle(**case)) for answer, case in zip(given, cases)
        ), f"{code} is the solution"
    for code in pieces:
        try:
            inside = {ast.dump(node) for node in ast.walk(ast.parse(code.strip()))}
        except SyntaxError:
            continue
        assert not returned & inside, f"{code} is what the solution returns"


STUBS = stubs()


@pytest.mark.parametrize("identifier", sorted(STUBS.keys() & book.exercises().keys()))
def test_the_stub_of_an_exercise_is_no_try_as_it_stands_in_the_lesson(identifier):
    """Those that processes judge are in the tests of realrun's lessons."""
    verdicts = []

    class Task:
        def check(self, attempt):
            verdicts.append(book.exercise(identifier).judge(attempt))

    exec(STUBS[identifier], {"task": Task()})
    assert [verdict.key for verdict in verdicts] == ["form.not_written"]


BESIDE = re.compile(
    r"\b(above|below|tables?|cells?|pictures?|marked|of these|of the two)\b|^And\b"
    r"|上面|下面|表里|单元格|图里|^(换成|用)[^，]*呢|其中哪",
    re.IGNORECASE,
)
"""What points at something beside a question that only a lesson shows, or at the words before it."""


@pytest.mark.parametrize("tongue", words.LANGUAGES)
def test_a_follow_up_question_stands_by_itself(tongue):
    asked = {
        f"{name}.{at}": its["question"]
        for name in book.questions()
        for at, its in enumerate(words.entry(f"{name}.follow_ups", tongue=tongue), 1)
    }
    assert len(asked) >= 3 * 57
    assert {at: text for at, text in asked.items() if BESIDE.search(text)} == {}


@pytest.mark.parametrize("key", book.tries())
def test_the_code_of_a_follow_up_shows_what_its_answer_claims(key):
    assert words.has(f"{key}.answer")
    assert "assert" in book.tries()[key]
    exec(book.tries()[key], {})


def test_what_to_try_in_the_notebook_is_told_after_a_follow_ups_answer(monkeypatch):
    monkeypatch.setenv("SIMLAB_LANG", "en")
    asked = lesson_cells._follow_ups_html("d10")
    assert asked.index("In truth less compute is left") < asked.index("In the picture the")

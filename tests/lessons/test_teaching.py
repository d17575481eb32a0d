"""A class: the teacher's page is gone from its beginning to its end, with three learners, one of them
hostile."""

import csv
import json
import os
import re
import shlex
import shutil
import zipfile
from pathlib import Path

import pytest

from simlab.apps import for_class, lesson_cells
from simlab.cli.commands.learning import handout
from simlab.cli.commands.learning.handout import BROWSERS
from simlab.cli.main import main
from simlab.lessons import book, course, progress, words
from simlab.lessons.phrases import phrase
from simlab.lessons.teaching.pack import _without_solutions

PAGE = Path(__file__).parents[2] / "docs" / "teaching.md"
COMMANDS = re.findall(r"^simlab (.+)$", PAGE.read_text(encoding="utf-8"), re.M)
RIGHT = {"b07": "return (p - 1 + m) + (p - 1 - rank)", "my-idle": "return (p - 1) / (m + p - 1)"}
HOSTILE = """from simlab.apps import exercise
task = exercise("b07")
def f(p, m, rank):
    import os
    {}
task.check(f)
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """A command line in a folder of its own → (exit status, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)
    for name in ("SIMLAB_LANG", "SIMLAB_SOLUTIONS", "SIMLAB_PROGRESS"):
        monkeypatch.setenv(name, "")  # what a command and a class set is taken back

    def run(line):
        os.environ["SIMLAB_LANG"] = ""
        return main(shlex.split(line)), *capsys.readouterr()

    return run


def works(notebook, answers):
    """Write a learner's answers into the stubs of a notebook."""
    content = json.loads(notebook.read_text(encoding="utf-8"))
    for cell in content["cells"]:
        for tag in cell["metadata"].get("tags", ()):
            source = "".join(cell["source"])
            if tag[2:] in answers:
                cell["source"] = re.sub(r"return None.*", answers[tag[2:]], source)
    notebook.write_text(json.dumps(content), encoding="utf-8")


def hands_in(who, archive, answers, monkeypatch):
    """A learner unpacks the zip, solves what they can, and hands the folder in."""
    with zipfile.ZipFile(archive) as file:
        file.extractall(f"handed-in/{who}")
    folder = Path(f"handed-in/{who}/{archive.stem}")
    for notebook in folder.glob("*.ipynb"):
        works(notebook, answers)
    with monkeypatch.context() as inside:
        inside.chdir(folder)
        inside.setenv("SIMLAB_SOLUTIONS", "")
        shown = []
        for solutions in (True, False):
            for_class("zh", solutions=solutions)
            shown.append("climb" in lesson_cells._exercise_html(book.exercise("b07")))
        assert shown == [True, False], "the docstring of the solution"
        book.prediction("b07").commit({"slot": "4"})
        book.prediction("b07").show_found({"simulated": {"slot": 4.0}})
        for question in answers:
            if question in book.exercises():
                names = {}
                exec(f"def f(p, m, rank):\n    {answers[question]}", names)
                lesson_cells.Task(book.exercise(question)).check(names["f"])
    os.environ["SIMLAB_PROGRESS"] = ""
    return folder


def test_the_teachers_page_from_its_beginning_to_its_end(run, monkeypatch, capsys):
    listed, hand_out, share, paper, collect, rolled, *others = COMMANDS
    grade, give_back, template, own, own_paper, own_grade = others
    assert run(listed)[0] == run(hand_out)[0] == run(share)[0] == run(paper)[0] == 0
    assert sorted(path.name for path in Path("shared").iterdir()) == ["01_pipeline_bubbles.ipynb"]
    packed = json.loads(Path("shared/01_pipeline_bubbles.ipynb").read_text(encoding="utf-8"))
    install, first, *_ = (cell for cell in packed["cells"] if cell["cell_type"] == "code")
    assert install["metadata"]["tags"] == ["install"]
    assert "".join(first["source"]).startswith("from simlab.apps import for_class")
    assert not any(cell.get("outputs") for cell in packed["cells"])
    hands_in("alice", Path("class.zip"), {"b07": RIGHT["b07"]}, monkeypatch)
    hands_in("bob", Path("class.zip"), {"b07": "return m", "w11": "return None"}, monkeypatch)
    mallory = Path("handed-in/mallory")
    mallory.mkdir()
    Path("handed-in/carol.txt").write_text("I was ill.")
    (mallory / "progress.json").write_text("[" * 100_000)
    (mallory / "lesson.py").write_text(HOSTILE.format("os.kill(os.getppid(), 9)"))
    (mallory / "link.ipynb").symlink_to("/etc/passwd")
    os.mkfifo(mallory / "pipe.py")

    status, out, _ = run(collect)
    assert status == 1 and "mallory/progress.json: it is broken" in out
    lines = [line.split() for line in out.splitlines()]
    told = {tuple(line[:5]) for line in lines if line[:1] in (["alice"], ["bob"]) and line[3:]}
    assert ["alice", "2", "2"] in lines and ["bob", "1", "2"] in lines
    assert ("alice", "b07", "exercise", "1", "yes") in told
    assert ("bob", "b07", "exercise", "1", "no") in told
    assert ("alice", "b07", "prediction", "1", "yes") in told and len(told) == 4
    with open("done.csv", encoding="utf-8", newline="") as file:
        assert [row["who"] for row in csv.DictReader(file)] == ["alice", "alice", "bob", "bob"]

    Path("class.csv").write_text("number,name\n1,dora\n2,bob\n3,alice\n", encoding="utf-8")
    status, out, _ = run(rolled)
    with open("predictions.csv", encoding="utf-8", newline="") as file:
        learners = [*csv.DictReader(file)]
    assert [row["who"] for row in learners] == ["dora", "bob", "alice", "carol", "mallory"]
    assert (learners[0]["tried"], learners[2]["b07 prediction"]) == ("0", "1")
    assert "dora: nothing was handed in" in out and "carol: is not on the roster" in out

    status, out, _ = run(grade)
    assert status == 1
    left_out = [line for line in out.splitlines() if line.startswith("left out: ")]
    assert len(left_out) == 3 and "link.ipynb: it is a link" in left_out[1]
    assert "device or a pipe" in " ".join(out.split())
    with open("marks.csv", encoding="utf-8", newline="") as file:
        marks = {(row["who"], row["question"]): row for row in csv.DictReader(file)}
    assert marks["alice", "b07"]["solved"] == "True"
    assert marks["bob", "b07"]["solved"] == "False" and marks["bob", "w11"]["solved"] == ""
    assert marks["bob", "w11"]["verdict"] == "not_written"
    assert "os.kill" in marks["mallory", "b07"]["text"]
    with open("gradebook.csv", encoding="utf-8", newline="") as file:
        rows = {row.pop("who"): row for row in csv.DictReader(file)}
    assert rows["carol"].keys() > {"d05", "d23", "b12"}, "lessons 1, 4 and 9 were handed in"
    shown = ("solved", "tried", "b07")
    assert {who: {name: row[name] for name in shown} for who, row in rows.items()} == {
        "alice": {"solved": "1", "tried": "1", "b07": "1"},
        "bob": {"solved": "0", "tried": "1", "b07": "0"},
        "mallory": {"solved": "0", "tried": "1", "b07": "0"},
        "carol": {"solved": "0", "tried": "0", "b07": ""},
    }
    assert [line.split() for line in out.splitlines()].index(["bob", "0", "1"]) > 0

    assert run(give_back)[0] == 1
    assert "通过" in Path("pages/alice.html").read_text("utf-8")
    assert sorted(path.stem for path in Path("pages").iterdir()) == [
        "alice",
        "bob",
        "carol",
        "mallory",
    ]

    assert run(f"{template.replace('mine', 'zh')} --lang zh")[0] == 0
    said = [
        "".join(its["source"]) for its in json.loads(Path("zh.ipynb").read_text("utf-8"))["cells"]
    ]
    assert said[0].startswith("# 我的一课\n\n这是一个模板") and "<details>" not in "".join(said)
    assert run(template)[0] == run(own)[0] == run(own_paper)[0] == 0
    capsys.readouterr()
    asked = Path("own.html").read_text("utf-8")
    assert asked.count("<h2>my-idle</h2>") == 2, "the prediction and the exercise"
    assert "A pipeline of 4 stages runs 8 microbatches" in asked and "\u2610&nbsp;shorter" in asked
    assert "as a part of 1" in asked and "m + p - 1" not in asked
    assert run(own_paper.replace("--without-solutions", "--lang zh --force"))[0] == 0
    answered = Path("own.html").read_text("utf-8")
    assert "m + p - 1" in answered and "<h3>练习</h3>" in answered
    folder = hands_in("alice", Path("own.zip"), {"my-idle": RIGHT["my-idle"]}, monkeypatch)
    texts = [
        [
            cell["source"]
            for cell in json.loads(path.read_text("utf-8"))["cells"]
            if "outputs" not in cell
        ]
        for path in (Path("mine.ipynb"), folder / "mine.ipynb")
    ]
    assert texts[0] == texts[1], "a teacher's own words stay, in whatever language"
    status, out, _ = run(f"{own_grade} --json")
    found = json.loads(out)
    assert status == 1 and len(found["wrong"]) == 3
    mark = next(each for each in found["marks"] if each["question"] == "my-idle")
    assert (mark["who"], mark["solved"], mark["file"]) == ("alice", True, "alice/own/mine.ipynb")


def test_what_an_own_question_comes_with_does_not_answer_it(run):
    assert run("class template mine.ipynb")[0] == 0
    for line in ("pack whole --own mine.ipynb", "pack in/ann --own mine.ipynb --without-solutions"):
        assert run(f"class {line}")[0] == 0
    whole, text = (Path(f"{its}/mine.ipynb").read_text("utf-8") for its in ("whole", "in/ann"))
    assert "def solution" in whole and "solution=solution" in whole
    assert "def solution" not in text and "solution=None" in text and "def simulated" in text
    used = "return sl.bubble(sl.simulate(sl.generate('1f1b', p, m), TIMES)).idle_over_makespan"
    answers = {"ann": used, "bob": "return simulated(p, m)", "eve": "return solution(p, m)"}
    for who, answer in answers.items():
        Path(f"in/{who}").mkdir(exist_ok=True)
        Path(f"in/{who}/a.ipynb").write_text(whole)
        works(Path(f"in/{who}/a.ipynb"), {"my-idle": answer})
    Path("in/ann/mine.ipynb").unlink()
    out = run("class grade in --lang en --questions mine.ipynb --json")[1]
    found = {its["who"]: (its["solved"], its["verdict"]) for its in json.loads(out)["marks"]}
    hidden = (False, "uses_hidden")
    assert found == {"ann": (True, "solved"), "bob": hidden, "eve": hidden}
    assert "uses simulated of" in out and "uses solution of" in out


@pytest.mark.parametrize("name", ["mine.ipynb", "mine.py"])
def test_an_own_question_that_is_wrong_is_told_before_it_is_handed_out(run, name):
    code = OWN.replace("same=", "solution=lambda p: p, same=")
    cells = {"cells": [{"cell_type": "code", "metadata": {}, "source": code}]}
    Path(name).write_text(code if name.endswith(".py") else json.dumps(cells))
    status, out, err = run(f"class pack own.zip --own {name}")
    assert (status, out) == (2, "") and "its own solution is judged wrong" in err
    assert err == run(f"class handout own.html --own {name}")[2] and not Path("own.zip").exists()


def test_a_solution_is_taken_out_of_a_copy_and_nothing_else():
    cell = "é = 1\n\n\n@abs\ndef right(p):\n    return p\n\n\ntask = sl.exercise('a', 'é?', solution={}, hints=[])\n"
    both = "sl.exercise('b', '?', oracle=right)\n"
    hand = _without_solutions([cell.format("right"), "%magic\n"])
    assert (
        hand[1] == "%magic\n" and "right" not in hand[0] and "é?', solution=None, hints" in hand[0]
    )
    assert _without_solutions([cell.format("right"), both])[0] == cell.format("None")
    assert "solution=None, hints" in _without_solutions([cell.format("lambda p: (\n    p\n)")])[0]


OWN = """import simlab as sl
task = sl.exercise("shares", "?", draw={"p": [2, 4]}, oracle=lambda p: [1 / p, p], same=lambda a, b: a == b)
"""


def test_exercises_in_a_module_are_judged_where_a_notebook_imports_them(run):
    Path("mine.py").write_text(OWN)
    for who, shape in (("ann", "[1 / p, p]"), ("bob", "(1 / p, p)")):
        Path(f"in/{who}").mkdir(parents=True)
        Path(f"in/{who}/a.py").write_text(
            f"from mine import task\ndef f(p):\n    return {shape}\ntask.check(f)\n"
        )
    Path("in/bob/b.py").write_text(
        "from simlab.apps import exercise\nexercise('b07').check(lambda p, m, rank: m)\n"
    )
    status, out, _ = run("class grade in --questions mine.py --json")
    marks = {(mark["who"], mark["question"]): mark["solved"] for mark in json.loads(out)["marks"]}
    assert status == 0
    assert marks == {("ann", "shares"): True, ("bob", "shares"): False, ("bob", "b07"): False}
    status, out, _ = run("class grade in --json")  # nobody says where the tasks are defined
    assert status == 1 and "a.py: task is imported" in json.loads(out)["wrong"][0]


def test_a_handout_asks_and_answers_only_where_it_is_told_to(run):
    status, out, _ = run("class handout a.html --lessons 1,13 --lang zh --json")
    assert status == 0 and json.loads(out) == {"written": "a.html", "files": ["a.html"]}
    whole = Path("a.html").read_text("utf-8")
    status, out, _ = run("class handout b.html --lessons 1,13 --lang zh --without-solutions --json")
    assert status == 0 and json.loads(out)["files"] == ["b.html", "b-points.html"]
    asked, later = (Path(name).read_text("utf-8") for name in ("b.html", "b-points.html"))
    names = [
        q.id for lesson in course.lessons() if lesson.number in (1, 13) for q in lesson.questions
    ]
    assert len(names) == 13
    for name in names:
        assert f"<h2>{name} · " in asked and f"<h2>{name} · " in whole
        tick = words.word(f"{name}.points.2", tongue="zh")[:12]
        assert tick in later and tick not in asked, "a point says the answer"
        assert {page.count(f"<h2>{name} · ") for page in (asked, whole, later)} == {1}
        first = words.word(f"{name}.spoken", tongue="zh")[:25]
        assert first in whole and first not in asked
    assert asked.count("data:image/png") == 0 and whole.count("data:image/png") >= 8
    assert asked.count('class="room"') >= 13
    chosen = words.word("b08.prediction.options.equal", tongue="zh")
    assert f"\u2610&nbsp;{chosen}" in asked, "a choice has its options on paper, too"
    if not any(map(shutil.which, BROWSERS)):
        assert "is printed by Chromium" in run("class handout c.pdf --lessons 1")[2]
    else:
        assert run("class handout c.pdf --lessons 1")[0] == 0
        assert Path("c.pdf").read_bytes().startswith(b"%PDF")


def test_a_handout_of_all_lessons_has_each_question_once(run):
    assert run("class handout all.html --without-solutions")[0] == 0
    page = Path("all.html").read_text("utf-8")
    assert sorted(re.findall(r"<h2>(\w+) · ", page)) == sorted(book.questions())


def test_a_chinese_handout_has_its_tables_in_chinese(run):
    pages = {}
    for tongue in ("en", "zh"):
        assert run(f"class handout {tongue}.html --lessons 1 --lang {tongue}")[0] == 0
        pages[tongue] = Path(f"{tongue}.html").read_text("utf-8")
    heads = re.findall(r"<th>(.*?)</th>", pages["en"])
    assert len(heads) > 20 and len(re.findall(r"<th>", pages["zh"])) == len(heads)
    for said in ("idle share of the step", "most held by a rank"):
        assert said in heads and f"<th>{said}</th>" not in pages["zh"]
        assert f"<th>{phrase(said, tongue='zh')}</th>" in pages["zh"]


REFERS = {
    "en": ("picture above|code above", "first picture|right picture|table|bars"),
    "zh": ("上图|上面那段", "第一张图|右图|第一张表|的表|柱状图"),
}


@pytest.mark.parametrize("tongue", REFERS)
def test_what_a_handout_refers_to_is_on_it(run, tongue):
    asked, answered = REFERS[tongue]
    for more, refers, shows in (
        ("--without-solutions", asked, "<pre>|<img"),
        ("", f"{asked}|{answered}", "<pre>|<img|<table"),
    ):
        assert run(f"class handout all.html --lang {tongue} --force {more}")[0] == 0
        parts = Path("all.html").read_text("utf-8").split("<h2>")[1:]
        referring = [part for part in parts if re.search(refers, re.sub('base64,[^"]*', "", part))]
        assert {"b07", "b12"} <= {part.split(" ")[0] for part in referring}
        assert [part[:60] for part in referring if not re.search(shows, part)] == []
    (b07,) = (part for part in parts if part.startswith("b07 "))
    assert "rank 0   0F0  0F1  0F2  0B0" in b07, "the picture that the prediction is about"


def test_a_handout_of_notebooks_without_results_says_where_its_pictures_are(run, monkeypatch):
    notebook = json.loads((handout.NOTEBOOKS / "01_pipeline_bubbles.ipynb").read_text("utf-8"))
    for cell in notebook["cells"]:
        cell |= {"outputs": []} if cell["cell_type"] == "code" else {}
    Path("bare").mkdir()
    Path("bare/01_pipeline_bubbles.ipynb").write_text(json.dumps(notebook), encoding="utf-8")
    monkeypatch.setattr(handout, "NOTEBOOKS", Path("bare"))
    said = words.word("form.not_on_paper", tongue="en")
    for line, times in (("", 1), ("--without-solutions", 0)):
        assert run(f"class handout a.html --lessons 1 --lang en --force {line}")[0] == 0
        page = Path("a.html").read_text("utf-8")
        assert page.count(said) == times and "rank 0   0F0  0F1  0F2  0B0" in page


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("{ not json", "it is broken"),
        ('{"name": "package"}', "it is no progress file of the lessons"),
        ("[]", "it is no progress file of the lessons"),
        ("\x00\xff", "it is broken"),
        ('{"exercises": {"b07": {"tries": "many", "solved": true}}}', "tries = 'many'"),
        ('{"exercises": {"b07": {"tries": 1, "solved": "yes"}}}', "solved = 'yes'"),
        ('{"exercises": {"b07": {"tries": 1, "solved": true, "last_s": 1e99}}}', "is no time"),
        ('{"exercises": {"\\u001b[2J": {"tries": 1, "solved": true}}}', "the name of no question"),
        ('{"predictions": {"b07": {"values": {"slot": []}}}}', "no values of a prediction"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_line_and_the_others_are_read(run, content, said):
    Path("in").mkdir()
    Path("in/eve.json").write_text(content)
    Path("in/zoe.zip").touch()
    Path("in/ann").mkdir()
    fine = {part: {} for part in progress.PARTS}
    fine["exercises"] = {"=1+1": {"tries": 1, "solved": True}, "b07": {"tries": 2, "solved": True}}
    Path("in/=dan.json").write_text(json.dumps(fine))
    status, out, err = run("class collect in --json --csv all.csv")
    found = json.loads(out)
    assert status == 1 and err == "wrote all.csv\n"
    assert [row["question"] for row in found["rows"]] == ["b07"]
    nothing = "nothing that ends in .json is in it"
    assert [*found["wrong"][:2]] == ["zoe.zip: unpack it first", f"ann: {nothing}"]
    (of_eve,) = [line for line in found["wrong"] if line.startswith("eve.json")]
    assert said in of_eve and of_eve.isprintable() and len(of_eve) < 300
    assert "'=dan" in Path("all.csv").read_text()


def test_what_was_solved_of_an_earlier_task_of_the_same_name_is_no_mark(run):
    Path("in").mkdir()
    old, new = {"tries": 1, "solved": True}, {"tries": 2, "solved": True, "version": 2}
    kept = {"t4": old, "b15": old, "e05": new, "b07": old}
    Path("in/ann.json").write_text(json.dumps({"exercises": kept}))
    status, out, _ = run("class collect in --json")
    found = json.loads(out)
    assert status == 1 and [row["question"] for row in found["rows"]] == ["b07", "e05"]
    (said,) = found["wrong"]
    assert said.startswith("ann.json: another version of the lessons has other tasks")
    assert said.endswith(": t4, b15")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("class collect", "class collect: give the folder of what was handed in"),
        ("class collect nowhere", "cannot read 'nowhere'"),
        ("class handout x.doc", "cannot write 'x.doc': a handout ends in .html or .pdf"),
        ("class handout x.html --own no.py", "cannot read 'no.py'"),
        ("class handout x.html --own empty.py", "'empty.py' has no line such as"),
        ("class handout x.html --own bad.py", "--own 'bad.py': ZeroDivisionError"),
        ("class collect . --own a.py", "--own a.py is an option of other actions"),
        (
            "class template x --lessons 1",
            "--lessons 1 is an option of other actions, not of 'template'",
        ),
        ("class pack --lessons 1,x", "--lessons 'x': there is 0, 1, 2"),
        ("class pack --own no.ipynb", "cannot read 'no.ipynb'"),
        ("class pack --own odd.ipynb", "cannot read 'odd.ipynb': it is no notebook"),
        ("class pack ''", "cannot write '.': give the path"),
        ("class pack --own no.txt", "--own 'no.txt': give notebooks"),
        ("class pack nowhere/x.zip --lessons 1", "cannot write 'nowhere/x.zip'"),
        ("class grade . --limit-s 0", "--limit-s = 0"),
        ("class grade . --questions no.py", "cannot read 'no.py'"),
        ("class grade . --questions empty.py", "'empty.py' has no line such as"),
        ("class grade . --questions bad.py", "--questions 'bad.py': ZeroDivisionError"),
        ("class template empty.py", "cannot write 'empty.py': it is there"),
        ("class give", "unknown value 'give'"),
    ],
)
def test_a_wrong_command_is_one_line(run, capsys, line, said):
    Path("empty.py").write_text("import simlab as sl\n")
    Path("odd.ipynb").write_text('{"cells": [{"cell_type": "code", "source": "", "metadata": []}]}')
    Path("bad.py").write_text("import simlab as sl\nx = 1 / 0\ntask = sl.exercise('a', x)\n")
    try:
        status, out, err = run(f"{line} --json")
    except SystemExit as left:
        status, (out, err) = left.code, capsys.readouterr()
    assert status == 2 and said in err and err.count("\n") == 1
    assert json.loads(out)["ok"] is False

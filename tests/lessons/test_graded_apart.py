"""Learners' functions in processes of their own: what they find there, and what is said of them."""

import json
import re
import time

import pytest

import simlab as sl
from simlab.lessons import book, course
from simlab.lessons.teaching.apart import Apart, Limits
from simlab.lessons.teaching.attempts import attempts
from simlab.lessons.teaching.grade import judged

HOSTILE = """from simlab.apps import exercise
task = exercise("b07")
def f(p, m, rank):
    import os
    {}
task.check(f)
"""
COMPUTES = "import time; end = time.process_time() + 0.7\n    while time.process_time() < end: pass"


@pytest.fixture(scope="module")
def apart():
    """The interpreter that calls learners' functions."""
    with Apart() as interpreter:
        yield interpreter


@pytest.mark.parametrize(
    ("body", "verdict", "said"),
    [
        ("return (p - 1 + m) + (p - 1 - rank)", "form.solved", "Solved"),
        ("return None", "form.not_written", "Not written"),
        ("while True: pass", "form.no_end", "for 1 s "),
        ("__import__('time').sleep(99)", "form.no_end", "not ended 10 s after"),
        ("__import__('time').sleep(0.3); return 2 * p - 1 + m - 1 - rank", "form.solved", "Solved"),
        (COMPUTES, "form.no_end", "1 s of the processor"),
        ("return len([0] * 10**11)", "form.raised", "MemoryError"),
        ("os._exit(0)", "form.ended", "exit status 0"),
        ("raise SystemExit('bye')", "form.raised", "SystemExit: bye"),
        ("os.fork()", "form.raised", "os.fork: a function that is judged may not"),
        ("open('/tmp/x', 'w')", "form.raised", "open: a function that is judged may not"),
        ("os.open('/tmp/x', os.O_CREAT)", "form.raised", "open: a function"),
        ("os.system('true')", "form.raised", "os.system: a function"),
        ("os.write(3, b'x' * 10**5) and os._exit(0)", "form.ended", "no answer"),
        ("return os.write(3, b'[[1, 2, 3, 4]]') and os._exit(0)", "form.ended", "no answer"),
        ("return float('nan')", "form.wrong", "answers nan"),
        ("return type('Yes', (int,), {'__eq__': lambda *_: True})(3)", "form.wrong", "answers 3"),
        ("return 10**99999", "form.raised", "4300 digits"),
    ],
)
def test_a_function_in_a_process_of_its_own_gets_its_verdict_whatever_it_does(
    tmp_path, apart, body, verdict, said
):
    path = tmp_path / "handed_in.py"
    path.write_text(HOSTILE.format(body))
    ((attempt,), wrong, _) = attempts(path)
    found = judged(book.exercise("b07"), attempt, Limits(1.0, 2**29), apart)
    assert (found.key, wrong) == (verdict, []) and said in found.text


def test_a_function_is_judged_with_the_definitions_that_it_needs_and_nothing_else(tmp_path, apart):
    cells = [
        "%matplotlib inline\nimport math\nraise RuntimeError('the notebook is not run')",
        "from simlab.apps import exercise\ntask = exercise('b07')\nf = BASE = no_such_name",
        "BASE = 0\nBASE += 1\nBASE = max([BASE for _ in range(2)])",
        "def helper(p):\n    return later(p) - BASE",
        "def later(p):\n    return math.floor(p)",
        "def f(p, m, rank):\n    return helper(p) + m + helper(p) - rank",
        "def broken(:",
        "task.check(f)\ntask.check(lambda p, m, rank: m)",
    ]
    notebook = {"cells": [{"cell_type": "code", "source": cell} for cell in cells]}
    path = tmp_path / "handed_in.ipynb"
    path.write_text(json.dumps(notebook))
    found, wrong, _ = attempts(path)
    verdicts = [judged(book.exercise("b07"), each, Limits(5.0, 2**29), apart) for each in found]
    assert [each.solved for each in verdicts] == [True, False]
    assert len(wrong) == 1 and wrong[0].said.startswith("code cell 7, line 1: SyntaxError")
    assert wrong[0].said.endswith("'def broken(:'") and wrong[0].question == ""


SAYS = """from simlab import Plan
from simlab.apps import exercise
SAID = {said!r}
task = exercise("{name}")
def f({arguments}):
    answer = SAID[repr(({arguments},))]
    if answer is TypeError:
        raise TypeError("the mistake")
    return answer
task.check(f)
"""


@pytest.mark.parametrize("name", sorted({*book.exercises()} - {"d23"}))  # d23 takes half a minute
def test_a_solution_and_the_first_mistake_are_told_alike_in_a_process_of_its_own(
    tmp_path, apart, name
):
    asked, path = book.exercise(name), tmp_path / "handed_in.py"
    first = next(iter(asked.mistakes.values()))
    for function in (asked.solution, first):
        if function is None or (name == "d11" and function is first):  # 8 s each
            continue
        said = {repr((*case.values(),)): function(**case) for case in asked.cases()}
        arguments = ", ".join(asked.cases()[0])
        path.write_text(SAYS.format(said=said, name=name, arguments=arguments))
        ((attempt,), *_) = attempts(path)
        there = judged(asked, attempt, Limits(60.0, 2**31), apart)
        here = asked.judge(function)
        assert (there.key, there.text) == (here.key, here.text)


BOOK = "from simlab.lessons import book\n    return book.exercise('b07').oracle(p, m, rank)"
SOURCE = (
    "import simlab\n    return open(simlab.__path__[0] + '/lessons/{}subjects/bubbles.py').read()"
)
FRAMES = """import sys, simlab.lessons.exercise as own
    frame, seen = sys._getframe(), []
    while frame:
        seen += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    return len([its for its in seen if isinstance(its, own.Exercise)])"""
CHANGED = """import builtins, os, simlab, simlab.lessons.teaching.confined as own
    own.REFUSED, own.READS, own.ANSWERS, own.WRITES = (), (), (), 0
    os.path.realpath = os.path.abspath = lambda its: simlab.__file__
    builtins.PermissionError = builtins.type = lambda *its: None
    return open(simlab.__path__[0] + '/lessons/subjects/bubbles.py').read()"""


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (BOOK, "open: a function that is judged may not"),
        ("import simlab.lessons.subjects.bubbles", "open: a function that is judged may not"),
        (SOURCE.format(""), "open: a function that is judged may not"),
        (SOURCE.format("teaching/../"), "open: a function that is judged may not"),
        (CHANGED, "gave no answer|open: a function that is judged may not"),
        (FRAMES, "answers 0,"),
        ("import gc\n    return gc.get_objects()", "gc.get_objects: a function"),
        ("return open('/proc/%d/maps' % os.getppid()).read()", "open: a function that is judged"),
        ("return os.listdir('/')", "os.listdir: a function that is judged may not"),
        ("import _posixsubprocess as its\n    return its.fork_exec()", "processes: a function"),
        ("return os.pidfd_open(os.getppid())", "processes: a function"),
        ("import readline", "import: a function that is judged may not"),
        ("import subprocess\n    return subprocess.run('ls')", "subprocess.Popen: a function"),
        ("import numpy\n    return int(numpy.int64(2 * (p - 1) + m - rank))", "Solved"),
    ],
)
def test_a_function_does_not_find_the_right_answer_in_its_process(tmp_path, apart, body, said):
    path = tmp_path / "handed_in.py"
    path.write_text(HOSTILE.format(body))
    ((attempt,), wrong, _) = attempts(path)
    found = judged(book.exercise("b07"), attempt, Limits(5.0, 2**30), apart)
    assert wrong == [] and re.search(said, found.text), found.text


def test_parameters_that_no_process_can_be_given_are_told(tmp_path, apart):
    task = sl.exercise("odd", "?", draw={"f": [abs, lambda a: a]}, oracle=lambda f: 1)
    path = tmp_path / "handed_in.py"
    path.write_text("task.check(lambda f: 1)\n")
    ((attempt,), *_) = attempts(path, {"task": "odd"})
    with pytest.raises(sl.InputError, match="parameters of 'odd' are no plain values"):
        judged(task.asked, attempt, Limits(5.0, 2**30), apart)


@pytest.mark.parametrize(
    "lines", ["x = 0\n" + "x += 1\n" * 3000, f"x = a{'.b' * 900}('c')\n", "x = 1\nx is 1\n"]
)
def test_odd_code_is_read_in_little_time_and_says_nothing(tmp_path, capsys, lines):
    path = tmp_path / "odd.py"
    path.write_text(
        f"from simlab.apps import exercise\ntask = exercise('b07')\n{lines}task.check(x)\n"
    )
    (attempt,), wrong, _ = attempts(path)
    assert wrong == [] and len(attempt.needs) >= 1 and capsys.readouterr().err == ""


def test_deep_and_long_code_of_a_function_is_read_in_little_time(tmp_path):
    deep = f"def x():\n    return x{'.b' * 900}\n"
    path, begun_s = tmp_path / "odd.py", time.monotonic()
    path.write_text(
        f"from simlab.apps import exercise\ntask = exercise('b07')\n{deep}task.check(x)\n"
    )
    ((attempt,), *_) = attempts(path)
    assert not course.untouched("b07", attempt.text)
    for long in ("a" * 10**6, "x=" * 10**6, "x=f(" * 10**6, "x = " + "a." * 10**6):
        path.write_text(f"def broken(:\n{long}\n")
        assert [each.question for each in attempts(path)[1]] == [""]
    assert time.monotonic() - begun_s < 30

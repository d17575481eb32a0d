"""It judges the functions that learners have handed in."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple, TypedDict

from simlab.errors import InputError
from simlab.lessons import book, course
from simlab.lessons.exercise import Exercise, Outcome, Verdict, not_written
from simlab.lessons.teaching.apart import Apart, Ended, Limits
from simlab.lessons.teaching.attempts import Attempt, attempts
from simlab.lessons.teaching.confined import OTHER, WALL
from simlab.lessons.teaching.handed_in import Handed, handed_in, one_line, why, without
from simlab.lessons.words import word

ENDINGS = (".ipynb", ".py")
UNUSABLE = ("arguments", "not_checked")
"""Verdicts on what is left out."""


class Mark(TypedDict):
    """What a learner's function is worth.

    question: "" of a cell that is no Python and names no exercise.
    solved:  None where nothing was tried: nothing is written, or it cannot be judged here.
    verdict: the name of what is said, such as "solved", "wrong", "not_written", "syntax_error" or "mistake".
    text:    what is said, in the language of the class.
    file:    where the function stands.
    """

    who: str
    question: str
    solved: bool | None
    verdict: str
    text: str
    file: str


class Judge(NamedTuple):
    """What learners' functions are judged with.

    known: {question's id: exercise}. tasks: {name of a task of one's own: its question's id}. stubs: {id of a
    question of one's own: the `tree` of the function that its notebook comes with}.
    """

    known: Mapping[str, Exercise]
    tasks: Mapping[str, str]
    stubs: Mapping[str, str]
    limits: Limits
    apart: Apart

    def knows(self, question: str) -> bool:
        """Whether there is an exercise of this id."""
        return question in self.known or question in book.JUDGED_BY_PROCESSES

    def verdict(self, attempt: Attempt) -> Verdict | None:
        """The verdict on a function; None where no exercise is known for it."""
        asked = self.known.get(attempt.question)
        if not self.knows(attempt.question):
            return None
        text = attempt.text
        own = bool(text) and course.tree(text) == self.stubs.get(attempt.question)
        if own or course.untouched(attempt.question, text):
            return not_written(asked, "form.untouched")
        if attempt.hidden:
            text = word("form.uses_hidden", names=", ".join(attempt.hidden))
            return Verdict(False, "form.uses_hidden", text)
        return (
            judged(asked, attempt, self.limits, self.apart)
            if asked
            else self.apart.on_ranks(attempt)
        )


def grade(
    folder: str | Path,
    questions: Mapping[str, Exercise],
    limits: Limits,
    each: Callable[[list[Handed]], Iterable[Handed]] = iter,
    stubs: Sequence[Attempt] = (),
) -> tuple[list[Mark], dict[str, str]]:
    """(a mark for each learner and question, {a line: its learner} of each file that cannot be used or in part).

    questions: {name of a task: exercise} of one's own, beside the lessons'.
    each:      goes through the files, and may show how far it is.
    stubs:     the functions with which one's own notebook comes.

    Of several functions of a learner for a question, the best counts.
    """
    marks: dict[tuple[str, str], Mark] = {}
    files = handed_in(folder, ENDINGS)
    wrong = without(folder, ENDINGS, files)
    known = book.exercises() | {its.id: its for its in questions.values()}
    tasks = {name: its.id for name, its in questions.items()}
    trees = {its.question: course.tree(its.text) for its in stubs}
    with Apart() as apart:
        judge = Judge(known, tasks, trees, limits, apart)
        for file in each(files):
            for question, verdict in _verdicts(file, judge, wrong):
                mark = _mark(file, question, verdict)
                key = mark["who"], mark["question"] or mark["text"]
                marks[key] = max(marks.get(key, mark), mark, key=_worth)
    for mark in marks.values():
        if mark["verdict"] in UNUSABLE:
            wrong[f"{mark['file']}: {mark['question']}: {mark['text']}"] = mark["who"]
    return [marks[key] for key in sorted(marks)], wrong


def _verdicts(file: Handed, judge: Judge, wrong: dict[str, str]) -> Iterator[tuple[str, Verdict]]:
    """(question, verdict) of each function of a file; what cannot be used is a line of `wrong`."""
    try:
        found, broken, asked = attempts(file.path, judge.tasks)
    except InputError as error:
        wrong[f"{file.name}: {why(error)}"] = file.who
        return
    wrong |= {
        f"{file.name}: {one_line(each.said)}": file.who for each in broken if not each.question
    }
    for each in broken:
        if each.question is not None:
            yield each.question, Verdict(False, "form.syntax_error", each.said)
    given = {its.question for its in found} | {its.question for its in broken}
    for question in asked:
        if question not in given and judge.knows(question):
            yield question, Verdict(False, "form.not_checked", word("form.not_checked"))
    if not found and not broken and not asked and file.path.suffix == ".py":
        wrong[f"{file.name}: it gives no function to task.check(…)"] = file.who
    unknown: dict[str, None] = {}
    for attempt in found:
        verdict = judge.verdict(attempt)
        if verdict is None:
            unknown[attempt.question] = None
        else:
            yield attempt.question, verdict
    if unknown:
        names = ", ".join(map(one_line, unknown))
        said = f"no exercise is known for {names}: --questions FILE defines it"
        wrong[f"{file.name}: {said}"] = file.who


def _worth(mark: Mark) -> int:
    return {None: 0, False: 1, True: 2}[mark["solved"]]


def _mark(file: Handed, question: str, verdict: Verdict) -> Mark:
    return Mark(
        who=file.who,
        question=question,
        solved=verdict.solved if verdict.counts and question else None,
        verdict="mistake" if ".mistakes." in verdict.key else verdict.key.removeprefix("form."),
        text=one_line(verdict.text),
        file=file.name,
    )


def judged(asked: Exercise, attempt: Attempt, limits: Limits, apart: Apart) -> Verdict:
    """The verdict on a learner's function. It runs in a process of its own, which is given the sets of
    parameters; what is right is computed here."""
    cases = asked.cases()
    asked = replace(asked, limit_s=min(asked.limit_s, limits.seconds))
    found = apart.outcomes(attempt, cases, asked.limit_s, limits)
    if isinstance(found, Ended):
        if found.over:
            waits = WALL * limits.seconds
            text = word(f"form.{found.over}", limit=f"{limits.seconds:g}", wall=f"{waits:g}")
            return Verdict(False, "form.no_end", text)
        return Verdict(False, "form.ended", word("form.ended", how=found.how))
    last = found[-1] if found else Outcome()
    if last.error == OTHER:
        text = word("form.other_arguments", id=asked.id, arguments=", ".join(cases[0]))
        return Verdict(False, "form.arguments", text)
    complete = len(found) == len(cases) or (found and (last.error or not last.ended))
    if not complete or len(found) > len(cases):
        return Verdict(False, "form.ended", word("form.ended", how="what it said is no answer"))
    try:
        return asked.verdict(cases, found)
    except Exception as error:  # an answer that its exercise cannot compare
        text = word("form.ended", how=f"{type(error).__name__}: {error}")
        return Verdict(False, "form.ended", text)

"""Questions of one's own: a prediction and an exercise, with texts in one language, that a notebook
shows, judges and counts as the lessons' own."""

import re
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from simlab.errors import InputError, shortened

if TYPE_CHECKING:  # lessons are imported by who asks: the page that simulates does without them
    from simlab.apps.lesson_cells import Guess, Task
    from simlab.lessons.exercise import Exercise
    from simlab.lessons.prediction import Choice, Number

NO_ANSWER = ("raised", "arguments", "no_end", "not_written")
"""Verdicts on a function that has no answer to what is drawn."""
IDENTIFIER = re.compile(r"[\w-]{1,40}")


def prediction(identifier: str, text: str, fields: Mapping[str, str | Sequence[str]]) -> "Guess":
    """Ask a question of one's own before it is answered, and show its form in a notebook.

    identifier: a name of one's own, of letters, digits, - and _, under which the answer is kept.
    text:       the question, in Markdown.
    fields:     {what is asked for: the unit of a number, such as "ms", "%" or "", or the options of
                which one is chosen}.

    `hold_back()` of what is returned, on the first line of a cell, keeps what the cell shows until the
    prediction is committed; `compare(simulated={what is asked for: value})` shows both side by side.
    `InputError` for an identifier of a lesson, and for what is no text, unit or option.
    """
    from simlab.lessons.prediction import Prediction

    named = _table("fields", fields)
    asked = Prediction(
        _new(identifier), {name: _field(name, its) for name, its in named.items()}, _text(text)
    )
    if not fields:
        raise InputError(
            f"the prediction {identifier!r} has no fields: ask for one number at least"
        )
    from simlab.apps.lesson_cells import Guess
    from simlab.apps.screen import in_notebook

    guess = Guess(asked)
    if in_notebook():
        guess.show()
    return guess


def exercise(
    identifier: str,
    text: str,
    *,
    draw: Mapping[str, Sequence[Any]] | Callable[[Random], dict[str, Any]],
    oracle: Callable[..., Any],
    hints: Sequence[str] = (),
    mistakes: Mapping[str, Callable[..., Any]] | None = None,
    solution: Callable[..., Any] | None = None,
    level: int = 1,
    same: Callable[[Any, Any], bool] | None = None,
) -> "Task":
    """Ask for a function, and show the exercise in a notebook; `check(function)` of what is returned
    judges it on hidden sets of parameters.

    identifier: a name of one's own, of letters, digits, - and _, under which the tries are kept.
    text:       what the function shall do, in Markdown, with the names of its arguments.
    draw:       {argument: values of which one is drawn}, or a function from a `random.Random` to
                {argument: value}.
    oracle:     from these arguments to the right answer.
    hints:      from a nudge to nearly the code; each is folded.
    mistakes:   {what is told of a plausible mistake: the function that makes it}.
    solution:   a function whose source is shown, folded; None: no solution is shown.
    level:      1 applies what was shown, 2 combines it, 3 designs something.
    same:       whether an answer is the expected one; None: it is, and numbers may be off by 1%.

    `InputError` for an identifier of a lesson, and where the oracle and a mistake never differ.
    """
    if level not in (1, 2, 3):
        raise InputError(f"level = {shortened(level)}: give 1, 2 or 3")
    from simlab.lessons.answers import alike
    from simlab.lessons.exercise import Exercise

    asked = Exercise(
        _new(identifier),
        level=level,
        draw=draw if callable(draw) else _drawing(_table("draw", draw)),
        oracle=oracle,
        solution=solution,
        mistakes=_table("mistakes", mistakes or {}),
        same=same or alike,
        own=_text(text),
        own_hints=_hints(hints),
    )
    _check(asked)
    from simlab.apps import lesson_cells
    from simlab.apps.screen import in_notebook

    return lesson_cells.exercise(asked) if in_notebook() else lesson_cells.Task(asked)


def _new(identifier: str) -> str:
    """`identifier`, if it is a name and none of the lessons'."""
    from simlab.lessons import book

    if not isinstance(identifier, str) or not IDENTIFIER.fullmatch(identifier):
        raise InputError(
            f"identifier = {shortened(identifier)}: give up to 40 letters, digits, - and _"
        )
    if identifier in {*book.questions(), *book.exercises(), *book.predictions()}:
        raise InputError(
            f"identifier = {identifier!r}: a lesson's question has this name: give another"
        )
    return identifier


def _text(text: str) -> str:
    if not isinstance(text, str) or not text.strip():
        raise InputError(f"text = {shortened(text)}: give what is asked, as text")
    return text


def _table(name: str, its: Any) -> Mapping[str, Any]:
    if not isinstance(its, Mapping):
        raise InputError(f"{name} = {shortened(its)}: give a table, {{name: what it is}}")
    return its


def _hints(hints: Sequence[str]) -> list[str]:
    if isinstance(hints, str):
        raise InputError(f"hints = {shortened(hints)}: give a list of texts")
    return [*map(_text, hints)]


def _field(name: str, its: str | Sequence[str]) -> "Number | Choice":
    from simlab.lessons.prediction import Choice, Number

    if isinstance(its, str):
        return Number(its)
    options = [*its] if isinstance(its, list | tuple) else []
    if len(options) < 2 or not all(isinstance(one, str) and one for one in options):
        raise InputError(
            f"the field {name!r} = {shortened(its)}: give the unit of a number, or two options or more"
        )
    return Choice(*options)


def _drawing(values: Mapping[str, Sequence[Any]]) -> Callable[[Random], dict[str, Any]]:
    for name, its in values.items():
        if isinstance(its, str) or not isinstance(its, Sequence) or not its:
            raise InputError(
                f"draw: {name} = {shortened(its)}: give the values of which one is drawn, as a list"
            )
    return lambda random: {name: random.choice(its) for name, its in values.items()}


def _check(asked: "Exercise") -> None:
    """`InputError` where the exercise cannot tell right from wrong: the teacher sees it, not a learner."""
    try:
        for case in asked.cases():
            asked.oracle(**case)
    except Exception as error:
        raise InputError(
            f"the exercise {asked.id!r}: its draw or its oracle ends in {type(error).__name__}: {error}"
        ) from error
    for name, mistake in asked.mistakes.items():
        verdict = asked.judge(mistake)
        if verdict.key.removeprefix("form.") in NO_ANSWER:
            raise InputError(
                f"the exercise {asked.id!r}: the mistake {name!r} answers nothing: {verdict.text}"
            )
        if verdict.solved:
            raise InputError(
                f"the exercise {asked.id!r}: the mistake {name!r} answers as the oracle on all "
                f"{asked.sets} sets of parameters: draw others"
            )
    if asked.solution and not (verdict := asked.judge(asked.solution)).solved:
        raise InputError(
            f"the exercise {asked.id!r}: its own solution is judged wrong: {verdict.text}"
        )

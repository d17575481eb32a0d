"""An exercise: a function that the learner writes, judged on sets of parameters that they do not
see.

The judge knows the right answer from an oracle, which the simulator computes, and it knows several
plausible wrong answers as functions of their own: an attempt that answers like one of them is told
what is wrong with it.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from simlab.lessons.answers import alike, clue
from simlab.lessons.attempt import NoEndError, answer_within, own_line
from simlab.lessons.mistakes import mistakes_of
from simlab.lessons.words import has, word


@dataclass(frozen=True)
class Verdict:
    """What is said about an attempt: `text` in the learner's language, and its key."""

    solved: bool
    key: str
    text: str


class Asked(Protocol):
    """What a lesson shows of an exercise, and asks of it. `Exercise` is one; another package may
    define others, such as those that processes judge."""

    @property
    def id(self) -> str:
        """The question's."""

    @property
    def level(self) -> int:
        """1 to 3."""

    def text(self) -> str:
        """What is asked."""

    def solution_text(self) -> str:
        """The source of the solution."""

    def judge(self, attempt: Callable[..., Any]) -> Verdict:
        """The verdict on a learner's function."""


@dataclass(frozen=True)
class Exercise:
    """A function to write, for the question `id`.

    level:    1 applies what the lesson showed, 2 combines it, 3 designs something.
    draw:     random numbers → one set of parameters, the arguments of the function by name.
    oracle:   those parameters → the right answer, computed by the simulator or independently of
              the solution.
    solution: what a learner could write; its source is shown.
    mistakes: {name: a plausible wrong answer}, a whole number before it is rounded; the words say
              what is wrong with each.
    fault:    an answer and its parameters by name → the name of the mistake that this answer shows by
              itself, "" where it shows none. It is told where every wrong answer shows one.
    same:     whether an answer is the expected one.
    sets:     how many sets of parameters an attempt is tried on.
    limit_s:  how long it may compute on each.
    unit, scale: for the drill, the unit that an answer is asked in, and how many of it the oracle's
              unit has, such as "ms" and 1000.
    """

    id: str
    level: int
    draw: Callable[[Random], dict[str, Any]]
    oracle: Callable[..., Any]
    solution: Callable[..., Any]
    mistakes: Mapping[str, Callable[..., Any]] = field(repr=False)
    same: Callable[[Any, Any], bool] = alike
    fault: Callable[..., str] | None = None
    sets: int = 6
    limit_s: float = 10.0
    unit: str = ""
    scale: float = 1.0

    def cases(self) -> list[dict[str, Any]]:
        """The hidden sets of parameters, the same ones at every check."""
        random = Random(f"exercise {self.id}")
        return [self.draw(random) for _ in range(self.sets)]

    def judge(self, attempt: Callable[..., Any]) -> Verdict:
        """The verdict on a learner's function: it belongs to another exercise, raised, did not end, is
        empty, is right, makes a known mistake, or is wrong in a way that is shown on one set of
        parameters."""
        cases = self.cases()
        if other := another_function(attempt, self.id, list(cases[0])):
            return other
        answers = []
        for case in cases:
            try:
                answers.append(answer_within(self.limit_s, attempt, case))
            except NoEndError as error:
                at, limit = own_line(attempt, error), f"{self.limit_s:g}"
                text = word("form.no_end", case=shown(case), line=at, limit=limit)
                return Verdict(False, "form.no_end", text)
            except Exception as error:
                return self._raised(attempt, case, error)
        if all(answer is None or answer is ... for answer in answers):
            return Verdict(False, "form.not_written", word("form.not_written"))
        expected = [self.oracle(**case) for case in cases]
        right = [self.same(answer, what) for answer, what in zip(answers, expected)]
        if all(right):
            return Verdict(True, "form.solved", word("form.solved", sets=len(cases)))
        if known := self._known(cases, answers, expected, right):
            return known
        return self._wrong(cases, answers, expected, right)

    def _known(
        self,
        cases: list[dict[str, Any]],
        answers: list[Any],
        expected: list[Any],
        right: list[bool],
    ) -> Verdict | None:
        """The known mistake that explains all wrong answers, in tables that of each key; or those
        that the wrong answers show by themselves, if each of them shows one."""
        found = mistakes_of(cases, answers, expected, self.mistakes, self.same)
        names = [*found.values()]
        if not found and self.fault:
            wrong = (at for at, fine in enumerate(right) if not fine)
            names = [self.fault(answers[at], **cases[at]) for at in wrong]
        if not names or not all(names):
            return None
        keys = [f"{self.id}.exercise.mistakes.{name}" for name in dict.fromkeys(names)]
        told = " ".join(map(word, keys))
        if {*found} - {""}:
            told += clue(cases, answers, expected, right)  # which keys are right
        return Verdict(False, keys[0], told)

    def _raised(
        self, attempt: Callable[..., Any], case: dict[str, Any], error: Exception
    ) -> Verdict:
        text = word(
            "form.raised",
            error=f"{type(error).__name__}: {error}",
            line=own_line(attempt, error),
            case=shown(case),
        )
        return Verdict(False, "form.raised", text)

    def _wrong(
        self,
        cases: list[dict[str, Any]],
        answers: list[Any],
        expected: list[Any],
        right: list[bool],
    ) -> Verdict:
        at = right.index(False)
        text = word(
            "form.wrong",
            sets=len(right),
            case=shown(cases[at]),
            answer=_cut(_plain(answers[at])),
            right=sum(right),
        )
        return Verdict(False, "form.wrong", text + clue(cases, answers, expected, right))

    def text(self) -> str:
        """What is asked."""
        return word(f"{self.id}.exercise.text")

    def hints(self) -> list[str]:
        """Three hints, from a nudge to nearly the code."""
        return [word(f"{self.id}.exercise.hints.{at}") for at in (1, 2, 3)]

    def solution_text(self) -> str:
        """The source of the solution."""
        text = textwrap.dedent(inspect.getsource(self.solution)).strip()
        return re.sub(r"  # type: ignore\S*", "", text)

    def asked_in_drill(self) -> bool:
        """Whether the drill can ask it: the answer is one number, and there are words for it."""
        return has(f"{self.id}.exercise.drill")


def another_function(
    attempt: Callable[..., Any], identifier: str, arguments: list[str]
) -> Verdict | None:
    """What is said of a function that cannot take the `arguments` of the exercise `identifier`: a
    learner who goes back to an earlier exercise has the task of a later one. None if it can."""
    try:
        inspect.signature(attempt).bind(**dict.fromkeys(arguments))
    except TypeError:
        text = word("form.arguments", id=identifier, arguments=", ".join(arguments))
        return Verdict(False, "form.arguments", text)
    return None


def shown(case: Mapping[str, Any]) -> str:
    """A set of parameters as a person reads it."""
    return _cut(", ".join(f"{name} = {_plain(value)}" for name, value in case.items()))


def _plain(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else repr(value)


def _cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]} …"

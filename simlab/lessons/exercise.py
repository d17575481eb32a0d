"""An exercise: a function that the learner writes, judged on sets of parameters that they do not
see.

The judge knows the right answer from an oracle, which the simulator computes, and it knows several
plausible wrong answers as functions of their own: an attempt that answers like one of them is told
what is wrong with it.
"""

import inspect
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple, Protocol

from simlab.lessons.answers import alike, clue
from simlab.lessons.attempt import NoEndError, answer_within, own_line
from simlab.lessons.mistakes import mistakes_of
from simlab.lessons.words import has, word

NO_TRY = (
    "form.not_written", "form.arguments", "form.not_checked", "form.needs_torch", "form.needs_processes",
)  # fmt: skip
"""The keys of verdicts on what is no attempt: nothing is written yet or given to be judged, it is
another exercise's function, or nothing can be executed here."""


@dataclass(frozen=True)
class Verdict:
    """What is said about an attempt: `text` in the learner's language, and its key."""

    solved: bool
    key: str
    text: str

    @property
    def counts(self) -> bool:
        """Whether it is about an attempt, which counts as a try."""
        return self.key not in NO_TRY


class Outcome(NamedTuple):
    """What a function did with one set of parameters: it answered, or raised `error`, or computed
    without an end, in the line `line` of its cell."""

    answer: Any = None
    error: str = ""
    line: int = 0
    ended: bool = True


class Asked(Protocol):
    """What a lesson shows of an exercise, and asks of it. `Exercise` is one; another package may
    define others, such as those that processes judge."""

    @property
    def id(self) -> str:
        """The question's."""

    @property
    def level(self) -> int:
        """1 to 3."""

    def text(self, tongue: str | None = None) -> str:
        """What is asked, in `tongue` as `word` takes it."""

    def hints(self, tongue: str | None = None) -> list[str]:
        """Hints, from a nudge to nearly the code."""

    def solution_text(self) -> str:
        """The source of the solution; "" where there is none to show."""

    def judge(self, attempt: Callable[..., Any]) -> Verdict:
        """The verdict on a learner's function."""


@dataclass(frozen=True)
class Exercise:
    """A function to write, for the question `id`.

    level:    1 applies what the lesson showed, 2 combines it, 3 designs something.
    draw:     random numbers → one set of parameters, the arguments of the function by name.
    oracle:   those parameters → the right answer, computed by the simulator or independently of
              the solution.
    solution: what a learner could write; its source is shown. None: there is none to show.
    mistakes: {name: a plausible wrong answer}, a whole number before it is rounded; the words say
              what is wrong with each.
    version:  of the task: one that is replaced by another task under its id gets the next, and what learners
              did of the earlier one no longer counts.
    own, own_hints: the text and the hints of an exercise of one's own, in one language: then the name
              of a mistake is what is told of it. None: the words of `id`.
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
    solution: Callable[..., Any] | None
    mistakes: Mapping[str, Callable[..., Any]] = field(repr=False)
    same: Callable[[Any, Any], bool] = alike
    fault: Callable[..., str] | None = None
    sets: int = 6
    limit_s: float = 10.0
    unit: str = ""
    scale: float = 1.0
    version: int = 1
    own: str | None = None
    own_hints: Sequence[str] = ()

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
        return self.verdict(cases, outcomes(attempt, cases, self.limit_s))

    def verdict(self, cases: Sequence[dict[str, Any]], found: Sequence[Outcome]) -> Verdict:
        """The verdict on what a function did with `cases`, up to the first that it had no answer to."""
        last = found[-1]
        if not last.ended or last.error:
            said: dict[str, Any] = {"case": shown(cases[len(found) - 1]), "line": last.line}
            if last.error == NOT_WRITTEN:
                return not_written(self)
            if last.ended:
                return Verdict(False, "form.raised", word("form.raised", error=last.error, **said))
            text = word("form.no_end", limit=f"{self.limit_s:g}", **said)
            return Verdict(False, "form.no_end", text)
        answers = [each.answer for each in found]
        if all(answer is None or answer is ... for answer in answers):
            return not_written(self)
        expected = [self.oracle(**case) for case in cases]
        right = [self._is(answer, what) for answer, what in zip(answers, expected)]
        if all(right):
            return Verdict(True, "form.solved", word("form.solved", sets=len(cases)))
        if known := self._known(cases, answers, expected, right):
            return known
        return self._wrong(cases, answers, expected, right)

    def _is(self, answer: Any, what: Any) -> bool:
        """Whether an answer is the expected one; one that cannot be compared with it is not."""
        try:
            return bool(self.same(answer, what))
        except Exception:
            return False

    def _fault(self, answer: Any, case: Mapping[str, Any]) -> str:
        try:
            return self.fault(answer, **case) if self.fault else ""
        except Exception:
            return ""

    def _known(
        self,
        cases: Sequence[dict[str, Any]],
        answers: list[Any],
        expected: list[Any],
        right: list[bool],
    ) -> Verdict | None:
        """The known mistake that explains all wrong answers, in tables that of each key; or those
        that the wrong answers show by themselves, if each of them shows one."""
        found = mistakes_of(cases, answers, expected, self.mistakes, self._is)
        names = [*found.values()]
        if not found and self.fault:
            wrong = (at for at, fine in enumerate(right) if not fine)
            names = [self._fault(answers[at], cases[at]) for at in wrong]
        if not names or not all(names):
            return None
        keys = [f"{self.id}.exercise.mistakes.{name}" for name in dict.fromkeys(names)]
        told = " ".join([*dict.fromkeys(names)] if self.own else map(word, keys))
        if {*found} - {""}:
            told += clue(cases, answers, expected, right)  # which keys are right
        return Verdict(False, keys[0], told)

    def _wrong(
        self,
        cases: Sequence[dict[str, Any]],
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

    def text(self, tongue: str | None = None) -> str:
        """What is asked, in `tongue` as `word` takes it."""
        return self.own or word(f"{self.id}.exercise.text", tongue=tongue)

    def hints(self, tongue: str | None = None) -> list[str]:
        """Hints, from a nudge to nearly the code: ours are three."""
        return [*self.own_hints] if self.own else hints_of(self.id, tongue)

    def solution_text(self) -> str:
        """The source of the solution; "" where there is none to show."""
        if self.solution is None:
            return ""
        text = textwrap.dedent(inspect.getsource(self.solution)).strip()
        return re.sub(r"  # type: ignore\S*", "", text)

    def asked_in_drill(self) -> bool:
        """Whether the drill can ask it: the answer is one number, and there are words for it."""
        return has(f"{self.id}.exercise.drill")


NOT_WRITTEN = "NotImplementedError"
"""What a stub may raise instead of returning nothing."""


def outcomes(
    attempt: Callable[..., Any], cases: Sequence[Mapping[str, Any]], limit_s: float
) -> list[Outcome]:
    """What a function does with each of `cases`, up to the first that it has no answer to."""
    found: list[Outcome] = []
    for case in cases:
        try:
            found.append(Outcome(answer_within(limit_s, attempt, case)))
        except NoEndError as error:
            return [*found, Outcome(line=own_line(attempt, error), ended=False)]
        except Exception as error:
            name = type(error).__name__
            said = name if name == NOT_WRITTEN else f"{name}: {error}".removesuffix(": ")
            return [*found, Outcome(error=said, line=own_line(attempt, error))]
    return found


def not_written(asked: Asked | None, key: str = "form.not_written") -> Verdict:
    """What is said of a stub. asked: whose hints are named; None: a lesson's. key: "form.untouched" of one that
    returns something."""
    hint = word("form.first_hint") if asked is None or asked.hints() else ""
    return Verdict(False, "form.not_written", word(key) + hint)


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


def hints_of(identifier: str, tongue: str | None = None) -> list[str]:
    """The three hints that the words of a question's exercise have."""
    return [word(f"{identifier}.exercise.hints.{at}", tongue=tongue) for at in (1, 2, 3)]


def shown(case: Mapping[str, Any]) -> str:
    """A set of parameters as a person reads it."""
    return _cut(", ".join(f"{name} = {_plain(value)}" for name, value in case.items()))


def _plain(value: Any) -> str:
    try:
        return f"{value:.6g}" if isinstance(value, float) else repr(value)
    except Exception as error:  # a whole number of thousands of digits, or one that nests for ever
        return f"{type(value).__name__} ({type(error).__name__})"


def _cut(text: str, length: int = 300) -> str:
    return text if len(text) <= length else f"{text[:length]} …"

"""It says when two answers to an exercise are the same, and what the answers of a wrong attempt have in
common, which tells a learner more than one wrong answer does."""

from collections.abc import Mapping, Sequence, Set
from math import isfinite
from numbers import Real
from typing import Any

from simlab.lessons.words import word

TOLERANCE = 0.01
"""The largest relative difference between a right number and an attempt's."""
EQUAL = 1e-6
"""The largest relative difference between factors that are the same."""
SETS = 2
"""The fewest sets of parameters from which a pattern is read."""

Cases = Sequence[Mapping[str, Any]]
Answers = Sequence[Any]


def alike(found: Any, expected: Any) -> bool:
    """Whether two answers are the same: numbers within `TOLERANCE` of the expected one, everything
    else, whole numbers too, exactly; in tables and sequences part by part."""
    if expected is None or isinstance(expected, str):
        return isinstance(found, type(expected)) and found == expected
    if isinstance(expected, int):
        kind = isinstance(found, Real) and isinstance(found, bool) == isinstance(expected, bool)
        return kind and found == expected
    if isinstance(expected, Set):
        return isinstance(found, Set) and found == expected
    if isinstance(expected, Real):
        if not number(found):
            return False
        return abs(float(found) - float(expected)) <= TOLERANCE * abs(float(expected)) + 1e-12
    if isinstance(expected, Mapping):
        same = isinstance(found, Mapping) and {*found} == {*expected}
        return same and all(alike(found[name], expected[name]) for name in expected)
    if isinstance(expected, list | tuple):
        same = isinstance(found, list | tuple) and len(found) == len(expected)
        return same and all(map(alike, found, expected))
    return bool(found == expected)


def clue(cases: Cases, answers: Answers, expected: Answers, right: Sequence[bool]) -> str:
    """What is wrong with `answers` to all `cases`, in the learner's language; "" where no pattern is
    seen.

    expected: the right answers.
    right:    which of the answers are right.
    """
    return (
        _kind(answers, expected)
        or _parts(answers, expected)
        or _where(cases, right)
        or _constant(answers, expected)
        or _first_ratio(answers, expected, right)
    )


def _kind(answers: Answers, expected: Answers) -> str:
    """Answers of another kind than what is asked."""
    for kind in (set, str):
        other = next((its for its in answers if not isinstance(its, kind)), None)
        if other is not None and all(isinstance(what, kind) for what in expected):
            return word("form.clue.kind", asked=kind.__name__, found=type(other).__name__)
    whole = all(isinstance(each, int) for each in expected)
    if whole and any(isinstance(each, float) and not each.is_integer() for each in answers):
        return word("form.clue.whole")
    return ""


def _parts(answers: Answers, expected: Answers) -> str:
    """Which parts of a table are right everywhere, and which are not."""
    if not all(isinstance(each, Mapping) for each in (*answers, *expected)):
        return ""
    names = [*expected[0]]
    if any({*each} != {*names} for each in answers):
        return word("form.clue.keys", names=", ".join(names))
    wrong = [
        name
        for name in names
        if not all(alike(found[name], what[name]) for found, what in zip(answers, expected))
    ]
    fine = [name for name in names if name not in wrong]
    said = {"wrong": ", ".join(wrong), "right": ", ".join(fine)}
    return word("form.clue.parts", **said) if fine else ""


def _where(cases: Cases, right: Sequence[bool]) -> str:
    """One value of one parameter with which every answer is wrong, and without which none is."""
    wrong = [case for case, fine in zip(cases, right) if not fine]
    fine = [case for case, good in zip(cases, right) if good]
    if min(len(wrong), len(fine)) < SETS:
        return ""
    for name, value in wrong[0].items():
        if (
            isinstance(value, str | int)
            and all(case[name] == value for case in wrong)
            and all(case[name] != value for case in fine)
        ):
            return word("form.clue.where", name=name, value=value)
    return ""


def _constant(answers: Answers, expected: Answers) -> str:
    """A factor or a difference that is the same in every set."""
    if not all(map(number, (*answers, *expected))) or len({*expected}) < SETS:
        return ""
    pairs = [(float(found), float(what)) for found, what in zip(answers, expected)]
    if all(what for _, what in pairs):
        factors = [found / what for found, what in pairs]
        if _same(factors):
            return word("form.clue.factor", ratio=f"{factors[0]:.3g}")
    differences = [found - what for found, what in pairs]
    if _same(differences):
        more = "more" if differences[0] > 0 else "less"
        return word(f"form.clue.{more}", by=f"{abs(differences[0]):.3g}")
    return ""


def _first_ratio(answers: Answers, expected: Answers, right: Sequence[bool]) -> str:
    """How far the first wrong answer is from the right one."""
    at = right.index(False)
    answer, what = answers[at], expected[at]
    if not (number(answer) and number(what) and answer and what):
        return ""
    near = f"{float(answer) / float(what):.3g}"
    return word("form.times", ratio=f"{float(answer) / float(what):.6g}" if near == "1" else near)


def _same(values: Sequence[float]) -> bool:
    spread = max(values) - min(values)
    return values[0] != 0 and spread <= EQUAL * abs(values[0])


def number(value: Any) -> bool:
    """Whether it is a number of which a float can be made."""
    if not isinstance(value, Real) or isinstance(value, bool):
        return False
    try:
        return isfinite(float(value))
    except OverflowError:
        return False

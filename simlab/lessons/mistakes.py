"""It says which known mistakes explain the wrong answers of an attempt: all of them, not one."""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from typing import Any

from simlab.lessons.answers import EQUAL, Answers, Cases, alike, number

Same = Callable[[Any, Any], bool]
Table = Mapping[str, Callable[..., Any]]


def mistakes_of(
    cases: Cases, answers: Answers, expected: Answers, mistakes: Table, same: Same
) -> dict[str, str]:
    """{key of the wrong answers: the known mistake that explains it in all `cases`}; the key is ""
    where answers are no tables, or where one mistake explains whole tables.

    A whole number is compared before it is rounded, and as it is rounded down, up, or to the
    nearest: a learner may make the mistake and round in another way than it does.
    """
    made = {name: [_answer(mistake, case) for case in cases] for name, mistake in mistakes.items()}
    for name, given in made.items():
        if all(map(same, answers, given)):
            return {"": name}
    if all(type(what) is int for what in expected):
        for name, given in made.items():
            if _before_rounding(answers, given):
                return {"": name}
    return _by_key(answers, expected, made)


def roundings(value: float) -> tuple[float, ...]:
    """A number as it is, rounded down, up, and to the nearest; a whole one that rounding errors
    have moved is whole."""
    return value, floor(value * (1 + 1e-9)), ceil(value * (1 - 1e-9)), round(value)


def _before_rounding(answers: Answers, given: Answers) -> bool:
    if not all(map(number, (*answers, *given))):
        return False
    ways = zip(*map(roundings, given))  # one way for all sets of parameters
    return any(
        all(abs(answer - what) <= EQUAL * abs(what) for answer, what in zip(answers, way))
        for way in ways
    )


def _by_key(
    answers: Answers, expected: Answers, made: Mapping[str, Sequence[Any]]
) -> dict[str, str]:
    """The mistake of each wrong key that one explains. A mistake that would have made a right key
    wrong, too, is not what the learner did."""
    if not isinstance(expected[0], Mapping):
        return {}
    if not all(isinstance(each, Mapping) and {*each} == {*expected[0]} for each in answers):
        return {}
    wrong = _wrong_keys(answers, expected)
    found: dict[str, str] = {}
    for name, given in made.items():
        if not _wrong_keys(given, expected) <= wrong:
            continue
        for key in wrong & _wrong_keys(given, expected):
            if all(alike(answer[key], what[key]) for answer, what in zip(answers, given)):
                found.setdefault(key, name)
    return {key: found[key] for key in expected[0] if key in found}


def _wrong_keys(answers: Answers, expected: Answers) -> set[str]:
    return {
        key
        for key in expected[0]
        if not all(
            isinstance(answer, Mapping) and key in answer and alike(answer[key], what[key])
            for answer, what in zip(answers, expected)
        )
    }


def _answer(function: Callable[..., Any], case: Mapping[str, Any]) -> Any:
    """What a known mistake answers; the error that it raises, where it does."""
    try:
        return function(**case)
    except Exception as error:
        return error

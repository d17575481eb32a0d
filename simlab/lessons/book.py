"""It finds what a question asks, by its id, in the lessons' modules, and says how long a learner needs."""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import Any

from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Prediction
from simlab.lessons.words import entry, has, texts

SUBJECTS = (
    "start",
    "bubbles",
    "schedules",
    "memory",
    "collectives",
    "tensor",
    "grid",
    "data_parallel",
    "layer",
    "sequences",
    "faults",
    "planning",
    "operating",
    "experts",
)
"""The lessons' modules in `simlab.lessons.subjects`, in the order of the notebooks."""
WORDS_A_MINUTE = 200
"""How fast a learner reads prose about something that is new to them."""
PREDICTION_MIN, ALOUD_MIN = 1.0, 1.0
"""What a prediction takes, and an answer that is said aloud, minutes."""
JUDGED_BY_PROCESSES = {
    "b01": 1,
    "b02": 2,
    "b05": 1,
    "b06": 3,
    "b11": 3,
    "d04": 3,
    "d12": 2,
    "d17": 2,
}
"""{question's id: level of its exercise} for the exercises that `realrun.lessons` judges."""
EXERCISE_MIN = {1: 3.0, 2: 5.0, 3: 8.0}
"""{level of an exercise: what it takes to write, minutes}."""
CHINESE_OR_TAG = re.compile(r"<details><summary>中文</summary>.*?</details>|<[^>]*>", re.DOTALL)
"""What of a Markdown cell is not read by a reader of English."""
READ_AT_THE_END = ("takeaway", "headline", "spoken", "wrong", "refuted", "points", "follow_ups")
"""What of a question's words its end shows."""


@cache
def _modules() -> tuple[ModuleType, ...]:
    return tuple(import_module(f"simlab.lessons.subjects.{name}") for name in SUBJECTS)


@cache
def predictions() -> dict[str, Prediction]:
    """{id: prediction} of all lessons."""
    return {one.id: one for module in _modules() for one in getattr(module, "PREDICTIONS", ())}


@cache
def exercises() -> dict[str, Exercise]:
    """{question's id: exercise} of all lessons that is judged without processes."""
    return {one.id: one for module in _modules() for one in getattr(module, "EXERCISES", ())}


@cache
def figures() -> dict[str, dict[str, Figure]]:
    """{question's id: {name: figure}} of all lessons."""
    tables = (getattr(module, "FIGURES", {}) for module in _modules())
    return {name: table for figures in tables for name, table in figures.items()}


@cache
def tries() -> dict[str, str]:
    """{key of a follow-up, such as "b09.follow_ups.1": code that shows its answer}."""
    tables = (getattr(module, "TRIES", {}) for module in _modules())
    return {key: code for codes in tables for key, code in codes.items()}


def questions() -> list[str]:
    """The ids of all questions that a lesson answers, in the order of the files."""
    return [key for key, table in texts("en").items() if "title" in table]


@cache
def _subjects() -> dict[str, str]:
    """{question's id: the name of the module of the last lesson that asks it}."""
    return {
        one.question: name
        for name, module in zip(SUBJECTS, _modules())
        for one in getattr(module, "PREDICTIONS", ())
    }


def subject(identifier: str) -> str:
    """The name of the module of the last lesson that asks a question, which may execute what another one
    simulates; "" where none has it."""
    return _subjects().get(identifier, "")


@cache
def _homes() -> dict[str, int]:
    return {
        one.id: number(name)
        for name, module in zip(SUBJECTS, _modules())
        for one in getattr(module, "PREDICTIONS", ())
    }


def home(identifier: str) -> int:
    """The number of the lesson that answers a question."""
    return _homes()[identifier]


def number(subject: str) -> int:
    """The number of a lesson, by its module's name."""
    return SUBJECTS.index(subject)


def prediction(identifier: str) -> Prediction:
    """The prediction `identifier`, such as "b09" or "b09.change". `InputError` if there is none."""
    if identifier not in predictions():
        raise InputError(f"no lesson asks for a prediction {identifier!r}")
    return predictions()[identifier]


def exercise(identifier: str) -> Exercise:
    """The exercise of a question. `InputError` if there is none."""
    if identifier not in exercises():
        raise InputError(f"no lesson has an exercise for {identifier!r}")
    return exercises()[identifier]


def level(identifier: str) -> int:
    """The level of a question's exercise, from 1 to 3, whoever judges it; 0 where it has none."""
    known = exercises().get(identifier)
    return known.level if known else JUDGED_BY_PROCESSES.get(identifier, 0)


def version(identifier: str) -> int:
    """The version of an exercise's task; 1 of one that is not a lesson's."""
    known = exercises().get(identifier)
    return known.version if known else 1


def minutes(cells: Sequence[Mapping[str, Any]]) -> float:
    """How long a learner needs for `cells` of a lesson (nbformat 4 JSON), minutes.

    Counted are the English words of the text and of the forms at `WORDS_A_MINUTE`, and the stated
    minutes of each prediction, exercise (by its level) and answer that is said aloud. Code that is
    read and cells that run are not counted.
    """
    read, done = 0, 0.0
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            read += _count(CHINESE_OR_TAG.sub(" ", source))
            continue
        for name in re.findall(r'predict\("([^"]+)"\)', source):
            read += _count(entry(prediction(name).key, tongue="en"))
            done += PREDICTION_MIN
        for kind, name in _tags(cell):
            if kind == "e":
                done += EXERCISE_MIN[level(name)]
                read += _count_of(f"{name}.exercise.text")
            elif kind == "f":
                read += sum(_count_of(f"{name}.{part}") for part in READ_AT_THE_END)
                done += ALOUD_MIN
    return read / WORDS_A_MINUTE + done


def _tags(cell: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """(kind, question's id) of each tag such as "e:b09"."""
    for tag in cell["metadata"].get("tags", ()):
        kind, colon, name = tag.partition(":")
        if colon:
            yield kind, name


def _count_of(key: str) -> int:
    return _count(entry(key, tongue="en")) if has(key) else 0


def _count(text: Any) -> int:
    """The English words of a text, or of all texts of a table or a list."""
    if isinstance(text, Mapping):
        return sum(map(_count, text.values()))
    if isinstance(text, list):
        return sum(map(_count, text))
    return len(re.findall(r"[A-Za-z0-9][\w'’.,/·−+-]*", text))

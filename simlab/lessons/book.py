"""It finds what a question asks, by its id, in the lessons' modules."""

from functools import cache
from importlib import import_module
from types import ModuleType

from simlab.errors import InputError
from simlab.lessons.exercise import Exercise
from simlab.lessons.figures import Figure
from simlab.lessons.prediction import Prediction
from simlab.lessons.words import texts

SUBJECTS = (
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
)
"""The lessons' modules in `simlab.lessons.subjects`, in the order of the notebooks."""


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

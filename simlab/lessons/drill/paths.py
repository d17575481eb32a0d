"""Paths through the questions: fifteen for two evenings, and what somebody needs who knows FSDP already."""

from typing import TypedDict

from simlab.errors import InputError
from simlab.lessons import book
from simlab.lessons.words import word

PATHS = {
    "two-evenings": (
        ("w01", "w02", "w04", "w05", "w09", "b03", "w03"),
        ("w10", "t5", "b09", "d01", "w12", "b15", "w14", "d09"),
    ),
    "after-fsdp": (
        ("w10", "b04", "t5", "d16"),
        ("w11", "d05", "b09", "d07"),
        ("b10", "b11", "b13", "d06", "w12", "d19", "b15"),
    ),
}
"""{name: its questions, in parts}."""
KNOWN = {
    "after-fsdp": ("b01", "b02", "w02", "w03", "w04", "w05", "w06", "t1", "t4", "w08", "w09", "w13")
}
"""{path: the questions that who takes it can answer already}."""


class Step(TypedDict):
    """A question of a path. part: which of its parts it is in, from 1."""

    part: int
    question: str
    lesson: int
    title: str
    headline: str


class Path(TypedDict):
    """A path. known: the questions that it takes for known."""

    path: str
    text: str
    steps: list[Step]
    known: list[str]


def path(name: str) -> Path:
    """The path of that name, in the learner's language. `InputError` if there is none."""
    if name not in PATHS:
        raise InputError(f"a path {name!r}: choose one of {', '.join(PATHS)}")
    steps: list[Step] = [
        {
            "part": part,
            "question": question,
            "lesson": book.home(question),
            "title": word(f"{question}.title"),
            "headline": word(f"{question}.headline"),
        }
        for part, questions in enumerate(PATHS[name], 1)
        for question in questions
    ]
    text = word(f"drill.paths.{name}")
    return {"path": name, "text": text, "steps": steps, "known": [*KNOWN.get(name, ())]}

"""The drill's questions. An item is what can be asked; posed with a seed, it has its numbers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, NamedTuple

from simlab.errors import InputError, shortened
from simlab.lessons import book, progress
from simlab.lessons.answers import alike
from simlab.lessons.drill import on_call
from simlab.lessons.mistakes import roundings
from simlab.lessons.phrases import phrase
from simlab.lessons.prediction import Choice, Number, Value
from simlab.lessons.words import entry, word

TOLERANCE = 0.05
"""The largest relative error of a number that counts as right in the drill: it is done by head."""
POINTS, POINTS_NEEDED = 5, 4
"""The points of an answer that is said aloud, and how many of them it must have had."""
ONLY_IN_THE_LESSON = (
    "d18.blind",
    *(f"{name}.executed" for name in ("b03", "w03", "t1", "w09", "w10", "b10")),
)
"""Predictions about what their lesson shows beside them, or about how fast one machine is: they cannot
be asked without it."""


class Item(NamedTuple):
    """What can be asked: an exercise with numbers ("exercise"), a question to answer aloud
    ("aloud"), an on-call case ("case"), or a prediction again ("prediction")."""

    kind: str
    name: str


@dataclass(frozen=True)
class Posed:
    """A question with its numbers.

    fields:  {name: what it takes}; labels: {name: how it is asked for}.
    answer:  {name: the right value}; a number of points is right from there on.
    rows:    a table that belongs to the question, or nothing.
    explain: what is said after the answer, as paragraphs of Markdown.
    computed: how the answer is computed, which is said after a wrong one; "" for nothing.
    wrong:   [(the value of a known mistake, the key of what is wrong with it)].
    """

    item: Item
    text: str
    fields: Mapping[str, Number | Choice]
    labels: Mapping[str, str]
    answer: Mapping[str, Value]
    options: Mapping[str, str] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)
    explain: list[str] = field(default_factory=list)
    computed: str = ""
    wrong: list[tuple[float, str]] = field(default_factory=list)
    at_least: bool = False

    def read(self, texts: Mapping[str, str]) -> dict[str, Value]:
        """What was entered, {field: text}, as values. `InputError` for one that is no value."""
        return {name: self.read_one(name, texts.get(name) or "") for name in self.fields}

    def read_one(self, name: str, text: str) -> Value:
        """What was entered in one field as a value. `InputError` for a text that is none."""
        value = self.fields[name].read(text.strip())
        if self.at_least and value not in range(POINTS + 1):
            raise InputError(word("drill.no_points", text=shortened(text)))
        return value

    def unit(self, name: str) -> str:
        """The unit of a number in the learner's language, "" for none and for a choice."""
        asked = self.fields[name]
        unit = asked.unit if isinstance(asked, Number) else ""
        return str(entry("form.units").get(unit, unit))

    def right(self, given: Mapping[str, Value]) -> bool:
        """Whether every field is right."""
        return all(self._right(given[name], self.answer[name]) for name in self.fields)

    def said(self, given: Mapping[str, Value]) -> list[str]:
        """The verdict on what was given, as paragraphs of Markdown."""
        explain = self.explain[self.at_least :]  # the points were shown before they were counted
        if self.right(given):
            return [word("drill.right"), *explain]
        found = [
            key for value, key in self.wrong if any(alike(one, value) for one in given.values())
        ]
        one = len(self.fields) == 1
        shown = ", ".join(
            self._text(name) if one else f"{self.labels[name]}: {self._text(name)}"
            for name in self.fields
        )
        about = [word(key) for key in found[:1]]
        if self.at_least:
            return [word("drill.points_missing", needed=POINTS_NEEDED), *explain]
        computed = [self.computed] if self.computed else []
        return [word("drill.not_right", answer=shown), *about, *computed, *explain]

    def _right(self, given: Value, answer: Value) -> bool:
        if isinstance(given, str) or isinstance(answer, str):
            return given == answer
        if self.at_least:
            return given >= answer
        return abs(given - answer) <= TOLERANCE * abs(answer) + 1e-9

    def _text(self, name: str) -> str:
        value = self.answer[name]
        if isinstance(value, str):
            return self.options.get(value, value)
        return f"{value:.4g} {self.unit(name)}".strip()


def items() -> list[Item]:
    """All that can be asked now; a prediction once a lesson has shown its result."""
    kept = progress.load()["predictions"]
    found = {name for name, one in kept.items() if isinstance(one, dict) and one.get("found")}
    found -= {*ONLY_IN_THE_LESSON}
    return [
        *(Item("exercise", name) for name, one in book.exercises().items() if one.asked_in_drill()),
        *(Item("aloud", name) for name in book.questions()),
        *(Item("case", cause) for cause in on_call.CAUSES),
        *(Item("prediction", name) for name in book.predictions() if name in found),
    ]


def pose(item: Item, seed: str) -> Posed:
    """The question of an item with the numbers of `seed`: the same ones for the same seed."""
    makers = {"exercise": _exercise, "aloud": _aloud, "case": _case, "prediction": _prediction}
    return makers[item.kind](item.name, seed)


def _exercise(name: str, seed: str) -> Posed:
    asked = book.exercise(name)
    values = asked.draw(Random(f"drill {name} {seed}"))
    label = word("drill.your_answer")
    right = asked.oracle(**values)
    whole = type(right) is int
    given = ", ".join(f"{one} = {_short(value)}" for one, value in values.items())
    return Posed(
        item=Item("exercise", name),
        text=word(f"{name}.exercise.drill", **values),
        fields={"answer": Number(asked.unit)},
        labels={"answer": label},
        answer={"answer": asked.scale * float(right)},
        explain=[word(f"{name}.takeaway")],
        computed=word("drill.computed", values=given, how=entry(f"{name}.exercise.hints")[-1]),
        wrong=[
            (asked.scale * float(value), f"{name}.exercise.mistakes.{key}")
            for key, mistake in asked.mistakes.items()
            if isinstance(made := mistake(**values), int | float)
            for value in (roundings(made) if whole else (made,))
        ],
    )


def _short(value: Any) -> str:
    """A drawn value as it is written in a formula."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _aloud(name: str, seed: str) -> Posed:
    points = "\n".join(f"- {point}" for point in entry(f"{name}.points"))
    return Posed(
        item=Item("aloud", name),
        text=word("drill.aloud", title=word(f"{name}.title")),
        fields={"points": Number()},
        labels={"points": word("drill.points_said")},
        answer={"points": float(POINTS_NEEDED)},
        explain=[
            f"**{word('drill.points')}**\n\n{points}",
            f"**{word(f'{name}.headline')}**",
            word(f"{name}.spoken"),
        ],
        at_least=True,
    )


def _case(cause: str, seed: str) -> Posed:
    seen = on_call.case(cause, seed)
    still = [word("drill.nothing_moves")] if cause in on_call.STACKS else []
    return Posed(
        item=Item("case", cause),
        text=" ".join([word("drill.case"), *still]),
        fields={"rank": Number(), "cause": Choice(*on_call.CAUSES)},
        labels={"rank": word("drill.rank"), "cause": word("drill.cause")},
        answer={"rank": float(seen.rank), "cause": cause},
        options={one: word(f"drill.causes.{one}") for one in on_call.CAUSES},
        rows=[[phrase(cell) for cell in row] for row in seen.rows],
        explain=[word(f"drill.explained.{cause}", rank=seen.rank)],
    )


def _prediction(name: str, seed: str) -> Posed:
    asked = book.prediction(name)
    kept: dict[str, Any] = progress.load()["predictions"][name]
    shown = {one: kept["found"][one] for one in asked.fields if one in kept["found"]}
    options = {
        option: asked.text(one, option)
        for one in shown
        for option in getattr(asked.fields[one], "options", ())
    }
    return Posed(
        item=Item("prediction", name),
        text=_in_context(name),
        fields={one: asked.fields[one] for one in shown},
        labels={one: asked.label(one) for one in shown},
        answer=shown,
        options=options,
        explain=[word(f"{asked.question}.takeaway")],
    )


def _in_context(name: str) -> str:
    """What a prediction asks; one after a changed line follows what was asked before the change."""
    asked = book.prediction(name)
    changed = name == f"{asked.question}.change"
    before = [book.prediction(asked.question)] if changed else []
    return "\n\n".join(one.asks() for one in (*before, asked))

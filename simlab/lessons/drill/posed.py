"""A question of the drill with its numbers: what it asks, what it takes, and what is right."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from simlab.errors import InputError, shortened
from simlab.lessons.answers import alike
from simlab.lessons.prediction import Choice, Number, Value
from simlab.lessons.words import entry, word

TOLERANCE = 0.05
"""The largest relative error of a number that counts as right in the drill: it is done by head."""
POINTS, POINTS_NEEDED = 5, 4
"""The points of an answer that is said aloud, and how many of them it must have had."""


class Item(NamedTuple):
    """What can be asked: an exercise with numbers ("exercise"), a question to answer aloud
    ("aloud"), an on-call case ("case"), a prediction again ("prediction"), a whiteboard case ("board"),
    a chain of questions ("chain") or something to read ("artefact"). A whiteboard case and a chain
    have parts, whose names are NAME.PART."""

    kind: str
    name: str


@dataclass(frozen=True)
class Posed:
    """A question with its numbers.

    fields:  {name: what it takes}; labels: {name: how it is asked for}.
    answer:  {name: the right value}; a number of points is right from there on.
    rows:    a table that belongs to the question, or nothing.
    about, about_rows: the case that the question belongs to and its table, which an earlier question told;
             else nothing.
    shown:   what is shown before the answer is entered, of a question that is answered aloud: the learner
             says how much of it they had. Else "".
    explain: what is said after the answer, as paragraphs of Markdown.
    computed: how the answer is computed, which is said after a wrong one; "" for nothing.
    wrong:   [(the value of a known mistake, the key of what is wrong with it)].
    hints:   what helps, from a nudge to the calculation.
    tolerance: the largest relative error of a number that counts as right.
    any_order: whether it does not matter which field has which of the right values.
    """

    item: Item
    text: str
    fields: Mapping[str, Number | Choice]
    labels: Mapping[str, str]
    answer: Mapping[str, Value]
    options: Mapping[str, str] = field(default_factory=dict)
    rows: list[list[str]] = field(default_factory=list)
    about: str = ""
    about_rows: list[list[str]] = field(default_factory=list)
    shown: str = ""
    explain: list[str] = field(default_factory=list)
    computed: str = ""
    wrong: list[tuple[float, str]] = field(default_factory=list)
    at_least: bool = False
    hints: list[str] = field(default_factory=list)
    tolerance: float = TOLERANCE
    any_order: bool = False

    def read(self, texts: Mapping[str, str]) -> dict[str, Value]:
        """What was entered, {field: text}, as values. `InputError` for one that is no value."""
        return {name: self.read_one(name, texts.get(name) or "") for name in self.fields}

    def read_one(self, name: str, text: str) -> Value:
        """What was entered in one field as a value. `InputError` for a text that is none."""
        try:
            value = self.fields[name].read(text.strip())
        except InputError:
            if not self.at_least:
                raise
            value = -1
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
        if self.any_order:
            return Counter(given.values()) == Counter(self.answer.values())
        return all(self._right(given[name], self.answer[name]) for name in self.fields)

    def said(self, given: Mapping[str, Value]) -> list[str]:
        """The verdict on what was given, as paragraphs of Markdown."""
        explain = self.explain
        if self.right(given):
            return [word("drill.right"), *explain]
        if self.at_least:
            (needed,) = self.answer.values()
            return [word("drill.points_missing", needed=f"{needed:g}"), *explain]
        if self.shown:
            return [word("drill.not_held"), *explain]
        found = [
            key for value, key in self.wrong if any(alike(one, value) for one in given.values())
        ]
        one = len(self.fields) == 1
        shown = ", ".join(
            self._text(name) if one else f"{self.labels[name]}: {self._text(name)}"
            for name in self.fields
        )
        about = [word(key) for key in found[:1]]
        computed = [self.computed] if self.computed else []
        return [word("drill.not_right", answer=shown), *about, *computed, *explain]

    def _right(self, given: Value, answer: Value) -> bool:
        if isinstance(given, str) or isinstance(answer, str):
            return given == answer
        if self.at_least:
            return given >= answer
        return abs(given - answer) <= self.tolerance * abs(answer) + 1e-9

    def _text(self, name: str) -> str:
        value = self.answer[name]
        if isinstance(value, str):
            return self.options.get(value, value)
        number = f"{value:,.0f}" if value >= 1000 or float(value).is_integer() else f"{value:.4g}"
        return f"{number} {self.unit(name)}".strip()

"""What is read in an interview, with a fault that is hidden in it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from simlab.lessons.prediction import Choice, Number, Value


@dataclass(frozen=True)
class Artefact:
    """Something to read. Its texts are `artefacts.NAME` in the words.

    rows:   what is shown.
    fields: {name: what is asked}; the options of a choice are `artefacts.NAME.options.OPTION`.
    answer: {name: the right value}, as our own diagnosis finds it.
    faults: what is wrong, whose `artefacts.NAME.explained.FAULT` is told after the answer.
    given:  numbers that the text and what is explained name.
    any_order: whether it does not matter which field has which of the answers.
    """

    rows: Sequence[Sequence[str]]
    fields: Mapping[str, Number | Choice]
    answer: Mapping[str, Value]
    faults: Sequence[str]
    given: Mapping[str, Value] = field(default_factory=dict)
    any_order: bool = False

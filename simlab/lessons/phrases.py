"""The words of what cells compute: names of columns and rows, sentences, and texts in pictures.

A notebook writes them in English, where they are used. A file of words holds the table
`SUBJECT.cells`, with a key for each text, and what stands there in English is found again here:

    [bubbles.cells]                              # in words/en/bubbles.toml
    share = "idle share of the step"
    late = "{name}: the op that was held up most is {op}, by {length} ms."

Templates, texts with names in braces, are as `simlab.phrasebook` has them.
"""

from functools import cache

from simlab.lessons.words import LANGUAGES, language, rendered, texts
from simlab.phrasebook import Phrasebook

CELLS = "cells"
"""The name of a subject's table of such texts."""


def phrase(text: str, *, tongue: str | None = None) -> str:
    """`text`, which is English, in `tongue`; as it is where no file of words has it.

    tongue: "en" or "zh"; None: the learner's language, or English in a copy for reading, whose
    tables would be too wide with both.
    """
    tongue = tongue or (LANGUAGES[0] if rendered() else language())
    if tongue == LANGUAGES[0]:
        return text
    return _phrasebook(tongue).said(text) or text


def report_in(text: str, tongue: str | None = None) -> str:
    """A report of several lines, each in `tongue` as `phrase` says it, as far from the margin as it was."""
    lines = [(line[: len(line) - len(line.lstrip())], line.lstrip()) for line in text.split("\n")]
    return "\n".join(margin + phrase(words, tongue=tongue) for margin, words in lines)


@cache
def _phrasebook(tongue: str) -> Phrasebook:
    return Phrasebook(phrases(tongue))


def phrases(tongue: str) -> list[tuple[str, str]]:
    """[(English text, that of `tongue`)] of all tables `SUBJECT.cells`."""
    pairs = []
    for subject, table in texts(LANGUAGES[0]).items():
        for key, english in table.get(CELLS, {}).items():
            pairs.append((english, texts(tongue)[subject][CELLS][key]))
    return pairs

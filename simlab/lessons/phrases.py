"""The words of what cells compute: names of columns and rows, sentences, and texts in pictures.

A notebook writes them in English, where they are used. A file of words holds the table
`SUBJECT.cells`, with a key for each text, and what stands there in English is found again here:

    [bubbles.cells]                              # in words/en/bubbles.toml
    share = "idle share of the step"
    late = "{name}: the op that was held up most is {op}, by {length} ms."

A text with names in braces is a template: each name takes whatever stands in its place, and that is
said in the other language, too, if it is a known text itself, or a list of known texts with commas
between them.
"""

import re
from functools import cache

from simlab.lessons.words import LANGUAGES, language, rendered, texts

NAME = re.compile(r"\{(\w+)\}")
"""The name of a value in a template."""
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
    return _said(text, tongue) or text


def report_in(text: str, tongue: str | None = None) -> str:
    """A report of several lines, each in `tongue` as `phrase` says it, as far from the margin as it was."""
    lines = [(line[: len(line) - len(line.lstrip())], line.lstrip()) for line in text.split("\n")]
    return "\n".join(margin + phrase(words, tongue=tongue) for margin, words in lines)


def _said(text: str, tongue: str) -> str | None:
    """`text` in `tongue`; None where no file of words has it."""
    exact, templates = _known(tongue)
    if text in exact:
        return exact[text]
    for pattern, target in templates:
        if found := pattern.fullmatch(text):
            values = {name: _value(value, tongue) for name, value in found.groupdict().items()}
            return target.format(**values)
    return None


def _value(text: str, tongue: str) -> str:
    """What stands in the place of a name: a list of known texts, one of them, or any other text."""
    parts = [_said(part, tongue) for part in text.split(", ")]
    known = [part for part in parts if part]
    return "，".join(known) if len(known) == len(parts) else _said(text, tongue) or text


@cache
def _known(tongue: str) -> tuple[dict[str, str], list[tuple[re.Pattern[str], str]]]:
    """({English text: that of `tongue`}, the same for templates, the one with most letters first)."""
    exact, templates = {}, []
    for english, other in phrases(tongue):
        if NAME.search(english):
            templates.append((len(NAME.sub("", english)), _pattern(english), other))
        else:
            exact[english] = other
    templates.sort(key=lambda template: -template[0])
    return exact, [(pattern, other) for _, pattern, other in templates]


def phrases(tongue: str) -> list[tuple[str, str]]:
    """[(English text, that of `tongue`)] of all tables `SUBJECT.cells`."""
    pairs = []
    for subject, table in texts(LANGUAGES[0]).items():
        for key, english in table.get(CELLS, {}).items():
            pairs.append((english, texts(tongue)[subject][CELLS][key]))
    return pairs


def _pattern(template: str) -> re.Pattern[str]:
    """What matches a text that `template` can make."""
    parts = NAME.split(template)  # text, name, text, name, ..., text
    found = [rf"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    return re.compile("".join(found), re.DOTALL)

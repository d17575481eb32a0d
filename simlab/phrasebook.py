"""It says English texts in another language, by a table of texts and of templates.

A text with names in braces is a template: each name takes whatever stands in its place, and that is
said in the other language, too, if it is a known text itself, or a list of known texts with commas or
arrows between them.
"""

import re
from collections.abc import Iterable

NAME = re.compile(r"\{(\w+)\}")
"""The name of a value in a template. A value has no end of a line in it."""
ARROW = " → "
"""What stands between the parts of a sequence."""


class Phrasebook:
    """What says a text in another language; made from pairs of an English text and the other one."""

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._exact: dict[str, str] = {}
        templates = []
        for english, other in pairs:
            if NAME.search(english):
                templates.append((len(NAME.sub("", english)), _pattern(english), other))
            else:
                self._exact[english] = other
        templates.sort(key=lambda template: -template[0])  # the one with most letters first
        self._templates = [(pattern, other) for _, pattern, other in templates]

    def said(self, text: str) -> str | None:
        """`text` in the other language; None where the table does not have it."""
        if text in self._exact:
            return self._exact[text]
        for pattern, other in self._templates:
            if found := pattern.fullmatch(text):
                return other.format(
                    **{name: self._value(value) for name, value in found.groupdict().items()}
                )
        return None

    def _value(self, text: str) -> str:
        """What stands in the place of a name: a list of known texts, one of them, or any other text;
        in a sequence with arrows, each by itself."""
        if ARROW in text:
            return ARROW.join(self._value(part) for part in text.split(ARROW))
        parts = [self.said(part) for part in text.split(", ")]
        known = [part for part in parts if part]
        return "，".join(known) if len(known) == len(parts) else self.said(text) or text


def _pattern(template: str) -> re.Pattern[str]:
    """What matches a text that `template` can make."""
    parts = NAME.split(template)  # text, name, text, name, ..., text
    found = [rf"(?P<{part}>.+?)" if at % 2 else re.escape(part) for at, part in enumerate(parts)]
    return re.compile("".join(found))

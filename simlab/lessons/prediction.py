"""A prediction: what a learner is asked before a run, what was committed, and how it compares."""

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any
from unicodedata import normalize

from simlab.errors import InputError, shortened
from simlab.lessons import progress
from simlab.lessons.words import entry, has, rendered, word

NEAR = 0.02
"""How far a guess may be off, as a part of what was found, to be right as a person says it."""
THOUSANDS = re.compile(r"(?<!\b0)(?<!\d{4}),(?=\d{3}(?!\d))")
"""A comma that parts thousands: after one to three digits that are not 0, and before three."""
SOURCES = ("counted", "closed_form", "simulated", "predicted", "measured")
"""Where a figure can come from, in the order of the columns. Its name is `form.SOURCE`."""


@dataclass(frozen=True)
class Number:
    """A field that takes a number, in `unit` ("ms", "GiB", "x" for times; "" for a plain count)."""

    unit: str = ""

    def read(self, text: str) -> float:
        """The number in `text`. A percent sign is read where percent is asked for, and where times
        are: 47% of them are 0.47. `InputError` if there is no number, for a percent sign elsewhere,
        for a part of 1 where percent is asked for, and for a comma that does not part thousands: 27,3."""
        plain = THOUSANDS.sub("", normalize("NFKC", text)).replace("−", "-").strip()
        try:
            value = float(plain.removesuffix("%"))
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise InputError(word("form.no_number", text=shortened(text)))
        if plain.endswith("%"):
            if self.unit not in ("%", "x"):
                raise InputError(word("form.no_percent", text=shortened(text)))
            return value if self.unit == "%" else value / 100
        if self.unit == "%" and 0 < abs(value) < 1:
            said = {"percent": f"{100 * value:g}%", "as_written": f"{value:g}%"}
            raise InputError(word("form.part_of_one", text=shortened(text), **said))
        return value

    def takes(self, value: Any) -> bool:
        """Whether a file of progress can hold `value` for it."""
        return isinstance(value, int | float)


@dataclass(frozen=True, init=False)
class Choice:
    """A field that takes one of several answers; the words have each one's text as an option."""

    options: tuple[str, ...]

    def __init__(self, *options: str) -> None:
        object.__setattr__(self, "options", options)

    def read(self, text: str) -> str:
        """The option named `text`. `InputError` for another one."""
        if text not in self.options:
            raise InputError(
                word("form.no_choice", text=shortened(text), options=", ".join(self.options))
            )
        return text

    def takes(self, value: Any) -> bool:
        """Whether a file of progress can hold `value` for it: a question may have asked otherwise."""
        return value in self.options


Value = float | str


@dataclass(frozen=True)
class Prediction:
    """What is asked.

    id:     the question's id, or "ID.change" for the prediction after a changed line; its text and
            the names of its fields are the words of `key`.
    fields: {name: Number or Choice}, in the order in which they are shown.
    own:    its text, for a prediction of one's own in one language: then the names of its fields
            and options are what is shown. None: the words of `key`.
    """

    id: str
    fields: Mapping[str, Number | Choice]
    own: str | None = None

    @property
    def question(self) -> str:
        """The id of the question that it belongs to."""
        return self.id.partition(".")[0]

    @property
    def key(self) -> str:
        """The key of its words."""
        return self.id if "." in self.id else f"{self.id}.prediction"

    def label(self, field: str) -> str:
        """What is asked for in `field`, in the learner's language."""
        return field if self.own else word(f"{self.key}.fields.{field}")

    def asks(self, tongue: str | None = None) -> str:
        """What is asked, in `tongue` as `word` takes it."""
        return self.own or word(f"{self.key}.text", tongue=tongue)

    def text(self, field: str, value: Value | None) -> str:
        """`value` of `field` as a learner reads it."""
        if value is None:
            return "–"
        if isinstance(value, str):
            key = f"{self.key}.options.{value}"
            return word(key) if has(key) else value
        return f"{_short(value)} {self.unit(field)}".strip()

    def unit(self, field: str) -> str:
        """The unit of a number in `field` in the learner's language, "" for none and for a choice;
        English in a copy for reading, whose tables would be too wide with both."""
        asked = self.fields[field]
        unit = asked.unit if isinstance(asked, Number) else ""
        said = entry("form.units", tongue="en" if rendered() else None)
        return str(said.get(unit, unit))

    def committed(self) -> dict[str, Value] | None:
        """What the learner has committed, by field; None before."""
        kept = progress.load()["predictions"].get(self.id)
        values = kept.get("values") if isinstance(kept, dict) else None
        if not isinstance(values, dict) or {*values} != {*self.fields}:
            return None
        kept_so = all(field.takes(values[name]) for name, field in self.fields.items())
        return values if kept_so else None

    def commit(self, texts: Mapping[str, str]) -> dict[str, Value]:
        """Keep what was entered in the fields, {name: text}. `InputError` for an empty or unknown
        one, with nothing kept."""
        values: dict[str, Value] = {}
        for name, field in self.fields.items():
            if not (texts.get(name) or "").strip():
                raise InputError(word("form.empty", field=self.label(name)))
            values[name] = field.read(texts[name])
        kept = self._kept()
        told: dict[str, Any] = {its: kept[its] for its in ("first", "shown") if its in kept}
        told["tries"] = kept.get("tries", 0) + 1
        progress.keep("predictions", self.id, {"values": values, "at_s": round(time.time())} | told)
        return values

    def forget(self) -> None:
        """Take the committed values back, to predict again: the first ones, and how many there were, are kept."""
        kept = self._kept()
        told = {its: kept[its] for its in ("tries", "shown") if its in kept}
        first = {its: kept[its] for its in ("values", "at_s", "found") if its in kept}
        progress.keep(
            "predictions", self.id, {"tries": 1, "first": kept.get("first", first)} | told
        )

    def skip(self) -> None:
        """Keep that the result was shown before anything was predicted."""
        if not self._kept():
            progress.keep("predictions", self.id, {"shown": True, "at_s": round(time.time())})

    def _kept(self) -> dict[str, Any]:
        kept = progress.load()["predictions"].get(self.id)
        return kept if isinstance(kept, dict) else {}

    def _check_fields(self, found: Mapping[str, Mapping[str, Value]]) -> None:
        """`InputError` if none of what was found is a field of this prediction: a learner who runs
        an earlier cell again has the prediction of a later one. In a prediction of one's own also for any
        other field, and for what is none of a field's options."""
        names = {name for table in found.values() for name in table}
        if names and not names & {*self.fields}:
            fields = ", ".join(sorted(names))
            raise InputError(word("form.other_prediction", id=self.id, fields=fields))
        for name, value in (pair for table in found.values() for pair in table.items()):
            if self.own and name not in self.fields:
                known = ", ".join(map(repr, self.fields))
                raise InputError(f"the prediction {self.id!r} asks for {known}, not {name!r}")
            if self.own and isinstance(field := self.fields[name], Choice):
                field.read(str(value))

    def show_found(self, found: Mapping[str, Mapping[str, Value]]) -> None:
        """Keep what a lesson found, for the drill asks the prediction again. What was found first
        stays until the learner predicts again: later the line that they change may ask for
        something else."""
        kept = progress.load()["predictions"].get(self.id)
        values = [found[source] for source in SOURCES if source in found]
        last = {name: value for table in values for name, value in table.items()}
        if isinstance(kept, dict) and last:
            first = kept.get("found")
            last |= first if isinstance(first, dict) else {}
            progress.keep("predictions", self.id, kept | {"found": last})

    def compared(self, found: Mapping[str, Mapping[str, Value]]) -> list[list[str]]:
        """Rows of a table: a head, then for each field its name, the prediction, what was found
        from each source of `found` ({source: {field: value}}), and how far the prediction is from
        the last of them."""
        unknown = {*found} - {*SOURCES}
        if unknown:
            raise InputError(f"a figure is {' or '.join(SOURCES)}, not {sorted(unknown)}")
        self._check_fields(found)
        sources = [source for source in SOURCES if source in found]
        guessed = self.committed() or {}
        head = ["", word("form.yours"), *(word(f"form.{s}") for s in sources), word("form.off_by")]
        rows = [head]
        for name in self.fields:
            values = [found[source].get(name) for source in sources]
            last = next((value for value in reversed(values) if value is not None), None)
            cells = [self.text(name, value) for value in (guessed.get(name), *values)]
            rows.append([self.label(name), *cells, off_by(guessed.get(name), last)])
        return rows


def off_by(guess: Value | None, found: Value | None) -> str:
    """How far a guess is from what was found: a tick within `NEAR`, else how much too high or low."""
    if guess is None or found is None:
        return "–"
    if isinstance(guess, str) or isinstance(found, str):
        return "✓" if guess == found else "✗"
    if not found or not guess or guess * found < 0:
        return "✓" if guess == found else "✗"
    ratio = guess / found
    if abs(ratio - 1) <= NEAR:
        return "✓"
    high = "high" if ratio > 1 else "low"
    times = ratio if ratio > 1 else 1 / ratio
    if times < 2:
        return word(f"form.too_{high}_by", share=f"{abs(ratio - 1):.0%}")
    return word(f"form.too_{high}", times=f"{times:.2g}" if times < 10 else f"{times:,.0f}")


def _short(value: float) -> str:
    """Three digits, as a person would say it, and rounded as a table of shares rounds them."""
    if value and not 1e-3 <= abs(value) < 1e6:
        return f"{value:.2e}"
    value = round(value, 9)  # 18.75, not 18.749999999999996
    digits = 0 if abs(value) >= 100 or float(value).is_integer() else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def options(asked: Prediction, field: str) -> list[tuple[str, str]]:
    """[(text, name)] of the options of a choice."""
    choice = asked.fields[field]
    assert isinstance(choice, Choice)
    return [(asked.text(field, name), name) for name in choice.options]

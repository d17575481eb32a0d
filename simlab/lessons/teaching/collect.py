"""It reads the progress files of a class, and says who has answered what."""

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypedDict

from simlab.errors import InputError, number, shortened, whole
from simlab.input_files import read_text
from simlab.lessons.book import version
from simlab.lessons.prediction import off_by
from simlab.lessons.progress import MOST_PROGRESS_BYTES, PARTS, is_of
from simlab.lessons.teaching.handed_in import Handed, handed_in, one_line, own_file, why, without

ENDINGS = (".json",)
NAME = re.compile(r"[\w.-]{1,60}")
MOST_TRIES = 1_000_000
LAST_SECOND = 2**33
"""Later than any learner's clock."""


class Row(TypedDict):
    """What a learner has done with a question.

    kind:   "prediction" or "exercise".
    tries:  of a prediction 0 where the result was shown without one.
    solved: of a prediction, whether the first one was right, None while nothing was compared with it.
    shown:  of a prediction, whether the result was shown before the first one; None of an exercise.
    time:   when it was solved, or else tried last, in UTC; None where the file does not say it.
    """

    who: str
    question: str
    kind: str
    tries: int
    solved: bool | None
    shown: bool | None
    time: str | None


def collect(folder: str | Path) -> tuple[list[Row], list[str]]:
    """(a row for each learner and question, a line for each file that cannot be used or in part).

    Of several files of a learner, the one with which more is done counts for each question.
    """
    rows: dict[tuple[str, str, str], Row] = {}
    named = handed_in(folder, ENDINGS)
    wrong = [*without(folder, ENDINGS, named)]
    progress = {each.who for each in named if "progress" in each.path.name}
    for each in named:
        if each.who in progress and "progress" not in each.path.name:
            continue  # another file of somebody whose progress is there
        try:
            found = _rows(each, wrong)
        except InputError as error:
            wrong.append(f"{each.name}: {why(error)}")
            continue
        for row in found:
            key = row["who"], row["question"], row["kind"]
            rows[key] = max(rows.get(key, row), row, key=_done)
    return [rows[key] for key in sorted(rows)], wrong


def _done(row: Row) -> tuple[bool, int]:
    return bool(row["solved"]), row["tries"]


def _rows(handed: Handed, wrong: list[str]) -> list[Row]:
    """The rows of a file; what of it is unusable is a line of `wrong`."""
    kept = _read(handed.path)
    rows: list[Row] = []
    tables = {part: _table(kept, part) for part in ("predictions", "exercises")}
    replaced = [name for name, its in tables["exercises"].items() if _is_of_another_task(name, its)]
    if replaced:
        said = (
            f"another version of the lessons has other tasks of these names: {', '.join(replaced)}"
        )
        wrong.append(f"{handed.name}: {why(InputError(said))}")
        tables["exercises"] = {
            name: its for name, its in tables["exercises"].items() if name not in replaced
        }
    for kind, read in (("prediction", _prediction), ("exercise", _exercise)):
        bad = []
        for question, entry in tables[f"{kind}s"].items():
            try:
                if not NAME.fullmatch(question):
                    raise InputError(f"{shortened(question)} is the name of no question")
                tries, solved, at, shown = read(entry if isinstance(entry, dict) else {})
                told = {"who": handed.who, "question": question, "kind": kind, "tries": tries}
                rows.append(Row(**told, solved=solved, shown=shown, time=_time(at)))  # type: ignore[typeddict-item]
            except InputError as error:
                bad.append(f"{shortened(question)}: {error}")
        if bad:
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            wrong.append(f"{handed.name}: left out of its {kind}s: {why(InputError(bad[0]))}{more}")
    return rows


def _read(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(read_text(own_file(path), MOST_PROGRESS_BYTES))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        raise InputError(f"it is broken: {one_line(str(error))}") from error
    if not isinstance(found, dict) or not any(isinstance(found.get(its), dict) for its in PARTS):
        raise InputError(
            f"it is no progress file of the lessons: it has none of {', '.join(PARTS)}"
        )
    return found


def _is_of_another_task(question: str, entry: Any) -> bool:
    return isinstance(entry, dict) and not is_of(entry, version(question))


def _table(kept: Mapping[str, Any], part: str) -> Mapping[str, Any]:
    table = kept.get(part)
    return table if isinstance(table, dict) else {}


def _exercise(entry: Mapping[str, Any]) -> tuple[int, bool, Any, None]:
    tries: Any = entry.get("tries")
    solved = entry.get("solved")
    _check_tries(tries)
    if not isinstance(solved, bool):
        raise InputError(f"solved = {shortened(solved)}: it is true or false")
    return tries, solved, entry.get("last_s"), None


def _check_tries(tries: Any) -> None:
    if not whole(tries) or tries > MOST_TRIES:
        raise InputError(f"tries = {shortened(tries)}: a number of tries is 1 to {MOST_TRIES:,}")


def _prediction(entry: Mapping[str, Any]) -> tuple[int, bool | None, Any, bool]:
    shown = entry.get("shown") is True
    if shown and "values" not in entry and "first" not in entry:
        return 0, None, entry.get("at_s"), shown
    _check_tries(tries := entry.get("tries", 1))
    first: Any = entry.get("first", entry)
    entry = first if isinstance(first, dict) else {}
    values: Any = entry.get("values")
    found: Any = entry.get("found", {})
    for table in (values, found):
        if not isinstance(table, dict) or not all(map(_value, table.values())):
            raise InputError(f"{shortened(table)} are no values of a prediction")
    compared = [off_by(values[name], found[name]) == "✓" for name in values if name in found]
    return tries, all(compared) if compared else None, entry.get("at_s"), shown


def _value(value: Any) -> bool:
    return isinstance(value, str) or (number(value) and abs(value) < float("inf"))


def _time(seconds: Any) -> str | None:
    """A time as 2026-11-28 12:05; None where there is none."""
    if seconds is None:
        return None
    if not number(seconds) or not 0 <= seconds < LAST_SECOND:
        raise InputError(f"{shortened(seconds)} is no time: it is seconds since 1970")
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")

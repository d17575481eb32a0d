"""The command drill: questions at the terminal, one after the other, kept after each answer."""

import argparse
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path as FilePath
from random import SystemRandom
from typing import Any, TypedDict
from unicodedata import east_asian_width

from simlab.cli.options import add_json_options
from simlab.cli.output import COLUMNS, print_json, print_text
from simlab.errors import InputError
from simlab.lessons import progress
from simlab.lessons.drill.advice import advice_text
from simlab.lessons.drill.items import KINDS
from simlab.lessons.drill.paths import PATHS, Path, path
from simlab.lessons.drill.posed import Posed
from simlab.lessons.drill.session import Report, Session
from simlab.lessons.prediction import Choice, Number
from simlab.lessons.words import LANGUAGES, set_language, word

QUIT = ("q", "quit", "exit")
HINT = ("h", "hint")
PARTS = re.compile(r"\s*(?:[^\s\u2e80-\uffef]+|[\u2e80-\uffef])[，。；：？！、）”]*|\s+")
"""What a line is made of: words, Chinese characters, and the marks that follow them."""
EMPHASIS = re.compile(r"(\*\*?)(\S(?:[^*]*\S)?)\1")
"""A text in Markdown that is set off, such as *static* or **one**."""


class Exported(TypedDict):
    """Where the progress was written."""

    exported: str


Answer = Report | Exported | Path


def drill(arguments: argparse.Namespace) -> int:
    """Practise for an interview: questions whose numbers change, on-call cases, answers said aloud.

    A drill that was left goes on where it was. Progress is kept in one local file.
    """
    if arguments.lang:
        set_language(arguments.lang)
    if arguments.export:
        return _export(FilePath(arguments.export), arguments.json)
    if arguments.path:
        others = ("only", "kind", "interview", "new", "seed", "questions")
        if given := [f"--{name}" for name in others if getattr(arguments, name)]:
            raise InputError(f"--path prints a path and asks nothing: leave {', '.join(given)} out")
        return _path(path(arguments.path), arguments.json)
    session = _begun(arguments)
    begins_at = session.at
    while (asked := session.question()) is not None:
        _say(f"{session.head()} {word('drill.how_to_stop')}\n")
        if session.at == begins_at and asked.about:  # told when it was begun
            _say_case(asked.about, asked.about_rows)
        if not _ask(session, asked):
            break
    goes_on = "" if session.is_over or not session.at else word("drill.goes_on")
    _say(f"\n{session.ended()} {goes_on}".rstrip())
    if (advice := session.advice()) and session.at:
        _say(f"\n{advice_text(advice)}\n\n{word('drill.advice.how', kinds='|'.join(KINDS))}")
    if arguments.json:
        print_json(session.report())
    return 0


def _begun(arguments: argparse.Namespace) -> Session:
    """The session that was left, or a new one where anything is asked for."""
    if arguments.interview and (arguments.only or arguments.kind or arguments.questions):
        raise InputError(
            "an interview is mixed and ends in time: leave --only, --kind and --questions out, or --interview"
        )
    anew = arguments.new or arguments.only or arguments.kind or arguments.interview
    if not anew and (session := Session.kept(arguments.seed)):
        number, count = session.place(session.at + 1)
        _say(word("drill.resumed", number=number, count=count))
        return session
    seed = arguments.seed or str(SystemRandom().randrange(10**9))
    if arguments.interview:
        return Session.interview(seed)
    return Session(_count(arguments), seed, arguments.only, kinds=arguments.kind)


def _count(arguments: argparse.Namespace) -> int:
    return 20 if arguments.questions is None else int(arguments.questions)


def _path(found: Path, as_json: bool) -> int:
    if as_json:
        print_json(found)
        return 0
    lines = [found["text"]]
    for at, step in enumerate(found["steps"]):
        if not at or step["part"] != found["steps"][at - 1]["part"]:
            lines += ["", word("drill.path_part", part=step["part"])]
        told: dict[str, Any] = dict(step)
        lines.append(_wrapped(word("drill.path_step", **told)))
    names = " ".join(step["question"] for step in found["steps"])
    if found["known"]:
        lines += ["", _wrapped(word("drill.path_known", names=" ".join(found["known"])))]
    print_text("\n".join([*lines, "", _wrapped(word("drill.path_asked", names=names))]))
    return 0


def add_drill(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `drill`."""
    command.add_argument("--questions", type=int, metavar="N", help="how many (20)")
    command.add_argument(
        "--only", nargs="+", metavar="ID", help="ask about these questions or cases alone: b09 leak"
    )
    command.add_argument(
        "--kind",
        nargs="+",
        choices=KINDS,
        help="ask these kinds of questions alone, such as whiteboard cases (board)",
    )
    command.add_argument(
        "--interview", action="store_true", help="45 minutes, mixed and timed, that end in advice"
    )
    command.add_argument(
        "--path",
        choices=[*PATHS],
        help="print a path through the questions: fifteen for two evenings, or what is left after FSDP",
    )
    command.add_argument(
        "--lang", choices=LANGUAGES, help="language (SIMLAB_LANG, or the locale's)"
    )
    command.add_argument("--seed", help="the same questions with the same numbers again")
    command.add_argument("--new", action="store_true", help="begin anew, not where it was left")
    command.add_argument("--export", metavar="FILE", help="write all progress to FILE, as JSON")
    add_json_options(command, Answer)


def _export(file: FilePath, as_json: bool) -> int:
    try:
        file.write_text(json.dumps(progress.load(), indent=1, ensure_ascii=False), encoding="utf-8")
    except OSError as error:
        raise InputError(f"--export {str(file)!r}: {error.strerror}") from None
    if as_json:
        print_json({"exported": str(file)})
    else:
        print_text(f"written: {file}")
    return 0


def _ask(session: Session, asked: Posed) -> bool:
    """Ask one question until its answer can be read; False where the learner stops."""
    _say_case(asked.text, asked.rows)
    if asked.hints:
        _say(word("drill.how_to_get_hints"))
    if asked.shown:
        if (
            _input(word("drill.press_enter" if asked.at_least else "drill.press_for_answer") + " ")
            is None
        ):
            return False
        _say("\n" + asked.shown)
    hints = iter(asked.hints)
    texts: dict[str, str] = {}
    for name in asked.fields:
        text = _answered(asked, name, hints)
        if text is None:
            return False
        texts[name] = text
    _, said = session.answer(texts, len(asked.hints) - len([*hints]))
    _say("\n" + "\n\n".join(said) + "\n")
    return True


def _say_case(text: str, rows: list[list[str]]) -> None:
    _say(text)
    if rows:
        print("\n" + _aligned(rows) + "\n", file=sys.stderr)


def _answered(asked: Posed, name: str, hints: Iterator[str]) -> str | None:
    """What the learner enters in a field, asked until it can be read, and after each hint that they ask
    for; None where they stop."""
    field = asked.fields[name]
    while (text := _input(_prompt(asked, name, field))) is not None:
        if text.lower() in HINT and asked.hints:
            _say(next(hints, word("drill.no_more_hints")))
            continue
        try:
            asked.read_one(name, _named(field, text))
        except InputError as error:
            _say(str(error))
            continue
        return _named(field, text)
    return None


def _prompt(asked: Posed, name: str, field: Number | Choice) -> str:
    if isinstance(field, Choice):
        lines = [
            f"  {at}. {asked.options.get(one, one)}" for at, one in enumerate(field.options, 1)
        ]
        return "\n".join([f"{asked.labels[name]}:", *lines, "> "])
    unit = f" ({asked.unit(name)})" if asked.unit(name) else ""
    return f"{asked.labels[name]}{unit}: "


def _named(field: Number | Choice, text: str) -> str:
    """The option that a number stands for."""
    if isinstance(field, Choice):
        return dict(zip(map(str, range(1, len(field.options) + 1)), field.options)).get(text, text)
    return text


def _input(prompt: str) -> str | None:
    """One line of the learner's; None where they stop or the input ends."""
    print(prompt, end="", file=sys.stderr, flush=True)
    try:
        line = sys.stdin.readline()
    except (KeyboardInterrupt, OSError, ValueError):  # no input, or none that is text
        return None
    text = line.strip()
    return None if not line or text.lower() in QUIT else text


def _aligned(rows: list[list[str]]) -> str:
    columns = []
    for at, cells in enumerate(zip(*rows)):
        most = max(map(_width, cells))
        room = [" " * (most - _width(cell)) for cell in cells]
        columns.append([c + r if not at else r + c for c, r in zip(cells, room)])
    return "\n".join("  ".join(row) for row in zip(*columns))


def _width(text: str) -> int:
    """How many columns of a terminal a text takes: a Chinese character takes two."""
    return sum(2 if east_asian_width(character) in "WF" else 1 for character in text)


def _wrapped(line: str) -> str:
    """A line as lines of at most `COLUMNS`; Chinese can end after any character but before no mark."""
    lines = [""]
    for part in PARTS.findall(line):
        if _width(lines[-1] + part.rstrip()) > COLUMNS and lines[-1]:
            lines.append("")
        lines[-1] += part if lines[-1] or len(lines) == 1 else part.lstrip()
    return "\n".join(each.rstrip() for each in lines)


def _say(text: str) -> None:
    """What the learner reads goes to stderr, for stdout is the report's."""
    is_code = False
    for line in _plain(text).split("\n"):
        if line.startswith("```"):
            is_code = not is_code
        else:
            print(line if is_code else _wrapped(line), file=sys.stderr)


def _plain(text: str) -> str:
    """`text` without the stars around what Markdown sets off: a terminal has no bold."""
    return EMPHASIS.sub(r"\2", text)

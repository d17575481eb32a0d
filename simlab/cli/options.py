"""The parser of simlab's and realrun's command lines: one line for a mistake, with what was probably
meant; names of options that are no longer shown; shell completion."""

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, NoReturn, TypedDict

from simlab.cli.streams import end_stdout
from simlab.errors import InputError, bounded, did_you_mean, shortened
from simlab.schema import DRAFT, schema

SHELLS = ("bash", "zsh", "tcsh")


class Parser(argparse.ArgumentParser):
    """An `argparse.ArgumentParser` whose mistakes cost one line on stderr and exit status 2.

    An unknown command or option is answered with the nearest one there is. Sub-commands are parsed
    by the same class; `commands` is {name: parser} of them.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(*arguments, **options)
        self.commands: dict[str, argparse.ArgumentParser] = {}
        self.siblings: dict[str, argparse.ArgumentParser] = {}
        """{name: parser} of the commands beside this one."""
        self._as_json = False
        self.register("type", int, _whole)

    def error(self, message: str) -> NoReturn:
        """Print `message` as one line on stderr, with `--json` also as an object, and exit with
        status 2."""
        reason = bounded(" ".join(message.split()))
        if self._as_json:
            print(json.dumps(Failure(ok=False, error=reason)))
        self.exit(2, f"error: {reason}\n")

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` does; who reads the help or a schema may have enough of it, as in `| head -1`."""
        try:
            return super().parse_args(args, namespace)
        except BrokenPipeError:
            end_stdout()
            self.exit()

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """As `argparse` does, once all is written."""
        sys.stdout.flush()
        super().exit(status, message)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As `argparse` does, but what it does not know is refused here, where the options of the
        sub-command are known."""
        args = sys.argv[1:] if args is None else list(args)
        self._as_json = "--json" in args
        self._refuse_unknown_options(args)
        known, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return known, unknown

    def _refuse_unknown_options(self, args: Sequence[str]) -> None:
        """Refuse an unknown option before the first command: `argparse` would take its value for a
        command, and complain of that."""
        for text in args if args and args[0].startswith("-") else ():
            if text in self.commands or text == "--":
                return
            name = text.split("=")[0]
            known = any(option.startswith(name) for option in self._option_string_actions)
            if name.startswith("--") and not known:
                self._refuse(name)

    def _refuse(self, text: str) -> NoReturn:
        """End with the line that `text` is no argument, and with the commands that have it, or the nearest
        option."""
        name = text.split("=")[0]
        have = [its for its, one in self.siblings.items() if name in one._option_string_actions]
        if have:
            self.error(f"unrecognized argument {name!r}, which is an option of {', '.join(have)}")
        hint = (
            did_you_mean(name, self._shown_flags())
            if name.startswith("-")
            else self._plan_hint(text)
        )
        self.error(f"unrecognized argument {name!r}{hint or f': see {self.prog} --help'}")

    def _plan_hint(self, text: str) -> str:
        """How `text` is given where it is a plan file, or a cluster's, without its option."""
        has, ending = self._option_string_actions, Path(text).suffix
        if ending not in PLAN_SUFFIXES or "--plan" not in has:
            return ""
        other = f", a cluster's as --cluster {text}" * (ending == ".json" and "--cluster" in has)
        return f": a plan file is given as --plan {text}{other}"

    def _shown_flags(self) -> list[str]:
        return [
            flag
            for action in self._actions
            if action.help != argparse.SUPPRESS
            for flag in action.option_strings
        ]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            there_is = ", ".join(map(str, action.choices))
            hint = did_you_mean(value, [str(choice) for choice in action.choices]) or ";"
            what = "command" if isinstance(action, argparse._SubParsersAction) else "value"
            if what == "command" and (plan_hint := self._plan_hint(str(value))):
                hint = f"{plan_hint};"
            raise argparse.ArgumentError(
                None if what == "command" else action,
                f"unknown {what} {value!r}{hint} there is {there_is}",
            )


PLAN_SUFFIXES = (".yaml", ".yml", ".json")


MOST_WHOLE = 10**15
"""Of an option that is a whole number: more is a slip, and beyond what floats tell apart."""


def _whole(text: str) -> int:
    value = int(text)
    if abs(value) > MOST_WHOLE:
        raise argparse.ArgumentTypeError(f"{shortened(value)}: give at most {MOST_WHOLE:,}")
    return value


def program_name(package: str) -> str:
    """How this program was started: 'simlab', or 'python -m simlab'."""
    return package if Path(sys.argv[0]).stem == package else f"python -m {package}"


def flag(name: str) -> str:
    """The argument `name` as it is written on the command line."""
    return f"--{name.replace('_', '-')}"


def value_text(value: Any) -> str:
    """`value` as it is written on the command line."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return ",".join(map(str, value))
    if isinstance(value, list):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def add_alias(parser: Any, old: str, dest: str, kind: Callable[[str], Any] | None = None) -> None:
    """Let `parser` take the option `old`, of an earlier release, for `dest`, without showing it."""
    parser.add_argument(
        old, dest=dest, type=kind, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def refuse_given(arguments: argparse.Namespace, names: Iterable[str], why: str) -> None:
    """`InputError` that names the first of `names` that was given, and says `why` it should not
    be."""
    for name in names:
        if (value := getattr(arguments, name, None)) is not None:
            raise InputError(f"{flag(name)} {value_text(value)} {why}")


WRITTEN = ("export", "out", "perfetto", "picture", "profiles", "trace")
"""Arguments that name what is written."""
FILES = ("export", "perfetto", "picture", "trace")
"""Those that always name a file."""
PICTURES = ("png", "svg", "pdf", "html", "jpg", "webp", "eps")
"""Endings of pictures; a page needs plotly, the others matplotlib."""


def add_picture_option(parser: Any, what: str) -> None:
    """Add `--picture`, which draws `what`."""
    text = f"draw {what}: .png, .svg or .pdf (needs matplotlib), or .html, to zoom (plotly, too)"
    parser.add_argument("--picture", metavar="X.png", help=text)


def refuse_paths(arguments: argparse.Namespace) -> None:
    """`InputError` for a path of what shall be written that is empty, that cannot be written or, of a
    picture, that ends as none does: before anything is computed."""
    for name in WRITTEN:
        value = getattr(arguments, name, None)
        if value == "" or (name == "picture" and isinstance(value, str) and _is_device(value)):
            raise InputError(f"{flag(name)} {value!r}: give the path of a file to write")
        if name in FILES and isinstance(value, str):
            check_writable(value)
        ending = Path(value).suffix[1:].lower() if isinstance(value, str) else ""
        if name == "picture" and ending and ending not in PICTURES:
            raise InputError(
                f"cannot write {value!r}: a picture ends in .{', .'.join(PICTURES[:-1])} or .{PICTURES[-1]}"
            )
        if name == "picture" and ending == "html" and not find_spec("plotly"):
            raise InputError(f"{flag(name)} {value}: a page needs plotly: pip install plotly")


def check_writable(path: str) -> None:
    """`InputError` if no file can be written at `path`."""
    its = Path(path)
    folder = its.absolute().parent
    why = ""
    if its.is_dir():
        why = "it is a folder"
    elif not folder.is_dir():
        why = f"No such file or directory: {str(its.parent)!r}"
    elif not os.access(its if its.exists() else folder, os.W_OK):
        why = "Permission denied"
    if why:
        raise InputError(f"cannot write {path!r}: {why}")


def _is_device(path: str) -> bool:
    return os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)


class PrintCompletion(argparse.Action):
    """Print the completion script of a shell, and exit. shtab writes it once, so that a press of
    the tab key does not start Python."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        try:
            import shtab
        except ImportError:
            parser.error("shtab not installed: pip install shtab")
        print(shtab.complete(parser, shell=str(values)))
        parser.exit()


class Failure(TypedDict):
    """A check failed, or the command broke off: exit status 1; or its arguments are wrong: 2."""

    ok: Literal[False]
    error: str


class PrintSchema(argparse.Action):
    """Print the JSON schema of the type `const`, which is what `--json` prints, and exit."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        its = {"$schema": DRAFT, "title": f"{parser.prog} --json"} | schema(self.const)
        print(json.dumps(its, indent=1, allow_nan=False))
        parser.exit()


def add_json_options(parser: Any, answer: Any, failure: Any = Failure) -> None:
    """Add `--json`, and `--schema` of what it prints: an object of the type `answer`, or `failure`."""
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    text = "print the JSON schema of what --json prints, and exit"
    parser.add_argument("--schema", action=PrintSchema, nargs=0, const=answer | failure, help=text)


def add_version_and_completion(parser: argparse.ArgumentParser, version: str) -> None:
    """Add `--version` and `--print-completion` to a top parser."""
    parser.add_argument("--version", action="version", version=version)
    parser.add_argument(
        "--print-completion",
        action=PrintCompletion,
        choices=SHELLS,
        metavar="SHELL",
        help=f"print the completion script for {', '.join(SHELLS)} (needs shtab)",
    )

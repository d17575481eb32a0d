"""The files in which other projects are configured: read as options, and written from them."""

import json
import re
import shlex
import tomllib
from collections.abc import Iterator, Mapping
from typing import Any

from simlab.cli.text_files import plain_yaml
from simlab.errors import InputError
from simlab.input_files import read_text


def read_config(path: str, syntax: str) -> dict[str, Any]:
    """{option or section: value or table} of a file. `InputError` if it cannot be read.

    syntax: 'toml', 'json', 'yaml', or 'arguments': a command line, in a file by itself or in a shell
            script, whose variables are not known.
    """
    content = plain_yaml(path) if syntax == "yaml" else _parsed(path, read_text(path), syntax)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}, not options with names")
    return content


def _parsed(path: str, text: str, syntax: str) -> Any:
    try:
        if syntax == "toml":
            return tomllib.loads(text)
        return json.loads(text) if syntax == "json" else _arguments(text)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no {syntax}: {why}") from error


def _arguments(text: str) -> dict[str, Any]:
    """{flag: value, list of values, or True}"""
    given: dict[str, list[Any]] = {}
    values: list[Any] = []
    for word in _words(text):
        if word[:2] == "--":
            flag, equals, value = word.partition("=")
            values = given.setdefault(flag, [])
            values[:] = [_number(value)] if equals else []  # as argparse, the last one counts
        elif word == ")":  # the end of a list of a shell script
            values = []
        else:
            values.append(_number(word))
    return {flag: its[0] if len(its) == 1 else its or True for flag, its in given.items()}


def _words(text: str) -> Iterator[str]:
    """The words of a script, those of arguments in a quoted variable among them, GPT_ARGS="--bf16",
    with a ")" where a variable ends."""
    for word in shlex.split(text.replace("\\\n", " "), comments=True):
        assigned = re.fullmatch(r"[A-Za-z_]\w*\+?=(.*--.*)", word, re.DOTALL)
        if assigned:
            yield from (")", *_words(assigned[1]), ")")
        else:
            yield word


def _number(word: str) -> Any:
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def config_text(settings: Mapping[str, Any], syntax: str) -> str:
    """The file that holds `settings`, {option or section: value or table}."""
    if syntax == "json":
        return json.dumps(settings, indent=2) + "\n"
    if syntax == "arguments":
        lines = [flag if value is True else f"{flag} {value}" for flag, value in settings.items()]
    elif syntax == "toml":
        lines = [line for key, table in settings.items() for line in _section(key, table)]
    else:
        lines = [line for key, table in settings.items() for line in _indented(key, table)]
    return "\n".join(lines) + "\n"


def _section(key: str, table: Mapping[str, Any]) -> list[str]:
    return [f"[{key}]", *(f"{option} = {json.dumps(value)}" for option, value in table.items()), ""]


def _indented(key: str, table: Mapping[str, Any]) -> list[str]:
    return [f"{key}:", *(f"  {option}: {json.dumps(value)}" for option, value in table.items())]

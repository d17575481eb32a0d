"""The files in which other projects are configured: read as options, and written from them."""

import json
import re
import shlex
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simlab.cli.shell_scripts import script_words
from simlab.cli.text_files import plain_yaml
from simlab.errors import InputError, shortened
from simlab.input_files import read_text

SUFFIXES = {".json": "json", ".toml": "toml", ".yaml": "yaml", ".yml": "yaml"}
"""{how the name of a file ends: its syntax, whatever its project writes otherwise}"""
PYTHON = (
    "it is Python, which is not executed: have torchtitan write it as JSON, with --debug.save_config_file "
    "config.json, and convert that"
)


VARIABLE = re.compile(r"\$(?:\w+|@|\{.*\}|\(.*\))", re.DOTALL)
"""A word that is a variable, which may hold options; not the path of a program, as in $DIR/train.py."""


def read_config(path: str, syntax: str, given: Mapping[str, str] | None = None) -> dict[str, Any]:
    """{option or section: value or table} of a file. `InputError` if it cannot be read.

    syntax: 'toml', 'json', 'yaml', or 'arguments': a command line, in a file by itself, in a shell
            script, or as a table of flags in YAML, such as that of Megatron-LM's tests. The name of
            the file says another one of the first three.
    given:  {variable of a script, or option: value}, above what the file says.
    """
    if path.endswith(".py"):
        raise InputError(f"{path}: {PYTHON}")
    its = SUFFIXES.get(Path(path).suffix, syntax)
    given = given or {}
    content = plain_yaml(path) if its == "yaml" else _parsed(path, read_text(path), its, given)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}, not options with names")
    if syntax == "arguments" and its != syntax:
        content = _flags(content)
    options = {name: text for name, text in given.items() if its != "arguments" or name[:1] == "-"}
    for name, text in options.items():
        _set(content, name, _number(text))
    return content


def _parsed(path: str, text: str, syntax: str, given: Mapping[str, str]) -> Any:
    try:
        if syntax == "toml":
            return tomllib.loads(text)
        return json.loads(text) if syntax == "json" else _arguments(text, given)
    except (ValueError, RecursionError) as error:
        why = " ".join(str(error).split())[:200]
        raise InputError(f"{path} is no {syntax}: {why}") from error


def _set(content: dict[str, Any], name: str, value: Any) -> None:
    """Put a value at "section.option", in the tables that are there."""
    section, dot, option = name.partition(".")
    if dot and isinstance(content.get(section, {}), dict):
        _set(content.setdefault(section, {}), option, value)
    else:
        content[name] = value


def _flags(content: dict[str, Any]) -> dict[str, Any]:
    """{flag: value} of a table, whose flags may be in a table MODEL_ARGS."""
    table = content.get("MODEL_ARGS", content)
    if not isinstance(table, dict):
        raise InputError(f"MODEL_ARGS = {shortened(table)}: give a table of flags")
    flags = {
        str(name) if str(name)[:2] == "--" else f"--{str(name).replace('_', '-')}": value
        for name, value in table.items()
    }
    words = {
        flag: value.split() if isinstance(value, str) and " " in value.strip() else value
        for flag, value in flags.items()
    }
    return {flag: value for flag, value in words.items() if value not in (False, None, "")}


def _arguments(text: str, given: Mapping[str, str]) -> dict[str, Any]:
    """{flag: value, list of values, or True}; words that hold a variable which is not known stand under
    its name."""
    shlex.split(text.replace("\\\n", " "), comments=True)  # whose quotes must be closed
    found: dict[str, list[Any]] = {}
    values: list[Any] = []
    for at, word in enumerate(script_words(text, given)):
        if word in ("$@", "$*") or (not at and VARIABLE.fullmatch(word)):
            continue  # a script is read without arguments; a program is no option
        if word[:2] == "--":
            flag, equals, value = word.partition("=")
            values = found.setdefault(flag, [])
            values[:] = [_number(value)] if equals else []  # as argparse, the last one counts
        elif VARIABLE.fullmatch(word) and (values or not found):
            values = []
            found[word] = [word]
        else:
            values.append(_number(word))
    return {flag: its[0] if len(its) == 1 else its or True for flag, its in found.items()}


def _number(word: str) -> Any:
    if word in ("true", "false"):
        return word == "true"
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
        words = {
            flag: [] if value is True else str(value).split() for flag, value in settings.items()
        }
        lines = [shlex.join([flag, *its]) for flag, its in words.items()]
    elif syntax == "toml":
        lines = [line for key, table in settings.items() for line in _section(key, table)]
    else:
        lines = [line for key, table in settings.items() for line in _indented(key, table)]
    return "\n".join(lines) + "\n"


def _section(key: str, table: Mapping[str, Any]) -> list[str]:
    return [f"[{key}]", *(f"{option} = {json.dumps(value)}" for option, value in table.items()), ""]


def _indented(key: str, table: Mapping[str, Any]) -> list[str]:
    return [f"{key}:", *(f"  {option}: {json.dumps(value)}" for option, value in table.items())]

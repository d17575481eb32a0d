"""The JSON schemas that realrun prints."""

import json
from contextlib import redirect_stdout
from functools import cache
from io import StringIO

import pytest
from jsonschema import Draft202012Validator

from realrun.cli.main import main

COMMANDS = {"run": [], "measure": ["measure"], "check": ["check"], "doctor": ["doctor"]}


@cache
def schema(name):
    """The validator of what a command prints with `--json`, one of `COMMANDS`."""
    with redirect_stdout(StringIO()) as printed, pytest.raises(SystemExit, match="0"):
        main([*COMMANDS[name], "--schema"])
    return Draft202012Validator(json.loads(printed.getvalue()))

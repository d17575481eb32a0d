"""The JSON schemas that come with realrun."""

import json
from pathlib import Path

from jsonschema import Draft202012Validator

import realrun

FOLDER = Path(realrun.__file__).parent / "cli" / "schemas"


def schema(name):
    """The validator of what a command prints, 'run' or 'measure', or of an 'error'."""
    return Draft202012Validator(json.loads((FOLDER / f"{name}.json").read_text(encoding="utf-8")))

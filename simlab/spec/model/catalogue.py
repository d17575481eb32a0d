"""Models by their names, in the catalogue, or by the path of a config.json."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from simlab.errors import InputError, did_you_mean, shortened
from simlab.spec.model.hugging_face import read_config
from simlab.spec.model.model import Model


@cache
def catalogue() -> dict[str, Model]:
    """{name: `Model`} of the models that come with simlab, see data/models.json."""
    data = json.loads((files("simlab.spec") / "data" / "models.json").read_text(encoding="utf-8"))
    return {name: Model(name=name, **sizes) for name, sizes in data.items()}


def _of_fields(sizes: Mapping[str, Any], name: str) -> Model:
    """The `Model` of {field: value}. `InputError`, which begins with `name`, for a name that is no
    field, a field that is missing, or a value that cannot be."""
    known = {one.name: one for one in fields(Model)}
    for field in sizes:
        if field not in known:
            hint = did_you_mean(field, known) or ";"
            raise InputError(
                f"{name}: {shortened(field)} is no field of a model{hint} there is {', '.join(known)}"
            )
    missing = [
        field for field, one in known.items() if one.default is MISSING and field not in sizes
    ]
    if missing:
        raise InputError(f"{name}: a model needs {', '.join(missing)}: give {missing[0]}")
    given: dict[str, Any] = {
        field: tuple(its) if isinstance(its, list) else its for field, its in sizes.items()
    }
    try:
        return Model(**given)
    except InputError as error:
        raise InputError(f"{name}: {error}") from error


def load_model(name: str | Path | Mapping[str, Any] | Model) -> Model:
    """The `Model` called `name` in the catalogue, or that of a file if `name` is a path: a Hugging Face
    config.json (`model_types.TYPES`: of which types), whose rotary embeddings are then not scaled (see
    `Model.ignored`), or a JSON file of the fields of a `Model`. A table is {field: value} of one;
    a `Model` is one already."""
    if isinstance(name, Model):
        return name
    if isinstance(name, Mapping):
        return _of_fields(name, str(name.get("name") or "model"))
    if str(name).endswith(".json") or "/" in str(name):
        sizes = read_config(Path(name))
        return _of_fields(sizes, str(name))
    if not isinstance(name, str) or name not in catalogue():
        near = did_you_mean(name, catalogue())
        raise InputError(
            f"unknown model {shortened(name)}{near or ';'} there is {', '.join(catalogue())}, "
            "or give the path of a config.json, or of a file of a model's fields"
        )
    return catalogue()[name]

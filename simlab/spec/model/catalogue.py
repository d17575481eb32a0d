"""Models by their names, in the catalogue, or by the path of a config.json."""

import json
from functools import cache
from importlib.resources import files
from pathlib import Path

from simlab.errors import InputError, did_you_mean, shortened
from simlab.spec.model.hugging_face import read_config
from simlab.spec.model.model import Model


@cache
def catalogue() -> dict[str, Model]:
    """{name: `Model`} of the models that come with simlab, see data/models.json."""
    data = json.loads((files("simlab.spec") / "data" / "models.json").read_text(encoding="utf-8"))
    return {name: Model(name=name, **sizes) for name, sizes in data.items()}


def load_model(name: str | Path) -> Model:
    """The `Model` called `name` in the catalogue, or of a Hugging Face config.json if `name` is a
    path to one (`model_types.TYPES`: of which types). Rotary embeddings are then not scaled: see
    `Model.ignored`."""
    if str(name).endswith(".json") or "/" in str(name):
        sizes = read_config(Path(name))
        try:
            return Model(**sizes)
        except InputError as error:
            raise InputError(f"{name}: {error}") from error
    if not isinstance(name, str) or name not in catalogue():
        near = did_you_mean(name, catalogue())
        raise InputError(
            f"unknown model {shortened(name)}{near or ';'} there is {', '.join(catalogue())}, or give the path of a config.json"
        )
    return catalogue()[name]

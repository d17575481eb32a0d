"""The JSON schemas of the files that a user writes: plan files and cluster files.

They are made of the fields and options from which the readers take their names, and they are for
editors and other programs: what a schema refuses, the readers refuse, too. The readers refuse more, such as
degrees that do not go together, and say it in one line that quotes the value; so they need no schema.
"""

from typing import Any

from realrun.cli.options import BOX, EXPERTS, PIPELINE, RUN, SIZES
from simlab.cli.plan_options import MOST_STAGES, MOST_TEXT
from simlab.spec.cluster import Cluster, gpus
from simlab.spec.fields import json_schema
from simlab.spec.plan import plan_schema

READ_AS_NUMBERS: dict[type, list[str]] = {int: ["integer", "string"], float: ["number", "string"]}
"""{type of an option: its names in a schema}. YAML takes 1e9 for a text, which is read as a number."""


def plan_file() -> dict[str, Any]:
    """Of a plan file: the fields of `Plan`, and the options of realrun."""
    schema = plan_schema()
    options = PIPELINE | BOX | SIZES | EXPERTS | RUN
    fields = schema["properties"]
    # several schedules, with commas between them, run one after the other
    fields["schedule"] = {"type": "string"} | _words(fields["schedule"])
    more = {
        name: _option(its.kind, its.help) for name, its in options.items() if name not in fields
    }
    said = more["model"].pop("description")
    more["model"] = {"anyOf": [more["model"], {"type": "object"}], "description": said}
    properties = {name: _or_nothing(its) for name, its in (fields | more).items()}
    return schema | {"title": "Plan file", "properties": properties}


def _option(kind: type, text: str) -> dict[str, Any]:
    shape: dict[str, Any] = {"type": READ_AS_NUMBERS.get(kind, "string")}
    return shape | {"maxLength": MOST_TEXT, "description": text.replace("%%", "%")}


def _words(its: dict[str, Any]) -> dict[str, Any]:
    return {name: its[name] for name in ("default", "description")}


def _or_nothing(its: dict[str, Any]) -> dict[str, Any]:
    """`its`, or a name without a value, which says nothing."""
    words = {name: its[name] for name in ("default", "description") if name in its}
    shape = {name: value for name, value in its.items() if name not in words}
    parts = shape.get("anyOf", [shape])
    for part in parts:
        if part.get("type") == "array":
            part["maxItems"] = MOST_STAGES
    nothing = [] if {"type": "null"} in parts else [{"type": "null"}]
    return {"anyOf": [*parts, *nothing]} | words


def cluster_file() -> dict[str, Any]:
    """Of a cluster file: the fields of `Cluster`, with a GPU of the catalogue or one of its own."""
    schema = json_schema(Cluster, without=("more",))
    own = schema["properties"]["gpu"]
    own["required"].remove("name")
    catalogue = {"enum": sorted(gpus()), "description": "A GPU of the catalogue."}
    schema["properties"]["gpu"] = {"anyOf": [catalogue, own]}
    schema["required"].remove("name")
    return schema | {"title": "Cluster file"}


SCHEMAS = {"schemas/plan-file.json": plan_file, "schemas/cluster-file.json": cluster_file}
"""{file of docs/: what gives it}."""

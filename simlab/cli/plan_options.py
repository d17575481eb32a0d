"""The options of a plan, for the command lines of simlab and of realrun, and for plan files.

Every option of a plan is a field of `simlab.Plan`: its name, type, choices, default and documentation
are the field's. A command uses this module in three steps:

1. `add_plan_options(parser)` adds `--plan FILE` and an option for each field. An option that is not
   given stays None in the parsed arguments, so that a command can tell what was given.
   `add_cluster_options(parser)` adds `--model`, `--cluster` and `--nodes`, and `add_batch_option(parser)`
   `--global-batch`.
2. `given_values(arguments)` is {name: value} of what the plan file says and, above it, of what the
   command line says. Names are those of the fields and of `CLUSTER_OPTIONS`, and those of `more`,
   which a command adds for options of its own that a plan file may have, too.
3. `Plan(**plan_part(given))` is the plan. It checks every value, so that a bad one is refused with
   the same words from the command line, from a file and in Python.

A plan file is plain YAML, with the names of fields as in Python (`microbatch_size: 2`). One file is
good for both programs: what only the other one reads (`REALRUN_ONLY`) is noted, not refused.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping
from math import inf
from pathlib import Path
from typing import Any

from simlab.cli.options import flag, value_text
from simlab.cli.text_files import plain_yaml
from simlab.errors import InputError, did_you_mean, number, require_whole, shortened
from simlab.spec.fields import FieldFacts, parsed
from simlab.spec.model import load_model
from simlab.spec.plan import Plan, plan_fields

FIELDS = {facts.name: facts for facts in plan_fields()}
"""{name of a field of `Plan`: what is known of it}."""
CLUSTER_OPTIONS = {
    "model": "a model of the catalogue, or the path of a Hugging Face config.json or of a YAML or JSON file of a model's fields",
    "cluster": "a cluster of the catalogue, or the path of a JSON file",
    "nodes": "the number of nodes (default: what the cluster's file says, else as many as the plan takes)",
}
"""{option: help} of what the plan trains, and on what."""
MOST_TEXT, MOST_STAGES = 4096, 10_000
"""The longest text and the longest list that a plan file may have."""
REALRUN_ONLY = (
    "layers",
    "hidden",
    "heads",
    "experts",
    "experts_per_token",
    "compute",
    "forward_ms",
    "backward_ms",
    "input_grad_ms",
    "weight_grad_ms",
    "link_ms",
    "link_gbps",
    "activation_cap",
    "time_scale",
    "backend",
    "predict_on",
    "steps",
    "warmup",
    "timeout",
    "out",
    "checkpoint_every",
    "checkpoints",
    "keep",
    "loss_scale",
)
"""Names in a plan file that only an execution needs."""
TEXTS = ("compute", "backend", "predict_on", "out", "checkpoints")
"""Those of them that are texts."""


def add_plan_options(
    parser: Any, *, skip: Iterable[str] = (), instead: Mapping[str, str] | None = None
) -> None:
    """Add `--plan` and an option for each field of `Plan` to `parser`, a parser or a group of one.

    skip: fields that the command has as options already. instead: {field: help} for those whose
    default the command derives from something else.
    """
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="a YAML file with the names of these options; the command line overrides it",
    )
    for name, facts in FIELDS.items():
        if name not in skip:
            text = (instead or {}).get(name) or help_text(facts)
            parser.add_argument(flag(name), type=_reader(facts), metavar=_metavar(facts), help=text)


def add_batch_option(parser: Any, text: str, *, required: bool = False) -> None:
    """Add `--global-batch`. text: what it decides."""
    help_text = f"the number of sequences in a step{text}"
    parser.add_argument("--global-batch", type=int, required=required, metavar="B", help=help_text)


def add_cluster_options(parser: Any, *, nodes: str = CLUSTER_OPTIONS["nodes"]) -> None:
    """Add `--model`, `--cluster` and `--nodes`, whose help is `nodes`."""
    for name, text in {**CLUSTER_OPTIONS, "nodes": nodes}.items():
        kind = int if name == "nodes" else str
        metavar = "N" if kind is int else "NAME"
        parser.add_argument(flag(name), type=kind, metavar=metavar, help=text)


def help_text(facts: FieldFacts) -> str:
    """What a field is, in its first sentence, with its choices and its default. The documentation
    of a field whose default is derived from other fields says all of it."""
    if facts.default is None:
        derived = facts.doc.replace("None stands for", "the default is")
        return derived.replace(". the", ". The").replace("%", "%%")
    text = facts.doc.partition(". ")[0].rstrip(".")
    if facts.choices and not _is_switch(facts):
        text += f": {', '.join(map(str, facts.choices))}"
    default = value_text(facts.default)
    return f"{text} (default {default})".replace("%", "%%")


def _metavar(facts: FieldFacts) -> str:
    if _is_switch(facts):
        return "{yes,no}"
    return "N" if facts.type in (int, int | None) else "X"


def _is_switch(facts: FieldFacts) -> bool:
    return facts.type is bool


def _reader(facts: FieldFacts) -> Callable[[str], Any]:
    """The function that makes a value of a text on the command line."""

    def read(text: str) -> Any:
        value = parsed(facts, text)
        if _is_switch(facts) and not isinstance(value, bool):
            raise argparse.ArgumentTypeError(f"{text!r}: give yes or no")
        return value

    return read


def given_values(arguments: argparse.Namespace, more: Iterable[str] = ()) -> dict[str, Any]:
    """{name: value} of what the plan file says and, above it, of what the command line does."""
    names = [*FIELDS, *CLUSTER_OPTIONS, *more]
    if arguments.plan == "":
        raise InputError("--plan '': give the path of a plan file")
    given = {} if arguments.plan is None else read_plan_file(arguments.plan, names)
    _divide_anew(arguments, given)
    said = {name: getattr(arguments, name, None) for name in names}
    given |= {name: value for name, value in said.items() if value is not None}
    return given | {name: model_given(given[name]) for name in ("model",) if name in given}


def _divide_anew(arguments: argparse.Namespace, of_file: Mapping[str, Any]) -> None:
    """Give stage_layers = 'auto', and say so once, where the plan file has a number for each stage and the
    command line other stages or layers."""
    its = of_file.get("stage_layers")
    if not isinstance(its, list) or getattr(arguments, "stage_layers", None) is not None:
        return
    usual = {name: FIELDS[name].default for name in ("pp", "chunks", "schedule")}
    its_own = usual | dict(of_file) | {"layers": sum(its)}
    said = {name: getattr(arguments, name, None) for name in (*usual, "layers")}
    if other := [flag(n) for n, v in said.items() if v is not None and v != its_own[n]]:
        arguments.stage_layers = "auto"
        text = (
            f"note: stage_layers: auto, as {arguments.plan} divides layers for another {other[0]}"
        )
        print(text, file=sys.stderr)


def plan_part(given: Mapping[str, Any]) -> dict[str, Any]:
    """The part of {name: value} that are fields of a plan."""
    return {name: value for name, value in given.items() if name in FIELDS}


def plan_lines(plan: Plan, said: Iterable[str]) -> list[str]:
    """The lines of a plan file: the fields in `said`, what is not the default, and what does not
    follow from these."""
    written = {name for name, facts in FIELDS.items() if name in said or _is_changed(plan, facts)}
    follows = Plan(**{name: getattr(plan, name) for name in written})
    written |= {name for name in FIELDS if getattr(follows, name) != getattr(plan, name)}
    lines = []
    for name in FIELDS:
        if name in written:
            value = getattr(plan, name)
            text = list(value) if isinstance(value, tuple) else value_text(value)
            lines.append(f"{name}: {text}")
    return lines


def _is_changed(plan: Plan, facts: FieldFacts) -> bool:
    """Whether a field has another value than its default; not if the default is derived."""
    value = getattr(plan, facts.name)
    if (facts.name == "chunks" and value > 1) or (facts.name == "etp" and plan.spreads_experts):
        return True
    return facts.default is not None and bool(value != facts.default)


WRITTEN_OUT = {
    f"{word}{model}_parallel": degree
    for degree, word in (
        ("tp", "tensor"),
        ("pp", "pipeline"),
        ("dp", "data"),
        ("cp", "context"),
        ("ep", "expert"),
    )
    for model in ("", "_model")
}
"""{a degree as other projects write it, without _size: the field}"""


def read_plan_file(path: str | Path, known: Iterable[str] = ()) -> dict[str, Any]:
    """{name: value} of the YAML file at `path`: plain values only, no code.

    known: the names that may be in it, besides those in `REALRUN_ONLY`. `InputError` if it cannot
    be read, is too long, is not YAML, has another name, a name twice, or an alias.
    """
    content = plain_yaml(path)
    if not isinstance(content, dict):
        raise InputError(f"{path} holds {type(content).__name__}, not 'name: value' lines")
    there_is = list(dict.fromkeys([*FIELDS, *CLUSTER_OPTIONS, *known]))
    for name, value in content.items():
        if name not in there_is and name not in REALRUN_ONLY:
            meant = WRITTEN_OUT.get(str(name).removesuffix("_size"), name)
            hint = did_you_mean(meant, [*there_is, *REALRUN_ONLY]) or ";"
            raise InputError(
                f"{path}: unknown name {shortened(name)}{hint} there is {', '.join(there_is)}"
            )
        if not _is_plain(value) and not (name == "model" and isinstance(value, dict)):
            raise InputError(
                f"{path}: {name} = {shortened(value)}: give a text, a finite number, yes or no"
                f"{', or a list of numbers' * (name == 'stage_layers')}"
            )
    for name, facts in FIELDS.items():
        numeric = facts.type in (int, int | None, float)
        if numeric and isinstance(content.get(name), bool):  # which Python takes for 0 or 1
            kind = "a number" if facts.type is float else "a whole number"
            raise InputError(f"{path}: {name} = {content[name]}: give {kind}")
    check_texts(content, path)
    if content.get("nodes") is not None:
        require_whole(f"{path}: nodes", content["nodes"])
    return {name: value for name, value in content.items() if value is not None}


def check_texts(content: Mapping[str, Any], path: str | Path) -> None:
    """Raise `InputError` unless what is a text in a plan file is one, and names a model, a cluster or a
    place."""
    for name in ("model", "cluster", *TEXTS):
        value = content.get(name)
        if not isinstance(value, str | None) and not (name == "model" and isinstance(value, dict)):
            valid = "a name or a path" if name in CLUSTER_OPTIONS else "a text, in quotes"
            table = ", or a table of a model's fields" * (name == "model")
            raise InputError(f"{path}: {name} = {shortened(value)}: give {valid}{table}")


def model_given(model: str | Mapping[str, Any]) -> str | Mapping[str, Any]:
    """What `load_model` takes of what a command line or a plan file says: of a YAML file its fields."""
    if isinstance(model, Mapping) or not model.endswith((".yaml", ".yml")):
        return model
    content = plain_yaml(model)
    if not isinstance(content, dict):
        raise InputError(f"{model} holds {type(content).__name__}, not 'name: value' lines")
    sizes = {"name": Path(model).stem} | content
    try:
        load_model(sizes)
    except InputError as error:
        raise InputError(f"{model}: {error}") from error
    return sizes


def _is_plain(value: Any) -> bool:
    """Whether `value` is what a line of a plan file may say: nothing, a truth value, a finite number,
    a text that a path can be, or a list of numbers."""
    if isinstance(value, list):
        return len(value) <= MOST_STAGES and all(map(number, value))
    if isinstance(value, str):
        return len(value) <= MOST_TEXT
    return value is None or isinstance(value, bool) or (number(value) and abs(value) < inf)

"""The command convert: a plan from another project's configuration, or for it."""

import argparse
import json
import sys
from collections import Counter
from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated, Any, TypedDict

from simlab.cli.config_files import config_text, read_config
from simlab.cli.options import add_json_options
from simlab.cli.output import print_json, write_file
from simlab.cli.plan_options import model_given, plan_lines, plan_part, read_plan_file
from simlab.display import plain
from simlab.errors import InputError, shortened
from simlab.planner.formats import FORMATS, Imported, exported, imported, recognised
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan

SEARCHED = ("dp", "tp", "pp", "cp", "zero", "microbatch_size", "microbatches", "recompute")
"""What a plan file says even where it is the default."""


class Answer(TypedDict):
    """A plan, the text that says it, and what was left out on the way."""

    plan: Annotated[dict[str, Any], Plan]
    unsaid: list[str]
    """What of the configuration no plan can say, in words."""
    left: list[str]
    """Options of the configuration that are known to be none of a plan."""
    unknown: list[str]
    """Options that nothing knows, with the nearest one that is known."""
    model: dict[str, Any] | None
    """{field of a model: value} where the configuration says one."""
    lost: dict[str, Any]
    """{field: its value in the plan} of what the configuration that was asked for cannot say."""
    settings: dict[str, Any] | None
    """That configuration; null without `--to`."""
    text: str


def convert(arguments: argparse.Namespace) -> int:
    """Make a plan of another project's configuration, or such a configuration of a plan.

    Without --from the file is a plan file, or a configuration whose options are those of one project
    only. Without --to a plan file is printed. What a plan or a configuration cannot say is named on
    stderr, and so are options that are none of a plan, and those that nothing knows. The model is written
    into the plan file where the configuration says one.
    """
    made = _made(arguments)
    plan = made.plan
    settings: dict[str, Any] | None = None
    unsaid: dict[str, Any] = {}
    sizes = _sizes(made.model, Path(arguments.file).stem)
    if arguments.to is None:
        lines = [f"model: {json.dumps(sizes)}"] if sizes else []
        text = "\n".join([*lines, *plan_lines(plan, SEARCHED)]) + "\n"
    else:
        layers, said = None, plan
        if made.model is not None:
            layers, said = made.model.layers, replace(plan, seq=plan.seq or made.model.seq)
        settings, unsaid = exported(arguments.to, said, layers)
        text = config_text(settings, FORMATS[arguments.to].syntax)
    if arguments.out:
        write_file(arguments.out, lambda path: path.write_text(text, encoding="utf-8"))
    lost = [f"{field} = {value}" for field, value in unsaid.items()]
    if {"chunks", "stage_layers"} & {*unsaid} and made.model is None:
        lost.append("the layers of stages without a model: give the plan file one")
    for note in [*made.unsaid, *lost]:
        print(f"not said: {note}", file=sys.stderr)
    for option in made.unknown:
        print(f"not understood: {option}", file=sys.stderr)
    if made.left:
        print(f"not of a plan: {', '.join(made.left)}", file=sys.stderr)
    if arguments.json:
        answer: Answer = {
            "plan": plan.to_dict(),
            "unsaid": made.unsaid,
            "left": made.left,
            "unknown": made.unknown,
            "model": sizes,
            "lost": plain(unsaid),
            "settings": settings,
            "text": text,
        }
        print_json(answer)
    else:
        print(text, end="")
    return int(arguments.strict and bool(made.unsaid or lost or made.unknown))


def _sizes(model: Model | None, name: str) -> dict[str, Any] | None:
    """{field: value} of a model, without what is the default."""
    if model is None:
        return None
    usual = {one.name: plain(one.default) for one in fields(Model)}
    sizes = {field: its for field, its in model.to_dict().items() if its != usual[field]}
    return {"name": name} | sizes


def _made(arguments: argparse.Namespace) -> Imported:
    """The plan of the file, and what else there is in it."""
    given = dict(_pair(text) for text in arguments.set or ())
    source = arguments.source or _project_of(arguments, given)
    if source is None:
        if given:
            raise InputError("--set goes with --from: change the plan file")
        content = read_plan_file(arguments.file)
        own = plan_part(content)
        beside = [
            f"{name} = {shortened(value)}" for name, value in content.items() if name not in own
        ]
        plan, named = Plan(**own), content.get("model")
        model = load_model(model_given(named)) if named else None
        return Imported(plan, [], beside, [], model)
    content = read_config(arguments.file, FORMATS[source].syntax, given)
    try:
        return imported(source, content, gpus=arguments.gpus)
    except InputError as error:
        raise InputError(f"{shortened(arguments.file)}: {error}") from error


def _project_of(arguments: argparse.Namespace, given: Mapping[str, str]) -> str | None:
    """The one project that has options of the file which no other has, said on stderr; None for a plan
    file. `InputError` where there are several, or where the file is neither."""
    path = arguments.file
    try:
        read_plan_file(path)
    except InputError as error:
        no_plan = error
    else:
        if arguments.to is None:
            raise InputError(f"{path} is a plan file: give --to, one of {', '.join(FORMATS)}")
        return None
    names: dict[str, set[str]] = {}
    errors: set[str] = set()
    for project, form in FORMATS.items():
        if path.endswith(".toml") and form.syntax != "toml":
            continue
        try:
            names[project] = recognised(project, read_config(path, form.syntax, given))
        except InputError as error:
            errors.add(str(error))
    having = Counter(option for its in names.values() for option in its)
    fitting = [one for one, its in names.items() if any(having[option] == 1 for option in its)]
    if len(fitting) == 1:
        print(f"{path} has options of {fitting[0]}: --from {fitting[0]}", file=sys.stderr)
        return fitting[0]
    if fitting:
        raise InputError(f"{path} has options of {' and of '.join(fitting)}: give --from")
    if arguments.to is not None:
        raise no_plan
    if not names and len(errors) == 1:
        raise InputError(errors.pop())
    raise InputError(
        f"{path} is no plan file, and has no options of one project only: give --from, one of "
        f"{', '.join(FORMATS)}"
    )


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InputError(f"--set {shortened(text)}: give NAME=VALUE")
    return name, value


def add_convert(command: argparse.ArgumentParser) -> None:
    """Add the arguments of `convert`."""
    command.add_argument("file", metavar="FILE", help="a plan file, or a configuration")
    command.add_argument(
        "--from",
        dest="source",
        choices=FORMATS,
        help="the project that FILE configures (default: the one that has its options)",
    )
    command.add_argument("--to", choices=FORMATS, help="the project to write a configuration for")
    command.add_argument(
        "--gpus",
        type=int,
        metavar="N",
        help="the number of GPUs, where a configuration leaves it to its launcher",
    )
    command.add_argument(
        "--set",
        action="append",
        metavar="NAME=VALUE",
        help="a variable of a script, or an option by its full name, above what FILE says (more than once)",
    )
    command.add_argument(
        "--strict",
        action="store_true",
        help="exit status 1 where something is not said or not understood",
    )
    command.add_argument("--out", metavar="FILE", help="also write the result there")
    add_json_options(command, Answer)

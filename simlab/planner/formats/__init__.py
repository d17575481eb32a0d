"""Plans as the configurations of other projects say them, and back.

The names of options are those of the projects' own code. What a format cannot say of a plan, and
what of a configuration no plan can say, is named.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from simlab.errors import InputError, did_you_mean, shortened
from simlab.planner.formats import deepspeed, megatron, nanotron, torchtitan
from simlab.planner.formats.known import known_of
from simlab.planner.formats.options import Options, Settings
from simlab.planner.space import DEFAULTS, without_effect
from simlab.spec.model import Model
from simlab.spec.plan import Plan


class Format(NamedTuple):
    """How one project is configured."""

    read: Callable[[Options, int | None], Settings]
    """(options, number of GPUs or None) → {field of a plan: value}"""
    written: Callable[[Plan, int | None], Settings]
    """(a plan, the layers of its model where that is known) → the options that say it."""
    syntax: str
    """What its files are: 'arguments', 'toml', 'json' or 'yaml'."""
    model: Callable[[Options, Settings], Settings | None]
    """(options that are left, fields of the plan) → {field of a `Model`: value}; None where the
    configuration does not say a model."""


FORMATS = {
    "megatron": Format(
        megatron.read, lambda plan, _: megatron.written(plan), "arguments", megatron.read_model
    ),
    "torchtitan": Format(torchtitan.read, torchtitan.written, "toml", torchtitan.read_model),
    "deepspeed": Format(
        deepspeed.read, lambda plan, _: deepspeed.written(plan), "json", lambda *_: None
    ),
    "nanotron": Format(
        nanotron.read, lambda plan, _: nanotron.written(plan), "yaml", nanotron.read_model
    ),
}


class Imported(NamedTuple):
    """A plan that was made of a configuration."""

    plan: Plan
    unsaid: list[str]
    """What of its options a plan cannot say, and was left out, in words."""
    left: list[str]
    """Its options that are known to be none of a plan, such as the learning rate."""
    unknown: list[str]
    """Its options that nothing knows, with the nearest one that is known."""
    model: Model | None
    """The model that it says, where it says one."""


class Exported(NamedTuple):
    """A configuration that was made of a plan."""

    settings: Settings
    """{option or section: value or {option: value}}"""
    unsaid: dict[str, Any]
    """{field: its value in the plan} of what the configuration cannot say."""


def format_called(text: str) -> Format:
    """The `Format` of a project. `InputError` for one that is not known."""
    if text not in FORMATS:
        hint = did_you_mean(text, FORMATS) or ";"
        raise InputError(f"unknown format {text!r}{hint} there is {', '.join(FORMATS)}")
    return FORMATS[text]


def recognised(project: str, content: Mapping[str, Any]) -> set[str]:
    """The options of a configuration that are a project's, whether or not a plan can be made of them."""
    options = Options(content)
    names = options.names
    with suppress(InputError):
        format_called(project).read(options, 1)
    return {*options.recognised(names, known_of(project))}


def imported(project: str, content: Mapping[str, Any], *, gpus: int | None = None) -> Imported:
    """The plan that a configuration says.

    project: a name in `FORMATS`. content: its options, {option or section: value or table}.
    gpus:    the number of GPUs, where the configuration leaves it to the launcher.

    Raises `InputError` for a value that cannot be, or a plan that cannot.
    """
    options = Options(content)
    names = options.names
    try:
        fields = format_called(project).read(options, gpus)
    except InputError:
        if names and not options.sections(names, known_of(project)):
            raise _of_another(project, names) from None
        raise
    given = {field: value for field, value in fields.items() if value != DEFAULTS[field]}
    idle = without_effect(given)
    plan = Plan(**{field: value for field, value in given.items() if field not in idle})
    sizes = format_called(project).model(options, fields)
    model = None if sizes is None else Model(**sizes)
    if names and not options.recognised(names, known_of(project)):
        raise _of_another(project, names)
    left, unknown = options.rest(known_of(project))
    return Imported(plan, options.unsaid, left, unknown, model)


def _of_another(project: str, names: Sequence[str]) -> InputError:
    return InputError(
        f"none of the file's options is one of {project}'s, such as {shortened(names[0])}: is it a "
        f"configuration of {project}?"
    )


def exported(project: str, plan: Plan, layers: int | None = None) -> Exported:
    """The configuration that says a plan, as far as it can. layers: those of the model.

    Whether it says a field is found by reading it again: what then differs is named.
    """
    settings = format_called(project).written(plan, layers)
    again = imported(project, settings, gpus=plan.gpus).plan
    differ = [field for field in DEFAULTS if getattr(again, field) != getattr(plan, field)]
    if "stage_layers" in differ and layers is not None:
        with suppress(InputError):
            if again.layers_of_stages(layers) == plan.layers_of_stages(layers):
                differ.remove("stage_layers")
    return Exported(settings, {field: getattr(plan, field) for field in differ})

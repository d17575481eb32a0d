"""Plans as the configurations of other projects say them, and back.

The names of options are those of the projects' own code. What a format cannot say of a plan, and
what of a configuration no plan can say, is named.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from simlab.errors import InputError, did_you_mean
from simlab.planner.formats import deepspeed, megatron, nanotron, torchtitan
from simlab.planner.formats.options import Options, Settings
from simlab.planner.space import DEFAULTS, without_effect
from simlab.spec.plan import Plan


class Format(NamedTuple):
    """How one project is configured."""

    read: Callable[[Options, int | None], Settings]
    """(options, number of GPUs or None) → {field of a plan: value}"""
    written: Callable[[Plan], Settings]
    """A plan → the options that say it."""
    syntax: str
    """What its files are: 'arguments', 'toml', 'json' or 'yaml'."""


FORMATS = {
    "megatron": Format(megatron.read, megatron.written, "arguments"),
    "torchtitan": Format(torchtitan.read, torchtitan.written, "toml"),
    "deepspeed": Format(deepspeed.read, deepspeed.written, "json"),
    "nanotron": Format(nanotron.read, nanotron.written, "yaml"),
}


class Imported(NamedTuple):
    """A plan that was made of a configuration."""

    plan: Plan
    unsaid: list[str]
    """What of its options a plan cannot say, and was left out, in words."""
    left: list[str]
    """Its options that are none of a plan, such as the learning rate."""


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


def imported(project: str, content: Mapping[str, Any], *, gpus: int | None = None) -> Imported:
    """The plan that a configuration says.

    project: a name in `FORMATS`. content: its options, {option or section: value or table}.
    gpus:    the number of GPUs, where the configuration leaves it to the launcher.

    Raises `InputError` for a value that cannot be, or a plan that cannot.
    """
    options = Options(content)
    fields = format_called(project).read(options, gpus)
    given = {field: value for field, value in fields.items() if value != DEFAULTS[field]}
    idle = without_effect(given)
    plan = Plan(**{field: value for field, value in given.items() if field not in idle})
    return Imported(plan, options.unsaid, options.left)


def exported(project: str, plan: Plan) -> Exported:
    """The configuration that says a plan, as far as it can.

    Whether it says a field is found by reading it again: what then differs is named.
    """
    settings = format_called(project).written(plan)
    again = imported(project, settings, gpus=plan.gpus).plan
    differ = [field for field in DEFAULTS if getattr(again, field) != getattr(plan, field)]
    return Exported(settings, {field: getattr(plan, field) for field in differ})

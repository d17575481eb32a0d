"""Fields of data classes that carry their own documentation.

A string under a field is invisible to `help()`. A documented field keeps its text, and its choices
if it has a fixed set of them, as metadata. From there it reaches the docstring of the class, the
JSON schema and the command line.
"""

from dataclasses import MISSING, Field, field, fields
from inspect import cleandoc
from math import inf
from textwrap import fill
from types import UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_origin, get_type_hints

from simlab.schema import DRAFT, schema

T = TypeVar("T")


class Derived(int):
    """A number that a data class derived from its other fields, because none was given.

    `dataclasses.replace` hands every field to the new object as if it was given. By this type the
    class tells that the number was not, and derives it anew.
    """


class FieldFacts(NamedTuple):
    """What is known of one documented field."""

    name: str
    type: Any
    """The annotation, such as `int` or `str | tuple[int, ...]`."""
    choices: tuple[Any, ...] | None
    """All values that are valid, or None where there are too many to list."""
    default: Any
    """The default, or `dataclasses.MISSING` where a value must be given."""
    doc: str


def documented(doc: str, *, choices: tuple[Any, ...] | None = None, **options: Any) -> Any:
    """A data class field with its documentation `doc` in full sentences. options: those of
    `dataclasses.field`, such as `default`."""
    return field(metadata={"doc": " ".join(doc.split()), "choices": choices}, **options)


def short_repr(value: Any) -> str:
    """'Kind(name=..., ...)' of a data class with the fields that differ from their defaults, without
    sources and without what its `field(repr=False)` leaves out."""
    shown = [
        f"{one.name}={getattr(value, one.name)!r}"
        for one in fields(value)
        if one.repr and one.name != "source" and getattr(value, one.name) != _default(one)
    ]
    return f"{type(value).__name__}({', '.join(shown)})"


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def with_field_docs(cls: type[T]) -> type[T]:
    """The data class `cls` with the documentation of its fields appended to its docstring."""
    lines = [cleandoc(cls.__doc__ or ""), "", "Fields:"]
    for facts in documented_fields(cls):
        default = "" if facts.default is MISSING else f" = {facts.default!r}"
        lines.append(f"    {facts.name}: {_type_text(facts.type)}{default}")
        choices = facts.choices and f" One of {', '.join(map(repr, facts.choices))}."
        text = facts.doc + (choices or "")
        indent = " " * 8
        lines.append(
            fill(text, 92, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
        )
    cls.__doc__ = "\n".join(lines)
    return cls


def documented_fields(cls: type) -> list[FieldFacts]:
    """[`FieldFacts` of each documented field of the data class `cls`], in order."""
    types = get_type_hints(cls, localns={cls.__name__: cls})
    return [
        FieldFacts(
            one.name, types[one.name], one.metadata["choices"], _default(one), one.metadata["doc"]
        )
        for one in fields(cls)
        if "doc" in one.metadata
    ]


def json_schema(cls: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The JSON schema (draft 2020-12) of the documented fields of the data class `cls`, but for
    those in `without`: an object with a property for each field and no other."""
    return {"$schema": DRAFT, "title": cls.__name__} | as_written(cls, without)


def as_written(cls: type, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The part of a schema that says what a user may write for `cls`: a field with a default may be left
    out."""
    facts = [its for its in documented_fields(cls) if its.name not in without]
    return {
        "type": "object",
        "properties": {its.name: _property(its) for its in facts},
        "required": [its.name for its in facts if its.default is MISSING],
        "additionalProperties": False,
    }


def _property(facts: FieldFacts) -> dict[str, Any]:
    kinds = get_args(facts.type) if isinstance(facts.type, UnionType) else (facts.type,)
    names = [schema(kind, as_written) for kind in kinds]
    if facts.default is None and {"type": "null"} not in names:
        names.append({"type": "null"})
    shape: dict[str, Any] = names[0] if len(names) == 1 else {"anyOf": names}
    if facts.choices is not None:
        shape = {"enum": list(facts.choices)}
    said = facts.default is not MISSING and facts.default != inf  # which JSON cannot say
    default = {"default": facts.default} if said else {}
    return shape | default | {"description": facts.doc}


def parsed(facts: FieldFacts, text: str) -> Any:
    """The value that `text` stands for, as it is written on a command line: a number, 'yes' or
    'no', a name, or several numbers with commas between them. What cannot be read is returned as it
    is, for the class to refuse."""
    kinds = get_args(facts.type) or (facts.type,)
    if bool in kinds:
        return {"yes": True, "no": False}.get(text.lower(), text)
    several = any(get_origin(kind) is tuple for kind in kinds)
    try:
        if several and ("," in text or text.lstrip("-").isdigit()):
            return tuple(int(part) for part in text.split(","))
        if float in kinds:
            return float(text)
        return int(text) if int in kinds else text
    except ValueError:
        return text


def _type_text(annotation: Any) -> str:
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)

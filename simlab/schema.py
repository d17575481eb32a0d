"""The JSON schema of a value, made from its type: what `simlab.display.plain` writes of it.

What a command prints has a type that names its keys: a TypedDict where the object is put together by
hand, or the data class or NamedTuple that `plain` takes apart. So no schema is typed.
"""

import ast
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from itertools import pairwise
from math import inf
from textwrap import dedent
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

Schema = dict[str, Any]
DRAFT = "https://json-schema.org/draft/2020-12/schema"
NAMES = {bool: "boolean", int: "integer", float: "number", str: "string", NoneType: "null"}
"""{type: its name in a JSON schema}"""

MaybeNan = Annotated[float, {"type": ["number", "null"]}]
"""A number that may be infinite or none, for which JSON has null."""


def object_schema(cls: Any, without: Sequence[str] = ()) -> Schema:
    """The schema of the object that is printed of a data class, a NamedTuple or a TypedDict: it has all
    keys but those in `without` and those that are `NotRequired`, and no other. Descriptions are the
    docstring of the class and the strings below its fields."""
    infinite, texts = set(), _texts(cls)
    if is_dataclass(cls):
        infinite = {one.name for one in fields(cls) if one.default == inf}
        texts |= {one.name: one.metadata["doc"] for one in fields(cls) if "doc" in one.metadata}
    hints = get_type_hints(cls, localns={cls.__name__: cls}, include_extras=True)
    left_out: frozenset[str] = getattr(cls, "__optional_keys__", frozenset())
    properties: Schema = {}
    required: list[str] = []
    for name, hint in hints.items():
        if name in without:
            continue
        if get_origin(hint) is NotRequired:
            (hint,) = get_args(hint)
        elif name not in left_out:
            required.append(name)
        its = schema(hint | None if name in infinite else hint)
        properties[name] = its | ({"description": texts[name]} if name in texts else {})
    return _described(cls) | {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


def schema(kind: Any, of_class: Callable[[Any], Schema] = object_schema) -> Schema:
    """The schema of a value of the type `kind`. of_class: gives that of a class.

    An annotation with a tuple, such as `Annotated[str, ("a", "b")]`, names all values. One with classes or
    schemas, such as `Annotated[dict[str, Any], Gap, Text]`, stands for an object with the keys of all of
    them.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _annotated(inner[1:], of_class)
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one, of_class) for one in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin is tuple and inner[-1] is not Ellipsis:
        items = [schema(one, of_class) for one in inner]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(inner)}
    if origin in (tuple, list, Sequence):
        return {"type": "array", "items": schema(inner[0], of_class)}
    if origin in (dict, Mapping):
        return {"type": "object", "additionalProperties": schema(inner[1], of_class)}
    if kind is Any:
        return {}
    return {"type": NAMES[kind]} if kind in NAMES else of_class(kind)


def _annotated(notes: Sequence[Any], of_class: Callable[[Any], Schema]) -> Schema:
    if isinstance(notes[0], tuple):
        return {"enum": list(notes[0])}
    first, *others = (one if isinstance(one, dict) else of_class(one) for one in notes)
    for other in others:
        properties = first["properties"] | other["properties"]
        required = [*first["required"], *other["required"]]
        first = first | {"properties": properties, "required": required}
    return first


def _described(cls: Any) -> Schema:
    """The first paragraph of the docstring of a class, if somebody wrote one."""
    text = inspect.getdoc(cls) or ""
    is_written = "__doc__" in vars(cls) and not text.startswith(f"{cls.__name__}(")
    paragraph = " ".join(text.partition("\n\n")[0].split())
    return {"description": paragraph} if is_written and paragraph else {}


def _texts(cls: Any) -> dict[str, str]:
    """{field: the string below it} of a class and of the TypedDicts that it is made of."""
    found: dict[str, str] = {}
    for base in getattr(cls, "__orig_bases__", ()):
        found |= _texts(base) if is_typeddict(base) else {}
    (written,) = ast.parse(dedent(inspect.getsource(cls))).body
    for field, text in pairwise(getattr(written, "body", ())):
        if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
            name, said = ast.unparse(field.target), ast.literal_eval(text.value)
            found[name] = " ".join(said.split())
    return found

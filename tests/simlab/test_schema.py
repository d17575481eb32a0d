"""The schema of a type takes what is printed of its values, and nothing else."""

from dataclasses import dataclass
from math import inf
from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import pytest
from jsonschema import Draft202012Validator

from simlab.display import facts_of, plain
from simlab.schema import MaybeNan, object_schema, schema


class Point(NamedTuple):
    """A place.

    Not said.
    """

    x: float
    """To the
    right."""
    at: tuple[int, str]


@dataclass
class Box:
    points: list[Point]
    size: float = inf
    label: str | None = None

    @property
    def count(self) -> int:
        return len(self.points)


class More(TypedDict):
    kind: Annotated[str, ("a", "b")]


class Facts(More):
    """A box."""

    count: int
    box: Annotated[dict[str, Any], Box, More]
    by_name: dict[str, Point | Literal[False]]
    error: MaybeNan
    note: NotRequired[str]


BOX = Box([Point(1.0, (2, "x"))])
GOOD = {
    "kind": "a", "count": 1, "box": plain(BOX) | {"size": None, "kind": "b"}, "by_name": {"p": False}, "error": None,
}  # fmt: skip


def test_a_value_holds_its_schema():
    validator = Draft202012Validator(schema(Facts))
    validator.check_schema(validator.schema)
    validator.validate(GOOD)
    validator.validate(GOOD | {"note": "", "by_name": {"p": plain(BOX.points[0])}})


@pytest.mark.parametrize(
    "wrong",
    [{"kind": "c"}, {"count": 0.5}, {"box": plain(BOX)}, {"by_name": {"p": True}}, {"note": None},
     {"by_name": {"p": {"x": 1, "at": [1]}}}, {"another": 1}],
)  # fmt: skip
def test_another_value_does_not(wrong):
    assert not Draft202012Validator(schema(Facts)).is_valid(GOOD | wrong)


def test_a_key_can_be_left_out_only_where_its_type_says_so():
    for key in GOOD:
        left = {name: its for name, its in GOOD.items() if name != key}
        assert not Draft202012Validator(schema(Facts)).is_valid(left), key


def test_descriptions_are_those_of_the_code():
    its = object_schema(Point)
    assert its["description"] == "A place." and "description" not in object_schema(Box)
    assert its["properties"]["x"]["description"] == "To the right."
    assert [*object_schema(Point, without=("x",))["properties"]] == ["at"]


def test_facts_are_attributes_or_given():
    found = facts_of(BOX, Facts, kind="a", box={}, by_name={}, error=0.0, note="")
    assert found == {"kind": "a", "count": 1, "box": {}, "by_name": {}, "error": 0.0, "note": ""}

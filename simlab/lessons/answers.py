"""It says when two answers to an exercise are the same."""

from collections.abc import Mapping
from numbers import Real
from typing import Any

TOLERANCE = 0.01
"""The largest relative difference between a right number and an attempt's."""


def alike(found: Any, expected: Any) -> bool:
    """Whether two answers are the same: numbers within `TOLERANCE` of the expected one, everything
    else exactly; in tables and sequences part by part."""
    if isinstance(expected, bool) or expected is None or isinstance(expected, str):
        return bool(found == expected)
    if isinstance(expected, Real):
        close = isinstance(found, Real) and not isinstance(found, bool)
        return (
            close
            and abs(float(found) - float(expected)) <= TOLERANCE * abs(float(expected)) + 1e-12
        )
    if isinstance(expected, Mapping):
        same = isinstance(found, Mapping) and {*found} == {*expected}
        return same and all(alike(found[name], expected[name]) for name in expected)
    if isinstance(expected, list | tuple):
        same = isinstance(found, list | tuple) and len(found) == len(expected)
        return same and all(map(alike, found, expected))
    return bool(found == expected)

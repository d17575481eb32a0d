"""One message of a collective."""

from collections.abc import Hashable
from typing import NamedTuple

Part = Hashable
"""A part of the buffer: its number or, in a hierarchical collective, (part, piece of the part)."""


class Transfer(NamedTuple):
    """`size_bytes` from `source` to `destination`; `parts`: which parts of the buffer, so that a
    test can add up what arrives."""

    source: int
    destination: int
    size_bytes: float
    parts: tuple[Part, ...] = ()
    adds: bool = False
    """Whether the destination adds what it gets to what it has (reducing), or puts it in place."""


Rounds = list[list[Transfer]]
"""The transfers of each round; those of a round are independent of each other."""

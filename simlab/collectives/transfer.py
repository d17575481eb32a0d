"""One message of a collective."""

from typing import NamedTuple


class Transfer(NamedTuple):
    """`size_bytes` from `source` to `destination`; `parts`: which parts of the buffer, so that a test can add up what arrives."""

    source: int
    destination: int
    size_bytes: float
    parts: tuple[int, ...] = ()
    adds: bool = False
    """Whether the destination adds what it gets to what it has (reducing), or puts it in place."""

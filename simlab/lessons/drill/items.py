"""The drill's questions. An item is what can be asked; posed with a seed, it has its numbers."""

from collections.abc import Sequence

from simlab.lessons.drill import rounds, single
from simlab.lessons.drill.posed import Item, Posed

SHORT = ("exercise", "aloud", "case", "prediction")
"""The kinds of one question each, which a drill asks where no kind is chosen."""
KINDS = (*SHORT, *rounds.KINDS)
"""The kinds of items."""


def items(kinds: Sequence[str] = SHORT) -> list[Item]:
    """All of these kinds that can be asked now."""
    return [item for item in [*single.items(), *rounds.items()] if item.kind in kinds]


def pose(item: Item, seed: str) -> Posed:
    """The question of an item, or of a part of one, with the numbers of `seed`: the same ones for the same
    seed."""
    return rounds.pose(item, seed) if item.kind in rounds.KINDS else single.pose(item, seed)

"""A whiteboard case: a situation with numbers that are drawn anew, and stages that are computed by hand.

What is right at each stage is what the simulator says. A calculation by hand, which the hints lead to,
comes within the stage's tolerance of it.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import sqrt
from random import Random
from typing import NamedTuple

ROUGH, ROUGHER = 0.10, 0.20
"""The relative error that a whiteboard allows: of a count of bytes, and of a time to which several
estimates add up."""
NEAR_ALL = 0.02
"""Of a part that is nearly all: a wider one would take any guess."""
NAME = re.compile(r"[a-z_][a-z_0-9]*")
FUNCTIONS = {"min": min, "max": max, "sqrt": sqrt}

Value = float | str


class Stage(NamedTuple):
    """One question of a case. Its texts are `boards.CASE.stages.NAME` in the words.

    hand:      how it is computed by hand, in the names of what is given and of earlier stages; "" for a
               choice.
    unit:      of the answer.
    tolerance: the largest relative error of an answer that counts as right.
    options:   the answers of a choice, named `boards.CASE.options.OPTION`; none where a number is asked.
    """

    name: str
    hand: str = ""
    unit: str = ""
    tolerance: float = ROUGH
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class Drawn:
    """A case with its numbers.

    given:    {name: what the learner is told}, as it is written.
    expected: {stage: the right answer}, as the simulator has it.
    rows:     a table that belongs to the case, or nothing.
    """

    given: Mapping[str, Value]
    expected: Mapping[str, Value]
    rows: Sequence[Sequence[str]] = field(default_factory=tuple)

    def known(self, stages: Sequence[Stage]) -> dict[str, Value]:
        """What is on the board after some stages: what was given, and their right answers."""
        return {**self.given, **{stage.name: self.expected[stage.name] for stage in stages}}


@dataclass(frozen=True)
class Board:
    """A whiteboard case. draw: random numbers → the case with them."""

    name: str
    stages: tuple[Stage, ...]
    draw: Callable[[Random], Drawn]

    def drawn(self, seed: str) -> Drawn:
        """The case with the numbers of `seed`."""
        return _drawn(self, seed)

    def before(self, stage: Stage) -> tuple[Stage, ...]:
        """The stages that come before one."""
        return self.stages[: self.stages.index(stage)]


@lru_cache(32)  # each stage of a case asks for it, and it may be seconds of simulation
def _drawn(board: Board, seed: str) -> Drawn:
    return board.draw(Random(f"board {board.name} {seed}"))


def by_hand(hand: str, known: Mapping[str, Value]) -> float:
    """The value of a calculation, such as "parameters / tp", with what is known."""
    numbers = {name: value for name, value in known.items() if not isinstance(value, str)}
    return float(eval(hand, {"__builtins__": {}}, {**FUNCTIONS, **numbers}))


def written(hand: str, known: Mapping[str, Value]) -> str:
    """A calculation with its numbers in place of names, as it would stand on a whiteboard."""

    def number(match: re.Match[str]) -> str:
        value = known.get(match[0], match[0])
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    return NAME.sub(number, hand).replace("**", "^").replace("*", "×")

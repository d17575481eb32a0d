"""Whiteboard cases: numbers that are drawn anew, computed by hand in stages, checked by the simulator."""

from simlab.errors import InputError
from simlab.lessons.drill.boards.board import Board, Stage, by_hand, written
from simlab.lessons.drill.boards.models import DEEPSEEK_V3, LLAMA3, MILLION
from simlab.lessons.drill.boards.running import BUDGET, FELL, HANG

BOARDS = {one.name: one for one in (LLAMA3, DEEPSEEK_V3, MILLION, FELL, HANG, BUDGET)}
"""{name: whiteboard case}."""


def board(name: str) -> Board:
    """The case of that name. `InputError` if there is none."""
    if name not in BOARDS:
        raise InputError(f"a whiteboard case {name!r}: choose one of {', '.join(BOARDS)}")
    return BOARDS[name]


__all__ = ["BOARDS", "Board", "Stage", "board", "by_hand", "written"]

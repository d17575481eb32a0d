"""The puzzle as a widget, with the learner's own best orders."""

from dataclasses import replace
from functools import partial
from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers.puzzle import EXPLORER, Attempt, answer, as_text, attempt
from simlab.lessons import progress
from simlab.views import timeline

STEP, HELD, ORDER = "step_s", "held", "order"
"""The fields of what is kept of a level."""


def best(found: Attempt) -> tuple[float, float] | None:
    """(the step in seconds, the most microbatches held by a rank) of the best order that the learner
    has found of this level, the one in `found` included; None before the first one within the cap.
    The shorter step counts, and of equal steps the one that holds less. It is kept with the
    learner's progress."""
    level = found.level.name.en
    kept = progress.load()["puzzle"].get(level)
    before = (kept[STEP], kept[HELD]) if kept else None
    if not found.solved or found.trace is None:
        return before
    now = (found.trace.step_s, found.held)
    if before and before <= now:
        return before
    progress.keep("puzzle", level, {STEP: now[0], HELD: now[1], ORDER: as_text(found.order)})
    return now


class PuzzleBoard(ExplorerWidget):
    """The ops of a small pipeline as tiles: drag them so that the step is short, within a cap on
    memory. `simlab.studies.puzzle.Puzzle` judges the order.

    values: `level`, from 1 on, and `order`, a program as text with one line for each rank; a
            program of other ops than the level's begins at the level's start. `tongue` is 'en' or
            'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(replace(EXPLORER, answer=partial(answer, best=best)), **values)

    def still(self) -> Any:
        """The order's timeline as a matplotlib Figure; None while no rank can go on."""
        found = attempt(self.state)
        return timeline(found.trace) if found.trace else None

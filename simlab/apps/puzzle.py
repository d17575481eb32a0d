"""The puzzle as a widget, and the table of its levels: par, and the learner's own best orders."""

from dataclasses import replace
from functools import partial
from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.apps.lesson_cells import table
from simlab.apps.screen import session, show
from simlab.explorers.puzzle import (
    CLOSE,
    EXPLORER,
    LEVELS,
    Attempt,
    Level,
    answer,
    as_text,
    attempt,
)
from simlab.lessons import progress
from simlab.lessons.words import language, rendered, word
from simlab.units import seconds_text
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
    begun = as_text(found.order) == found.level.puzzle.start  # nobody has moved anything yet
    if not found.solved or found.trace is None or begun:
        return before
    now = (found.trace.step_s, found.held)
    if before and before <= now:
        return before
    progress.keep("puzzle", level, {STEP: now[0], HELD: now[1], ORDER: as_text(found.order)})
    session().retell()
    return now


def puzzle_bests() -> None:
    """Show the table of all levels: how long a step par takes and how many microbatches a rank holds
    at most under it, and the same of the learner's best order. A better order changes it at once. In
    a copy that is made for reading, nobody's orders are shown."""
    show(_bests_html)


def _bests_html() -> str:
    kept = {} if rendered() else progress.load()["puzzle"]
    heads = ("level", "par_step", "par_held", "best_step", "best_held")
    rows = [[word(f"puzzle.{name}") for name in (*heads, "verdict")]]
    rows += [_level_row(level, kept.get(level.name.en)) for level in LEVELS]
    return table(rows)


def _level_row(level: Level, kept: dict[str, Any] | None) -> list[str]:
    """A level, its par, the learner's best order, and how that compares."""
    puzzle = level.puzzle
    par = (puzzle.shortest_s, puzzle.least_held)
    head = [level.name._asdict()[language()], seconds_text(par[0]), f"{par[1]:g}"]
    if kept is None:
        return [*head, "–", "–", ""]
    step_s, held = kept[STEP], kept[HELD]
    if step_s > par[0] * CLOSE:
        reached = "longer"
    elif step_s < par[0] / CLOSE or held < par[1]:
        reached = "better"
    else:
        reached = "time" if held > par[1] else "both"
    return [*head, seconds_text(step_s), f"{held:g}", word(f"puzzle.{reached}")]


class PuzzleBoard(ExplorerWidget):
    """The ops of a small pipeline as tiles: drag them so that the step is short, within a cap on
    memory. `simlab.studies.puzzle.Puzzle` judges the order.

    values: `level`, from 1 on, and `order`, a program as text with one line for each rank; a
            program of other ops than the level's begins at the level's start. `tongue` is 'en' or
            'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(replace(EXPLORER, answer=partial(answer, best=best)), **values)

    def still(self, tongue: str | None = None) -> Any:
        """The order's timeline as a matplotlib Figure; None while no rank can go on."""
        found = attempt(self.state)
        return self.in_tongue(timeline(found.trace), tongue) if found.trace else None

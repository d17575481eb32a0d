"""The interactive parts of the lessons. They show what the public API computes, and compute nothing
themselves."""

from simlab.apps.cells import gib, ms, percent, report, say, table
from simlab.apps.drill import Drill
from simlab.apps.held import after
from simlab.apps.lesson_cells import closing, exercise, figures, for_class, predict, tongue
from simlab.apps.lesson_map import lesson_map
from simlab.apps.memory import MemoryExplorer
from simlab.apps.parallelism import (
    BucketExplorer,
    CausalMask,
    CollectiveExplorer,
    ContextExplorer,
    MatrixSplit,
    RingExplorer,
    ZeroGrid,
)
from simlab.apps.pipeline import PipelineExplorer
from simlab.apps.plan import ChallengeExplorer, PlanExplorer
from simlab.apps.puzzle import PuzzleBoard, puzzle_bests

__all__ = [
    "BucketExplorer",
    "CausalMask",
    "ChallengeExplorer",
    "CollectiveExplorer",
    "ContextExplorer",
    "Drill",
    "MatrixSplit",
    "MemoryExplorer",
    "PipelineExplorer",
    "PlanExplorer",
    "PuzzleBoard",
    "RingExplorer",
    "ZeroGrid",
    "after",
    "closing",
    "exercise",
    "figures",
    "for_class",
    "gib",
    "lesson_map",
    "ms",
    "percent",
    "predict",
    "puzzle_bests",
    "report",
    "say",
    "table",
    "tongue",
]

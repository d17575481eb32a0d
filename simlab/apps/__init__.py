"""Interactive lessons' parts: ipywidgets over the public API, no logic of their own."""

from simlab.apps.cells import ms, percent, say, table
from simlab.apps.pipeline import PipelineExplorer
from simlab.apps.plan import PlanExplorer
from simlab.apps.puzzle import PuzzleBoard
from simlab.apps.ring import RingExplorer

__all__ = ["PipelineExplorer", "PlanExplorer", "PuzzleBoard", "RingExplorer", "ms", "percent", "say", "table"]

"""Interactive lessons' parts: ipywidgets over the public API, no logic of their own."""

from simlab.apps.cells import ms, percent, say, table
from simlab.apps.collectives import CollectiveExplorer
from simlab.apps.pipeline import PipelineExplorer
from simlab.apps.puzzle import PuzzleBoard

__all__ = ["CollectiveExplorer", "PipelineExplorer", "PuzzleBoard", "ms", "percent", "say", "table"]

"""Interactive lessons' parts: ipywidgets over the public API, no logic of their own."""

from simlab.apps.pipeline import PipelineExplorer

__all__ = ["PipelineExplorer"]

"""It has the widget of the explorer of memory and ZeRO."""

from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers.memory import EXPLORER
from simlab.spec.model import Model


class MemoryExplorer(ExplorerWidget):
    """Above: model states on a rank over dp, for each ZeRO stage, with the GPU's capacity. Below:
    one step of the chosen sharding, category on category, its peak with the op that makes it, and
    where it first passes the capacity.

    model:  a GPT of the catalogue, or one's own; the step is the walk of `simlab.data_parallel_memory`.
    values: where the other controls start: recipe, sharding, cluster, dp, microbatch_size; `tongue`
            is 'en' or 'zh'.
    """

    def __init__(self, model: str | Model = "megatron-7.5b", **values: Any) -> None:
        super().__init__(EXPLORER, model=model, **values)

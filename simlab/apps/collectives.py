"""It has the widget of the explorer of all-reduce."""

from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers.collectives import EXPLORER


class CollectiveExplorer(ExplorerWidget):
    """Who sends what to whom in each round of an all-reduce, and what every rank then holds; below,
    time and bus bandwidth on a cluster.

    algorithm: 'ring', 'tree', 'halving-doubling', 'hierarchical' (on two nodes) or 'star'.
    ranks:     of the rounds; the buffer is 1 MiB for each.
    values:    where the other controls start: step (the round), cluster (a name in the catalogue)
               and nodes, all of whose GPUs take part in the all-reduce of the curves; `tongue` is
               'en' or 'zh'.
    """

    def __init__(self, algorithm: str = "ring", ranks: int = 4, **values: Any) -> None:
        super().__init__(EXPLORER, algorithm=algorithm, ranks=ranks, **values)

"""It has the widget of the explorer of ring attention."""

from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers.ring import EXPLORER


class RingExplorer(ExplorerWidget):
    """Contiguous above zigzag, for one layer's forward attention of `model` on a ring within a node
    of `cluster`, or across its nodes.

    values: where the other controls start: ranks, tokens, and link, 'node' or 'network'; `tongue`
            is 'en' or 'zh'.
    """

    def __init__(self, model: str = "llama-3-8b", cluster: str = "dgx-h100", **values: Any) -> None:
        super().__init__(EXPLORER, model=model, cluster=cluster, **values)

"""It has the widgets of the explorers that show one kind of parallelism each, and its collectives."""

from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers import (
    buckets,
    causal_mask,
    collectives,
    context,
    matrix_split,
    ring,
    zero_grid,
)


class ZeroGrid(ExplorerWidget):
    """Which rank holds which slice of parameters, gradients and optimizer states.

    values: where the controls start: model, zero, ranks, group, recipe; `tongue` is 'en' or 'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(zero_grid.EXPLORER, **values)


class MatrixSplit(ExplorerWidget):
    """Which columns, rows and heads of a layer a tensor-parallel rank holds, and what is
    communicated.

    values: where the controls start: model, tp, kv_heads, sequence_parallel; `tongue` is 'en' or
            'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(matrix_split.EXPLORER, **values)


class CausalMask(ExplorerWidget):
    """Which context-parallel rank computes which part of a causal mask, and who waits.

    values: where the controls start: cp, step; `tongue` is 'en' or 'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(causal_mask.EXPLORER, **values)


class BucketExplorer(ExplorerWidget):
    """What the backward hides of the reduction of gradients in buckets.

    values: where the controls start: model, gpus, microbatch_size, bucket_mib; `tongue` is 'en' or
            'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(buckets.EXPLORER, **values)


class ContextExplorer(ExplorerWidget):
    """Context parallelism's communication against its compute, over sequence lengths.

    values: where the controls start: tokens, cp, kv_heads, link, recompute; `tongue` is 'en' or
            'zh'.
    """

    def __init__(self, **values: Any) -> None:
        super().__init__(context.EXPLORER, **values)


class RingExplorer(ExplorerWidget):
    """Contiguous above zigzag, for one layer's forward attention of `model` on a ring within a node
    of `cluster`, or across its nodes.

    values: where the other controls start: ranks, tokens, and link, 'node' or 'network'; `tongue`
            is 'en' or 'zh'.
    """

    def __init__(self, model: str = "llama-3-8b", cluster: str = "dgx-h100", **values: Any) -> None:
        super().__init__(ring.EXPLORER, model=model, cluster=cluster, **values)


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
        super().__init__(collectives.EXPLORER, algorithm=algorithm, ranks=ranks, **values)

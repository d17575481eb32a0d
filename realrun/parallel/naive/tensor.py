"""The naive forms of tensor parallelism, in which everything is gathered. The good forms are in
`realrun.parallel.layers.tensor`."""

from torch import Tensor
from torch.nn import functional

from realrun.comm.group import Group
from realrun.parallel.layers.tensor import OutputCutLinear, copy_to, gather_from


class GatheredLinear(OutputCutLinear):
    """X W^T + b with W cut by outputs, which are gathered at once.

    Each matrix costs an all-gather of its outputs in the forward, and an all-reduce of its input's
    gradient in the backward. Inputs (..., inputs) and outputs (..., outputs) are whole on all
    ranks.
    """

    def forward(self, x: Tensor) -> Tensor:
        return gather_from(super().forward(copy_to(x, self.group)), self.group)


def gathered_cross_entropy(logits: Tensor, targets: Tensor, group: Group) -> Tensor:
    """The loss of each token, (...), from the logits (..., vocabulary / n), which are gathered
    whole: often the largest tensor of all."""
    whole = gather_from(logits, group)
    return functional.cross_entropy(whole.flatten(0, -2), targets.flatten(), reduction="none").view(
        targets.shape
    )

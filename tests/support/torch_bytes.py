"""What torch's own ops read and write: an oracle for the bytes of kernels that the memory bounds.

Nothing is computed: the tensors have a shape and a type and no numbers (the device "meta").
"""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

INDEXED = ("nll_loss_forward", "nll_loss_backward", "gather", "scatter")
"""Ops that use one number a row of their large operand: only their result counts."""


ALLOCATIONS = ("empty", "empty_like", "detach", "_unsafe_view")
"""Ops that move no number."""


class MovedBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that each op takes and gives; views move nothing.

    least: tensors of fewer numbers (statistics of rows, weights of a norm) are left out.
    """

    def __init__(self, least):
        super().__init__()
        self.least, self.bytes, self.ops = least, 0, []

    def __torch_dispatch__(self, op, types, arguments=(), options=None):
        result = op(*arguments, **(options or {}))
        name = op.name().removeprefix("aten::").partition(".")[0]
        if not op.is_view and name not in ALLOCATIONS:
            read = [] if name in INDEXED else [*arguments, *(options or {}).values()]
            written = result if isinstance(result, (tuple, list)) else [result]
            moved = self._bytes(read) + self._bytes(written)
            self.bytes += moved
            self.ops.append((name, moved))
        return result

    def _bytes(self, values):
        lists = [its if isinstance(its, (tuple, list)) else [its] for its in values]
        tensors = [value for its in lists for value in its if isinstance(value, torch.Tensor)]
        return sum(t.nbytes for t in tensors if t.numel() >= self.least)


def moved_bytes(function, *arguments, least):
    """Bytes that the ops of `function(*arguments)` read and write."""
    with MovedBytes(least) as moved:
        function(*arguments)
    return moved.bytes


def meta(*shape, dtype=torch.bfloat16):
    """A tensor without numbers."""
    return torch.empty(*shape, dtype=dtype, device="meta")

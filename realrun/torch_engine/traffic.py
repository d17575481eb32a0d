"""What torch sends, seen where its dispatcher hands collectives and messages to the process groups."""

from collections import defaultdict

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from simlab.collectives import busbw_factor

KINDS = {
    "allreduce_": "all-reduce", "all_reduce": "all-reduce", "all_reduce_": "all-reduce", "broadcast_": "broadcast",
    "_allgather_base_": "all-gather", "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter", "reduce_scatter_tensor": "reduce-scatter", "send": "message",
}  # fmt: skip
"""{op of torch's dispatcher: what it is}"""


class Counted(TorchDispatchMode):
    """Inside: {dimension: bytes that this rank sends}, collectives counted as rings (of a broadcast the ranks' mean).
    groups: {dimension: [ranks of this rank's group]}.

    A message's description (its shape, which torch sends before the first) is no floating-point tensor, and is not counted.
    """

    def __init__(self, groups):
        super().__init__()
        self.groups = {tuple(ranks): dimension for dimension, ranks in groups.items() if len(ranks) > 1}
        self.sent = defaultdict(float)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kind = KINDS.get(function._schema.name.partition("::")[2]) if function.namespace in ("c10d", "_c10d_functional") else None
        result = function(*args, **(kwargs or {}))
        ranks = next(filter(None, map(ranks_of, args)), None) if kind else None
        if ranks in self.groups:
            flat = [a for arg in (*args, result) for a in (arg if isinstance(arg, (list, tuple)) else [arg])]
            sizes = [a.nbytes for a in flat if isinstance(a, torch.Tensor) and (kind != "message" or a.is_floating_point())]
            n = len(ranks)
            factor = {"message": 1, "broadcast": (n - 1) / n}.get(kind) or busbw_factor(kind, n)  # the last of a ring sends nothing on
            self.sent[self.groups[ranks]] += max(sizes, default=0) * factor
        return result


def ranks_of(argument):
    """(ranks of the process group that an op's argument is, or names); None if it is none."""
    if isinstance(argument, str) and argument.isdecimal():
        argument = dist.distributed_c10d._resolve_process_group(argument)
    elif isinstance(argument, torch.ScriptObject):
        argument = dist.ProcessGroup.unbox(argument) if "ProcessGroup" in str(argument._type()) else None
    return tuple(dist.get_process_group_ranks(argument)) if isinstance(argument, dist.ProcessGroup) else None

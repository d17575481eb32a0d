"""The bytes that torch sends, counted where its dispatcher hands collectives and messages to the
process groups."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from simlab.collectives import busbw_factor

KINDS = {
    "allreduce_": "all-reduce",
    "all_reduce": "all-reduce",
    "all_reduce_": "all-reduce",
    "broadcast_": "broadcast",
    "_allgather_base_": "all-gather",
    "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter",
    "reduce_scatter_tensor": "reduce-scatter",
    "send": "message",
}
"""{op of torch's dispatcher: what it is}"""


class Counted(TorchDispatchMode):
    """Inside, it counts the bytes that this rank sends, `sent`: {dimension: bytes}. Collectives are
    counted as rings, and a broadcast as the ranks' mean. groups: {dimension: ranks of this rank's
    group}.

    The description of a message, its shape, which torch sends before the first one, is no
    floating-point tensor and is not counted.
    """

    def __init__(self, groups: Mapping[str, Sequence[int]]) -> None:
        super().__init__()
        self.groups = {
            tuple(ranks): dimension for dimension, ranks in groups.items() if len(ranks) > 1
        }
        self.sent: dict[str, float] = defaultdict(float)

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        kind = None
        if function.namespace in ("c10d", "_c10d_functional"):
            kind = KINDS.get(function._schema.name.partition("::")[2])
        ranks = next(filter(None, map(ranks_of, args)), None) if kind else None
        if kind is not None and ranks in self.groups:
            self.sent[self.groups[ranks]] += sent_bytes(kind, (*args, result), len(ranks))
        return result


def sent_bytes(kind: str, values: Sequence[Any], n: int) -> float:
    """The bytes that each of `n` ranks sends in a communication of `kind`. values: its arguments
    and results, tensors and lists of tensors among them."""
    flat = [v for value in values for v in (value if isinstance(value, (list, tuple)) else [value])]
    tensors = [v for v in flat if isinstance(v, torch.Tensor)]
    sizes = [t.nbytes for t in tensors if kind != "message" or t.is_floating_point()]
    if kind == "message":
        return max(sizes, default=0)
    # the last rank of a broadcast's ring sends nothing on
    factor = (n - 1) / n if kind == "broadcast" else busbw_factor(kind, n)
    return max(sizes, default=0) * factor


def ranks_of(argument: Any) -> tuple[int, ...] | None:
    """The ranks of the process group that an op's argument is, or names. None if it is none."""
    if isinstance(argument, str) and argument.isdecimal():
        name: Any = argument  # of a type that torch alone knows
        argument = dist.distributed_c10d._resolve_process_group(name)
    elif isinstance(argument, torch.ScriptObject):
        argument = (
            dist.ProcessGroup.unbox(argument) if "ProcessGroup" in str(argument._type()) else None
        )
    return (
        tuple(dist.get_process_group_ranks(argument))
        if isinstance(argument, dist.ProcessGroup)
        else None
    )

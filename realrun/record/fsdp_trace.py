"""What torch's FSDP2 does in a step, as torch itself tells it: a `Trace` whose spans are named as
the simulator's are.

FSDP2 labels what it does for the profiler, as in 'FSDP::all_gather (blocks.3)'. A dispatch mode
sees those labels, and the collectives inside them with their tensors. So nothing of FSDP2 is
replaced or guessed: unit, order and bytes are torch's. A span lasts as long as its label. On CPUs,
where FSDP2 waits inside the label, that is until the collective is done; on CUDA it would be the
time to issue it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.comm.clock import now
from realrun.record.merge import from_zero
from simlab.program import Op
from simlab.trace import COMPUTE, Span, Trace

UNITS = {"embed, position": "embedding", "norm, head": "head", "": "root"}
"""{modules of `realrun.backends.torch.model.TorchStage` that are one unit: our name of it};
'blocks.3' is layer 3."""
COLLECTIVES = {
    "all_gather": ("gather", "all_gather"),
    "post_backward_reduce": ("gradients", "reduce_scatter"),
}
"""{FSDP2's label: (our name of it, the kind of collective)}."""
BEFORE, AFTER = ("pre_forward", "pre_backward"), ("post_forward", "post_backward_accumulate")


LABEL = re.compile(r"(?:FSDP::)?(.*?)(?: \((.*)\))?")


@dataclass
class _Label:
    """One of FSDP2's labels that is open."""

    what: str
    unit: str
    start_s: float
    size_bytes: int = 0


class Fsdp2Recorder(TorchDispatchMode):
    """Inside, it records what FSDP2 does on this rank. The caller of forward and backward sets
    `op`, an `Op`, before each.

    The computing of a unit is what lies between the unit's labels. Left out: that of the root,
    between whose labels are the other units'.
    """

    def __init__(self, rank: int) -> None:
        super().__init__()
        self.rank = rank
        self.op: Op | None = None
        self.spans: list[Span] = []
        self._open: list[_Label] = []
        self._ready_s: dict[str, float] = {}

    def __torch_dispatch__(
        self,
        function: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = function._schema.name
        if name == "profiler::_record_function_enter_new":
            self._enters(args[0])
        result = function(*args, **(kwargs or {}))
        if function.namespace == "c10d" and self._open:
            self._open[-1].size_bytes += max(
                tensor.nbytes for tensor in args if isinstance(tensor, torch.Tensor)
            )
        if name.startswith("profiler::_record_function_exit"):
            self._exits()
        return result

    def _enters(self, label: str) -> None:
        parts = LABEL.fullmatch(label)
        what, modules = (parts[1], parts[2] or "") if parts else (label, "")
        unit = UNITS.get(modules) or modules.replace("blocks.", "layer ")
        self._open.append(_Label(what, unit, now()))
        if what in AFTER and unit in self._ready_s:
            times = self._ready_s.pop(unit), now()
            self.spans.append(self._span(COMPUTE, unit, "", times, 0, self._of().kind))

    def _exits(self) -> None:
        label = self._open.pop()
        if label.what in COLLECTIVES and label.size_bytes:
            name, kind = COLLECTIVES[label.what]
            times = label.start_s, now()
            self.spans.append(self._span("dp", label.unit, name, times, label.size_bytes, kind))
        elif label.what in BEFORE and label.unit != "root":
            self._ready_s[label.unit] = now()

    def _of(self) -> Op:
        if self.op is None:
            raise ValueError("set `op` before FSDP2 runs a forward or a backward")
        return self.op

    def _span(
        self,
        stream: str,
        unit: str,
        name: str,
        times: tuple[float, float],
        size_bytes: int,
        kind: str,
    ) -> Span:
        stage, op_kind, microbatch = op = self._of()
        label = f"{op} {unit} {name}".rstrip()
        span = Span(self.rank, stream, label, *times, size_bytes, kind=kind, op_kind=op_kind)
        own = "" if unit == "root" else unit
        return span._replace(stage=stage, unit=own, microbatch=microbatch)

    def trace(self, ranks: int) -> Trace:
        """The `Trace` of this rank among `ranks`, from 0 s."""
        zero_s = min(span.start_s for span in self.spans)
        spans, _ = from_zero(self.spans, [], zero_s)
        return Trace(
            sorted(spans, key=lambda span: span.start_s),
            [],
            {"name": "FSDP2", "source": "measured", "ranks": ranks},
        )

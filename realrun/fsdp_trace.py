"""What torch's FSDP2 does in a step, by its own account: a `Trace` whose spans are named as the simulator's are.

FSDP2 labels what it does for the profiler: 'FSDP::all_gather (blocks.3)'. A dispatch mode sees those labels, and the collectives inside
them with their tensors. So nothing of FSDP2 is replaced or guessed: unit, order and bytes are torch's. A span lasts as long as its label:
on CPUs, where FSDP2 waits inside, until the collective is done; on CUDA it would be the time to issue it.
"""

import re

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from realrun.clock import now
from simlab.trace import COMPUTE, Span, Trace

UNITS = {"embed, position": "embedding", "norm, head": "head", "": "root"}
"""{modules of `realrun.torch_engine.model.TorchStage` that are one unit: our name of it}; 'blocks.3' is layer 3."""
COLLECTIVES = {"all_gather": "gather", "post_backward_reduce": "gradients"}
BEFORE, AFTER = ("pre_forward", "pre_backward"), ("post_forward", "post_backward_accumulate")


class Fsdp2Recorder(TorchDispatchMode):
    """Inside: what FSDP2 does on this rank. `op`, '0F0', is set by who calls forward and backward.

    The computing of a unit is what lies between its own labels. Left out: that of the root, between whose labels are the other units'.
    """

    def __init__(self, rank):
        super().__init__()
        self.rank, self.op = rank, ""
        self.spans = []
        self._open, self._ready_s = [], {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name == "profiler::_record_function_enter_new":
            self._enters(args[0])
        result = function(*args, **(kwargs or {}))
        if function.namespace == "c10d" and self._open:
            self._open[-1][3] += max(tensor.nbytes for tensor in args if isinstance(tensor, torch.Tensor))
        if name.startswith("profiler::_record_function_exit"):
            self._exits()
        return result

    def _enters(self, label):
        what, unit = re.fullmatch(r"(?:FSDP::)?(.*?)(?: \((.*)\))?", label).groups()
        unit = UNITS.get(unit or "") or unit.replace("blocks.", "layer ")
        self._open.append([what, unit, now(), 0])
        if what in AFTER and unit in self._ready_s:
            self.spans.append(Span(self.rank, COMPUTE, f"{self.op} {unit}", self._ready_s.pop(unit), now()))

    def _exits(self):
        what, unit, start_s, size_bytes = self._open.pop()
        if what in COLLECTIVES and size_bytes:
            self.spans.append(Span(self.rank, "dp", f"{self.op} {unit} {COLLECTIVES[what]}", start_s, now(), size_bytes))
        elif what in BEFORE and unit != "root":
            self._ready_s[unit] = now()

    def trace(self, ranks):
        """The `Trace` of this rank among `ranks`, from 0."""
        zero_s = min(span.start_s for span in self.spans)
        spans = [span._replace(start_s=span.start_s - zero_s, end_s=span.end_s - zero_s) for span in self.spans]
        return Trace(sorted(spans, key=lambda span: span.start_s), [], {"name": "FSDP2", "source": "measured", "ranks": ranks})

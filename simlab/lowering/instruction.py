"""It defines what the lists of a plan consist of: instructions, and units that travel together."""

from typing import Literal, NamedTuple

from simlab.layer.units import UnitKind
from simlab.lowering.kernels import LayerKernels
from simlab.lowering.kernels.kernel import Kernel
from simlab.lowering.pieces import COMPUTE, Action, Slice
from simlab.program import Op

Half = tuple[UnitKind, str]
"""(kind of a unit, kind of an op): what an op does in a unit."""
Halves = tuple[Half, ...]
"""What a rank computes side by side: one `Half`, or a backward and a forward (`Plan.ep_overlap`)."""


class Instruction(NamedTuple):
    """One thing that a rank does."""

    action: Action
    """COMPUTE, BEGIN or WAIT."""
    op: str
    """The op that it is a part of as a label, '2F0', of a message the op whose result it is; '' for
    what belongs to the step."""
    name: str
    """'layer 3', or of a communication 'layer 3 output reduce'. With the op it names one
    communication of a group."""
    kernels: tuple[Kernel | Slice, ...] = ()
    """What is computed."""
    dimension: str = ""
    """Of a communication: 'tp', 'cp', 'ep' (the ranks that share a layer's experts), 'dp' (the
    ranks that hold the same part of the model, `Plan.holders` of them, or with `Plan.hybrid` a shard
    group of them), 'edp' (those of them that hold the same experts), 'replicas' (those that hold the same
    shard), 'pp', 'ends' (the ranks of a tied head and its embedding), 'offload out', 'offload in'
    or 'drive'."""
    kind: str = ""
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'ring' (to the next of the
    group), 'message' (to another stage) or 'copy' (to or from the host, or
    its drives)."""
    size_bytes: float = 0.0
    """Of the whole buffer, as `simlab.lowering.kernels.Communication` has it."""
    peer: int | None = None
    """Of a message: the pipeline rank at its other end."""
    part: float = 1.0
    """Of a communication that is cut in pieces: which fraction of the whole this one is."""
    stage: int = -1
    """The stage of the op; -1 for what belongs to the step."""
    op_kind: str = ""
    """The kind of the op: 'F', 'B', 'I' or 'W'; '' for what belongs to the step."""
    microbatch: int = -1
    """The microbatch of the op; -1 for what belongs to the step."""
    unit: str = ""
    """The unit as a label: 'embedding', 'layer 3' or 'head'; '' for what belongs to none."""
    unit_kind: UnitKind | Literal[""] = ""
    """The kind of the unit; '' for what belongs to none."""
    in_unit: bool = False
    """Whether it is a part of what the op does in the unit itself: its kernels, and communication
    of tensor and context parallelism. What sharding and offloading do for the unit is not."""
    halves: Halves = ()
    """Of what is computed in a unit: what the rank computes side by side, this among it."""

    @property
    def is_optimizer(self) -> bool:
        """Whether it is the optimizer's step, the only thing that is computed outside of ops."""
        return self.action == COMPUTE and not self.op_kind


class Unit(NamedTuple):
    """What is gathered, and reduced, in one piece."""

    name: str
    """'embedding', 'layer 3' or 'head'."""
    type: UnitKind
    """Units of a type are alike."""
    kernels: LayerKernels
    parameters: int
    partial: int
    """Of them: those whose gradients are sums over tp ranks, each of which has met its own tokens
    only (sequence parallelism), or the query heads that it has beside a copied key and value head."""
    experts: int = 0
    """Of them: those of experts that only an 'edp' group holds (expert parallelism)."""
    in_eight_bits: int = 0
    """Of them: those that are parameters in 8 bits (`Plan.fp8_param_gather`)."""


class Work(NamedTuple):
    """What an op does in a unit, apart from sharding and offloading: `unit_pieces` has its
    pieces."""

    unit: Unit
    op: Op
    beside: "Work | None" = None
    """What the forward of another microbatch does in a unit of its own, side by side with this
    backward: `alternating` has the order of both."""

    @property
    def halves(self) -> Halves:
        """What it consists of."""
        own = self.unit.type, self.op.kind
        return (own,) if self.beside is None else (own, *self.beside.halves)

"""What the instructions of a plan take on a cluster, alone and where GPUs share a node's NICs."""

from collections.abc import Sequence
from functools import cached_property
from itertools import product

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import p2p_s
from simlab.cost.optimizer import rank_parameters, update_s
from simlab.cost.stage_times import StageCost
from simlab.cost.stage_times import sends_block as blocks
from simlab.cost.walk import Seconds
from simlab.engine.tasks import Shared
from simlab.lowering.instruction import Halves, Instruction
from simlab.lowering.kernels.kernel import Kernel
from simlab.lowering.pieces import Slice
from simlab.program import Program
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan


class ClusterTimes:
    """Seconds of the instructions of `model` under `plan` on `cluster`.

    sends_block: whether a rank goes on only when what it sends is there; None: as
    `simlab.cost.stage_times.sends_block` says.
    """

    def __init__(
        self,
        model: Model,
        plan: Plan,
        cluster: Cluster,
        program: Program,
        *,
        sends_block: bool | None = None,
    ) -> None:
        cluster.check_alike("a step instruction by instruction")
        self.model, self.plan, self.program = model, plan, program
        self.cost = StageCost(model, plan, cluster)
        self.sends_block = blocks(plan) if sends_block is None else sends_block
        self.layers = plan.layers_of_stages(model.layers, program.stages)
        # {(identity of kernels, what they are computed with): (seconds, the kernels, which so stay
        # alive)}
        self._of_kernels: dict[tuple[int, Halves], tuple[Seconds, tuple[Kernel | Slice, ...]]] = {}
        self._of_communication: dict[tuple[str | float, ...], float] = {}

    def computing(self, instruction: Instruction) -> Seconds:
        """Of a compute instruction, with its part of what the GPU waits for the host."""
        if not instruction.unit_kind:  # the optimizer, beside which nothing is sent
            return Seconds(self.optimizer_s, self.optimizer_s)
        # layers share the tuples of their kernels, which take longer to hash than to find
        key = id(instruction.kernels), instruction.halves
        if key not in self._of_kernels:
            stretch = self.cost.stretch(instruction.halves)
            seconds = self.cost.computing(instruction.kernels).times(stretch)
            self._of_kernels[key] = seconds, instruction.kernels
        return self._of_kernels[key][0]

    @cached_property
    def optimizer_s(self) -> float:
        """Of the rank with most parameters, for all wait for it; the norm of all gradients and
        copies between GPU, host and drives are in the list."""
        parameters = rank_parameters(self.model, self.plan, self.program, self.layers)
        return update_s(self.cost, self.program, parameters, self.layers)

    def communication_s(self, instruction: Instruction) -> float:
        """Of what is begun or waited for, while all GPUs of its nodes communicate alike. A message
        takes what one does between nodes, if any pipeline crosses from one to another."""
        key = (
            instruction.dimension,
            instruction.kind,
            instruction.size_bytes,
            instruction.part,
            instruction.op_kind,
            instruction.unit_kind,
        )
        if key not in self._of_communication:
            self._of_communication[key] = self.cost.instruction_s(instruction)
        return self._of_communication[key]

    def transfer(
        self, instruction: Instruction, ranks: Sequence[int]
    ) -> tuple[float, Shared | None]:
        """(seconds alone, `Shared` or None) of what `ranks` begin or wait for: see `transfer`."""
        return transfer(self.cost, instruction, ranks)

    def alike_s(self, instruction: Instruction, ranks: Sequence[int]) -> float:
        """Seconds of what global `ranks` begin or wait for, while all GPUs of their nodes do
        alike."""
        if instruction.kind == "message":
            return _seconds(self.cost, instruction, self.cost.cluster, _places(self.cost, ranks))
        return self.communication_s(instruction)


def transfer(
    cost: StageCost, instruction: Instruction, ranks: Sequence[int]
) -> tuple[float, Shared | None]:
    """(seconds alone, `Shared` or None) of a communication of global `ranks`, by `StageCost`.

    Where a node has fewer NICs than GPUs, who else communicates makes a difference. Two times are
    known: T when all GPUs of the node do alike, and A when the others are silent and each of the
    group's k ranks a node has a NIC, as far as there are NICs. All alike ask for D = g / k times
    the group's share of the g GPUs' NICs, and so take D times as long for the part w of A that is
    the NICs': A + (D - 1) w = T gives w. From moment to moment all that cross share them
    (`simlab.engine.sharing.Wires`). A message leaves one node and enters another, a collective does
    both on all of its nodes.

    Leaves out which GPU is at which NIC; groups that lie on nodes otherwise than the first one,
    which is priced for all; mixed clusters, whose GPUs have their part of the NICs all the time.
    """
    cluster, message = cost.cluster, instruction.kind == "message"
    if instruction.kind == "copy" or instruction.dimension == "ends":
        return cost.instruction_s(instruction), None
    places = _places(cost, ranks)
    group = GroupShape(2, 1) if message else cost.group(instruction.dimension)
    together_s = _seconds(cost, instruction, cluster, places)
    if (
        len(places) == 1
        or group.nodes == 1
        or cluster.nics_per_node >= cluster.gpus_per_node
        or cluster.more
    ):
        return together_s, None
    quiet = cost.quiet(group.per_node)
    alone_s, share = (
        _seconds(cost, instruction, quiet, places),
        min(1.0, group.per_node / cluster.nics_per_node),
    )
    demand = share * cluster.gpus_per_node / group.per_node
    latency_s = _seconds(cost, instruction._replace(size_bytes=0), quiet, places)
    wire_s = (together_s - alone_s) / (demand - 1) if demand > 1 else alone_s - latency_s
    wires = [("out", places[0]), ("in", places[1])] if message else product(("out", "in"), places)
    return alone_s, Shared(tuple(wires), share, max(0.0, min(alone_s, wire_s)))


def _places(cost: StageCost, ranks: Sequence[int]) -> list[int]:
    """The nodes of global `ranks`."""
    return list(dict.fromkeys(rank // cost.cluster.gpus_per_node for rank in ranks))


def _seconds(
    cost: StageCost, instruction: Instruction, cluster: Cluster, places: Sequence[int]
) -> float:
    if instruction.kind == "message":
        return cost.slower * p2p_s(instruction.size_bytes, cluster, same_node=len(places) == 1)
    return cost.timed(
        instruction,
        lambda kind, size_bytes, dimension: cost.communication_s(
            kind, size_bytes, dimension, cluster=cluster
        ),
    )

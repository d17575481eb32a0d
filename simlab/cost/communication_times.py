"""What the communication of a plan takes on a cluster: collectives, messages between stages, and
copies between a GPU and its host."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import IN_TRAINING, collective, collective_s, p2p_s
from simlab.collectives.nccl_algorithms import token_exchange_s
from simlab.cost.groups import Groups, host_sharers
from simlab.layer.microbatch import visited
from simlab.layer.units import is_layer
from simlab.lowering.instructions import Instruction, group_of, tied_head_bytes
from simlab.lowering.kernels import message_bytes
from simlab.lowering.offloading import DRIVE
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.units import GIB

HOST_OP_S = 13.3e-6
"""What the host needs to dispatch one op, s. Measured: 57 forward and 90 backward ops of a layer of
Megatron-LM's form, at sizes at which computing takes no time, took 758 and 1195 µs (PyTorch 2.13,
one core). NVIDIA's FasterTransformer guide agrees: PyTorch's BERT-base at batch 1 takes 4.2 ms on
an A100 with an EPYC 7742, at any sequence length up to 384: 350 µs a layer of about 25 kernels, 14
µs each."""

CHECK_S, CHECK_RANK_S = 155e-6, 196e-6
"""What the host needs to check a collective before it is launched, s: of itself, and for each other
rank of the group (`Cluster.checks_collectives`). torch then meets at a barrier of gloo's and gathers
two fingerprints (torch/csrc/distributed/c10d/ProcessGroupWrapper.cpp). Rank 0 goes through the
others one by one at the barrier, and a gather is a ring, so the time grows with the ranks. Measured
between two processes of one machine (PyTorch 2.13): with the check 351 µs more than without, a
barrier of two alone 69 µs, 34 more for each further rank, and a gather of two 81 µs. So a further
rank takes 34 + 2 x 81 = 196 µs, and the rest of 351 is the collective's own. Between nodes it takes
longer than on one machine, which is left out."""

MOVED_A_BYTE = 3
"""Bytes that a GPU's memory reads and writes for each that a link brings, at most. In a ring's
reduce-scatter what arrives is written, read again, and added to what the rank has itself, which is
read, too. A gather moves two: what it sends, and what it gets."""

MATRICES_A_LAYER = 4
"""Those of a layer that are large: qkv, output, up, down. ZeRO-3 leaves small ones where they are
(stage3_param_persistence_threshold)."""


@dataclass
class CommunicationTimes:
    """Times of the communication of `model` under `plan` on `cluster`."""

    model: Model
    plan: Plan
    cluster: Cluster
    slower: float = IN_TRAINING
    """What collectives take over what they take alone; 1 to compare with a layer that was timed on
    its own."""
    groups: Groups = field(init=False)

    def __post_init__(self) -> None:
        self.groups = Groups.of(self.plan, self.cluster)
        self._alone_s: dict[
            tuple[str, float, GroupShape], float
        ] = {}  # of collectives, on `cluster`
        self.host_op_s = HOST_OP_S if self.cluster.host_op_s is None else self.cluster.host_op_s

    def instruction_s(self, instruction: Instruction) -> float:
        """Seconds of a communication of a list of `simlab.lowering.instructions`."""
        if instruction.kind == "message":
            return sum(self.message_s())
        if instruction.kind == "copy":
            return instruction.size_bytes / self.copied_bytes_per_s(instruction)
        if instruction.dimension == "ends":
            return self.tied_head_s()
        return self.timed(instruction, self.communication_s)

    def timed(
        self, instruction: Instruction, seconds_of: Callable[[str, float, str], float]
    ) -> float:
        """Seconds of a collective, which may be a piece of a larger one or made of several smaller
        ones. seconds_of: (kind, bytes, dimension) → seconds of one collective.

        Without prefetch ZeRO-3 is in its first form: matrix by matrix, for the recomputation apart,
        and with a copy per rank and matrix for the host to launch, as torch's all_gather filled a
        list of n tensors.
        """
        dimension, kind, part = instruction.dimension, instruction.kind, instruction.part
        size_bytes, plan = instruction.size_bytes, self.plan
        if plan.zero < 3 or plan.prefetch or dimension != "dp" or not instruction.unit_kind:
            return part * seconds_of(kind, size_bytes / part, dimension)
        pieces = MATRICES_A_LAYER if is_layer(instruction.unit_kind) else 1
        copies_s = pieces * self.groups.shard.size * self.host_op_s
        again = (
            is_layer(instruction.unit_kind)
            and kind == "all_gather"
            and instruction.op_kind in "BI"
            and plan.recompute == "full"
        )
        return (1 + again) * (copies_s + pieces * seconds_of(kind, size_bytes / pieces, dimension))

    def copied_bytes_per_s(self, copy: Instruction) -> float:
        """Of a copy between the GPU and its host, or for a unit's and for the optimizer's states
        the drives that the GPUs of a node share."""
        to_drives = self.plan.offload_to == "nvme" and copy.unit
        rates = [] if copy.dimension == DRIVE else [self.cluster.known("pcie_bytes_per_s")]
        if to_drives or not rates:
            shared = host_sharers(self.plan, self.cluster)
            rates.append(self.cluster.known("nvme_bytes_per_s") / shared)
        return min(rates)

    def message_bytes(self) -> float:
        """See `simlab.lowering.kernels.message_bytes`."""
        return message_bytes(self.model, self.plan)

    def message_s(self, in_node: bool | None = None) -> tuple[float, float]:
        """(latency, seconds on the wire) of that message. in_node: whether sender and receiver are
        in one node; None: where the whole pipeline is in one."""
        if in_node is None:
            in_node = self.plan.layout.in_nodes("pp", self.cluster.gpus_per_node)
        latency_s = p2p_s(0, self.cluster, same_node=in_node)
        return self.slower * latency_s, self.slower * (
            p2p_s(self.message_bytes(), self.cluster, same_node=in_node) - latency_s
        )

    def tied_head_s(self) -> float:
        """Seconds of summing the gradients of a shared embedding and head over its two stages."""
        size = tied_head_bytes(self.model, self.plan)
        in_node = self.plan.layout.in_nodes("pp", self.cluster.gpus_per_node)
        return (
            self.collective_s("all_reduce", size, GroupShape(2, 2 if in_node else 1))
            if size
            else 0.0
        )

    def collective_s(
        self, kind: str, size_bytes: float, group: GroupShape, cluster: Cluster | None = None
    ) -> float:
        """Seconds of a collective in training; on `cluster` if it is given, see `quiet`."""
        if group.size == 1:
            return 0.0
        if cluster is not None:
            return self.slower * collective_s(kind, size_bytes, group, cluster)
        key = kind, size_bytes, group
        if key not in self._alone_s:
            self._alone_s[key] = collective_s(kind, size_bytes, group, self.cluster)
        return self.slower * self._alone_s[key]

    def communication_s(
        self, kind: str, size_bytes: float, dimension: str, *, cluster: Cluster | None = None
    ) -> float:
        """Seconds of one collective of a `dimension`'s group, or of a 'ring''s message to the next
        of it, in training; on `cluster` if it is given, see `quiet`."""
        own, group = cluster, self.group(dimension)
        cluster = own or self.cluster
        if kind == "all_to_all" and dimension == "ep" and self.plan.dispatcher == "once-a-node":
            share = visited(self.model, group.nodes) / visited(self.model, self.plan.ep)
            return self.slower * token_exchange_s(size_bytes, share, group, cluster)
        if kind == "ring":
            return self.slower * p2p_s(size_bytes, cluster, same_node=group.nodes == 1)
        return self.collective_s(kind, size_bytes, group, own)

    @cached_property
    def collective_bytes_per_s(self) -> float:
        """What a collective that kernels run beside moves in a GPU's memory, bytes/s:
        `MOVED_A_BYTE` times what a large all-gather brings to each rank, of data parallelism, or
        where there is none of the next group that communicates. Of several collectives one is
        taken: tensor parallelism's beside a product in fp8, and with hybrid sharding that of the
        replicas, count as this one."""
        groups = (self.group(name) for name in ("dp", "tp", "cp", "ep"))
        group = next((its for its in groups if its.size > 1), None)
        if group is None:
            return 0.0
        busbw = collective("all_gather", GIB, group, self.cluster).busbw_bytes_per_s
        return MOVED_A_BYTE * busbw / self.slower

    def check_s(self, ranks: int) -> float:
        """Seconds in which the host checks a collective of so many ranks before it is launched."""
        return CHECK_S + (ranks - 1) * CHECK_RANK_S if self.cluster.checks_collectives else 0.0

    def group(self, dimension: str) -> GroupShape:
        """The `GroupShape` that communicates in an instruction's `dimension`."""
        return getattr(self.groups, group_of(self.plan, dimension))

    def quiet(self, ranks_per_node: int) -> Cluster:
        """The cluster as a group with so many ranks a node finds it when all other GPUs are silent:
        each of its ranks has a NIC for itself, as far as there are NICs."""
        return replace(self.cluster, gpus_per_node=max(ranks_per_node, self.cluster.nics_per_node))

"""What a stage's forward and backward of one microbatch take: kernels, and what of their communication they have to wait for."""

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from simlab.cost.communication import IN_TRAINING, Group, collective_s, p2p_s
from simlab.cost.context import ring_hidden_s
from simlab.cost.kernels import Communication, Matmul, embedding_kernels, head_kernels, layer_kernels, message_kernels, runtime_ops
from simlab.cost.parameters import unit_parameters
from simlab.cost.roofline import kernel_s
from simlab.schedules import V_SHAPED

HOST_OP_S = 13.3e-6
"""What the host needs to dispatch one op, s. Measured: 57 forward and 90 backward ops of a layer of Megatron-LM's form, at sizes at which
computing takes no time, took 758 and 1195 µs (PyTorch 2.13, one core). NVIDIA's FasterTransformer guide agrees: PyTorch's BERT-base at
batch 1 takes 4.2 ms on an A100 with an EPYC 7742, at any sequence length up to 384: 350 µs a layer of about 25 kernels, 14 µs each."""

MATRICES_A_LAYER = 4
"""Those of a layer that are large: qkv, output, up, down. ZeRO-3 leaves small ones where they are (stage3_param_persistence_threshold)."""

HOST_COLLECTIVE_OPS = 3
"""A collective is worth as many ops to the host: the call, the wait of its stream, and that of the one it came from."""

BESIDE = 0.15
"""How much longer a kernel takes while a collective runs beside it: about the part of the multiprocessors that NCCL's channels occupy
(16 to 24 of 108 on an A100)."""


class Parts(NamedTuple):
    """Seconds of a piece of work by what they are spent on; those of communication only as far as nothing else runs meanwhile."""

    compute: float = 0.0
    host: float = 0.0
    """The GPU waiting for the host to launch."""
    tp: float = 0.0
    cp: float = 0.0
    dp: float = 0.0
    """Gathering of ZeRO-3's parameters, scattering of ZeRO-2's and 3's gradients."""
    offload: float = 0.0

    @property
    def total(self):
        """All of it, s."""
        return sum(self)

    def plus(self, other):
        """The two, one after the other."""
        return Parts(*(mine + its for mine, its in zip(self, other)))

    def times(self, count):
        """`count` of it, one after the other."""
        return Parts(*(part * count for part in self))


@dataclass(frozen=True)
class Groups:
    """The communicators that a GPU is in: how many ranks each has, and how many of them in its node.

    Ranks are laid out in `Plan.order`: unless told otherwise with tp innermost, then cp, dp and pp, as Megatron-LM does.
    """

    tp: Group
    cp: Group
    dp: Group
    """All that hold the same part of the model: dp x cp."""
    shard: Group
    """Over which ZeRO shards: dp, or as many of it as `Plan.hybrid` says."""
    replicas: Group
    """With `hybrid`: the ranks that hold the same shard."""
    pp: Group
    """The stages of a pipeline."""

    @classmethod
    def of(cls, plan, cluster):
        """Those of `plan` on `cluster`."""
        replicas = plan.offsets("dp", "cp")
        return cls(*(
            _group(offsets, cluster)
            for offsets in (
                plan.offsets("tp"), plan.offsets("cp"), replicas, replicas[: plan.shards], replicas[:: plan.shards], plan.offsets("pp"),
            )
        ))  # fmt: skip


def _group(offsets, cluster):
    """The `Group` of the ranks with these numbers: as many in each node as in the first, or as a divisor of their number allows."""
    size = len(offsets)
    stride = offsets[1] if size > 1 else 1
    if offsets == [*range(0, size * stride, stride)]:
        return Group.of(size, stride, cluster)
    per_node = sum(offset < cluster.gpus_per_node for offset in offsets)
    while size % per_node:
        per_node -= 1
    return Group(size, per_node)


class StageTimes(NamedTuple):
    """`Parts` of what one stage does for a microbatch."""

    forward: Parts
    again: Parts
    """Recomputation, before the backward."""
    input_grad: Parts
    weight_grad: Parts

    @property
    def backward(self):
        """All of a full backward."""
        return self.again.plus(self.input_grad).plus(self.weight_grad)

    def of(self, kind):
        """Of an op of `kind`: F, B, I or W."""
        if kind == "I":
            return self.again.plus(self.input_grad)
        return {"F": self.forward, "B": self.backward, "W": self.weight_grad}[kind]


def waits_for_messages(plan):
    """Whether a GPU goes on only when what it sends is there: with one stage a rank, as in Megatron-LM's 1F1B."""
    return plan.chunks == 1


@dataclass
class StageCost:
    """Times of stages of `model` under `plan` on `cluster`; what is alike is computed once."""

    model: object
    plan: object
    cluster: object
    gpu: object = None
    slower: float = IN_TRAINING
    """What collectives take over what they take alone; 1 to compare with a layer that was timed on its own."""
    faster: dict = field(default_factory=dict)
    """{kernel: how many times as fast it is as it would be}: 'attention' and its gradient, 'norm' for both norms."""
    groups: Groups = field(init=False)

    def __post_init__(self):
        self.gpu = self.gpu or self.cluster.gpu
        self.groups = Groups.of(self.plan, self.cluster)
        self.host_op_s = HOST_OP_S if self.cluster.host_op_s is None else self.cluster.host_op_s
        self._kernel_s = {}
        self.kernels = {
            "layer": layer_kernels(self.model, self.plan),
            "embedding": embedding_kernels(self.model, self.plan),
            "head": head_kernels(self.model, self.plan),
        }
        self.layer, self.embedding, self.head = (self._times(kernels, unit == "layer") for unit, kernels in self.kernels.items())

    def stage(self, layers, *, first=False, last=False):
        """`StageTimes` of a stage with `layers` layers, the embedding if it is the `first` and the head if it is the `last`."""
        whole = [part.times(layers) for part in self.layer]
        for extra, there in ((self.embedding, first), (self.head, last)):
            if there:
                whole = [part.plus(more) for part, more in zip(whole, extra)]
        return StageTimes(*whole)

    def received(self):
        """`Parts` of what a stage does with a message before it can use it."""
        return self._parts(message_kernels(self.model, self.plan), {})

    def message_bytes(self):
        """See `message_bytes_of`."""
        return self.message_bytes_of(self.model, self.plan)

    @staticmethod
    def message_bytes_of(model, plan):
        """Of what a GPU sends to the next stage: a tp-th of the hidden states of a microbatch, see `message_kernels`."""
        tokens = plan.microbatch_size * (plan.seq or model.seq) // plan.cp
        return tokens * model.hidden * plan.element_bytes / plan.tp

    def message_s(self):
        """(latency, seconds on the wire) of that message: within a node only if the whole pipeline is in one."""
        in_node = self.plan.pipelines_in_nodes(self.cluster.gpus_per_node)
        latency_s = p2p_s(0, self.cluster, same_node=in_node)
        return self.slower * latency_s, self.slower * (p2p_s(self.message_bytes(), self.cluster, same_node=in_node) - latency_s)

    def reduce_s(self, parameters):
        """Seconds of reducing the gradients of so many parameters, bucket after bucket (with ZeRO-3 between replicas of a shard only, see
        `last_reduce_s`)."""
        return self._buckets_s(parameters, scattered=self.plan.zero < 3)

    def last_reduce_s(self, parameters):
        """Of that, what a step's last backward leaves: from ZeRO-2 on each backward scatters its own (`sharded_s`)."""
        return self._buckets_s(parameters, scattered=self.plan.zero < 2)

    def _buckets_s(self, parameters, scattered):
        plan, buckets = self.plan, self.buckets(parameters)
        size = parameters * plan.gradient_bytes / buckets
        if plan.zero == 0:
            return buckets * self.collective_s("all_reduce", size, self.groups.dp)
        scatter_s = self.collective_s("reduce_scatter", size, self.groups.shard) if scattered else 0.0
        return buckets * (scatter_s + self.collective_s("all_reduce", size / plan.shards, self.groups.replicas))

    def buckets(self, parameters):
        """In how many pieces, of about `Plan.bucket_bytes` of gradients, so many parameters are reduced or gathered: each pays its own
        latency."""
        return max(1, round(parameters * self.plan.gradient_bytes / self.plan.bucket_bytes))

    def tied_head_bytes(self):
        """Of the gradient that a tied head and the embedding, copies of each other on the last and the first rank, sum up; 0 without."""
        plan = self.plan
        if not self.model.tied_head or plan.pp == 1 or plan.schedule in V_SHAPED:
            return 0.0
        return self.model.vocab * self.model.hidden / plan.tp * plan.gradient_bytes

    def tied_head_s(self):
        """Seconds of that sum."""
        size = self.tied_head_bytes()
        in_node = self.plan.pipelines_in_nodes(self.cluster.gpus_per_node)
        return self.collective_s("all_reduce", size, Group(2, 2 if in_node else 1)) if size else 0.0

    def sharded_s(self, unit="layer", *, first=False):
        """(gathering a unit's parameters before its forward, before its backward, scattering its gradients), s: what ZeRO-3 does for
        every microbatch. ZeRO-2 does the last: it has no place for gradients of all parameters.

        Without prefetch it is ZeRO-3 in its first form: matrix by matrix, for the recomputation apart, and with a copy per rank and
        matrix for the host to launch, as torch's all_gather filled a list of n tensors.
        """
        plan, shard = self.plan, self.groups.shard
        if plan.zero < 2 or shard.size == 1:
            return 0.0, 0.0, 0.0
        first_form = plan.zero == 3 and not plan.prefetch
        pieces = MATRICES_A_LAYER if first_form and unit == "layer" else 1
        copies_s = pieces * shard.size * self.host_op_s if first_form else 0.0
        piece = unit_parameters(self.model, self.plan, unit, first=first) / pieces
        scatter_s = copies_s + pieces * self.collective_s("reduce_scatter", piece * plan.gradient_bytes, shard)
        if plan.zero == 2:
            return 0.0, 0.0, scatter_s
        gather_s = copies_s + pieces * self.collective_s("all_gather", piece * plan.element_bytes, shard)
        again = plan.reshard * (2 if first_form and plan.recompute == "full" and unit == "layer" else 1)
        return gather_s, again * gather_s, scatter_s

    @property
    def scatters_beside(self):
        """Whether a unit's gradients are scattered while the next one's backward runs."""
        return self.plan.dp_overlap and (self.plan.zero == 2 or self.plan.prefetch > 0)

    def collective_s(self, kind, size_bytes, group, cluster=None):
        """Seconds of a collective in training; on `cluster` if it is given, see `quiet`."""
        return self.slower * collective_s(kind, size_bytes, group, cluster or self.cluster) if group.size > 1 else 0.0

    # one layer ----------------------------------------------------------------------------------------------

    def kernel_s(self, kernel):
        """Seconds of `kernel`, alone."""
        if kernel not in self._kernel_s:
            self._kernel_s[kernel] = self._steps_s(kernel) if isinstance(kernel, Communication) else self._own_s(kernel)
        return self._kernel_s[kernel]

    def compute_s(self, unit, kind):
        """Seconds of all that an op of `kind` computes in a 'layer', the 'embedding' or the 'head', nothing waited for."""
        kernels = self.kernels[unit]
        backward = [*kernels.again, *kernels.input_grad]
        parts = {"F": kernels.forward, "I": backward, "W": kernels.weight_grad, "B": [*backward, *kernels.weight_grad]}
        return sum(self.kernel_s(kernel) for kernel in parts[kind] if not isinstance(kernel, Communication))

    def _own_s(self, kernel):
        precision = self.plan.precision
        if precision == "fp8" and isinstance(kernel, Matmul) and kernel.name.startswith("head"):
            precision = "bf16"  # recipes leave the output head in 16 bits
        named = (times for name, times in self.faster.items() if kernel.name == name or kernel.name.startswith(f"{name} "))
        return kernel_s(kernel, self.gpu, precision) / next(named, 1)

    def _steps_s(self, kernel):
        return kernel.steps * self.communication_s(kernel.kind, kernel.size_bytes, kernel.dimension)

    def communication_s(self, kind, size_bytes, dimension, *, cluster=None):
        """Seconds of one collective of a `dimension`'s group, or of a 'ring''s message to the next of it, in training; on `cluster` if it
        is given, see `quiet`."""
        cluster, group = cluster or self.cluster, getattr(self.groups, dimension)
        if kind == "ring":
            return self.slower * p2p_s(size_bytes, cluster, same_node=group.nodes == 1)
        return self.collective_s(kind, size_bytes, group, cluster)

    def quiet(self, ranks_per_node):
        """The cluster as a group with so many ranks a node finds it when all other GPUs are silent: each of its ranks has a NIC for itself,
        as far as there are NICs."""
        return replace(self.cluster, gpus_per_node=max(ranks_per_node, self.cluster.nics_per_node))

    def _times(self, kernels, layer=False):
        """`StageTimes` of `LayerKernels`."""
        by_name = {k.name: k for part in kernels for k in part}
        forward, again, input_grad, weight_grad = (
            self._parts(part, by_name) for part in (kernels.forward, kernels.again, kernels.input_grad, kernels.weight_grad)
        )
        ops_forward, ops_backward = runtime_ops(self.model, self.plan) if layer else (len(kernels.forward), len(kernels.input_grad))
        forward = self._with_host(forward, ops_forward, kernels.forward)
        if layer and self.plan.recompute == "full":
            again = self._with_host(again, ops_forward, kernels.again)
        split = 0.6 * ops_backward  # input gradients: all but the weights' products, additions to .grad and bias sums
        return StageTimes(
            forward, again, self._with_host(input_grad, split, kernels.input_grad),
            self._with_host(weight_grad, ops_backward - split, kernels.weight_grad),
        )  # fmt: skip

    def _parts(self, kernels, by_name):
        """`Parts` of kernels in order: a collective hides behind the kernel that it may run beside, as far as the plan lets it."""
        compute, exposed = 0.0, {"tp": 0.0, "cp": 0.0}
        for kernel in kernels:
            if not isinstance(kernel, Communication):
                compute += self.kernel_s(kernel)
                continue
            alone_s, hidden_s = self.exposed_s(kernel, by_name)
            exposed[kernel.dimension] += alone_s
            compute += BESIDE * hidden_s
        return Parts(compute=compute, tp=exposed["tp"], cp=exposed["cp"])

    def exposed_s(self, kernel, by_name):
        """(seconds of a `Communication` with nothing beside it, seconds that another kernel hides)."""
        seconds = self.kernel_s(kernel)
        hidden_s = min(self._room_s(kernel, by_name), seconds)
        return seconds - hidden_s, hidden_s

    def _room_s(self, kernel, by_name):
        """How much of `kernel`'s time another kernel can hide."""
        beside = by_name.get(kernel.beside)
        if beside is None or (self.plan.tp_overlap == "none" and kernel.dimension == "tp"):
            return 0.0
        beside_s = self.kernel_s(beside)
        if kernel.kind == "ring":
            return ring_hidden_s(self.plan.cp, self.plan.cp_layout, beside_s, self.kernel_s(kernel))
        if "grad" in kernel.beside and kernel.name.split()[-1] != "gather":
            return beside_s
        if self.plan.tp_overlap == "pipelined":
            return min(beside_s, self.kernel_s(kernel)) * (1 - 1 / self.plan.tp)  # in tp pieces: the first has nothing beside it
        return 0.0

    def _with_host(self, parts, ops, kernels):
        """`parts`, and what the GPU waits for the host."""
        calls = sum(isinstance(kernel, Communication) for kernel in kernels)
        host_s = self.host_op_s * (ops + HOST_COLLECTIVE_OPS * calls)
        return parts._replace(host=max(0.0, host_s - parts.total))

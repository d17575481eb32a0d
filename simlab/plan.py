"""How a model is spread over GPUs: the degrees of parallelism, what is sharded, what is computed again."""

from dataclasses import dataclass
from itertools import product

from simlab.errors import InputError, did_you_mean, require_whole
from simlab.schedules import ALIASES, CHUNKED, SCHEDULES, V_SHAPED

PRECISIONS = {"fp32": 4, "fp16": 2, "bf16": 2, "fp8": 2}
"""{name: bytes of a parameter, activation or message}; fp8 holds its numbers between matrix products in bf16."""

RECOMPUTE = ("none", "selective", "per-op", "full")
ATTENTIONS = ("flash", "flash-2", "flash-1", "unfused")
TP_OVERLAPS = ("none", "weight-grad", "pipelined")
CP_LAYOUTS = ("zigzag", "contiguous")
CP_KINDS = ("ring", "all-to-all", "all-gather")
LIBRARIES = ("megatron", "torch", "fsdp1")
OFFLOADS = ("none", "optimizer", "parameters", "activations")
OFFLOAD_TARGETS = ("host", "nvme")
DIMENSIONS = ("tp", "cp", "dp", "pp")


@dataclass(frozen=True, kw_only=True)
class Plan:
    """One way to train: every field a number or a name, checked when it is made."""

    dp: int = 1
    """Data-parallel replicas, each with its own part of the batch."""
    tp: int = 1
    """Tensor-parallel ranks, each with its part of every layer's matrices (Shoeybi et al. 2019, Megatron-LM)."""
    pp: int = 1
    """Pipeline stages (ranks in a pipeline)."""
    cp: int = 1
    """Context-parallel ranks, each with its part of every sequence; see `cp_kind` for what they send each other."""
    cp_layout: str = "zigzag"
    """Which part: 'zigzag' (rank r has chunks r and 2 cp - 1 - r of 2 cp: all compute equally much of causal attention) or 'contiguous'
    (the last rank computes (2 cp - 1) / cp times the mean, and all wait for it)."""
    cp_kind: str = "ring"
    """'ring' (keys and values go round), 'all-to-all' (Ulysses: whole sequences, a cp-th of the heads) or 'all-gather' (every rank has the
    keys and values of the whole sequence: Llama 3)."""
    zero: int = 0
    """ZeRO stage over dp x cp: 0 nothing sharded, 1 optimizer, 2 and gradients, 3 and parameters (FSDP). 0 and 1 reduce gradients once a
    step, 2 and 3 after every backward."""
    hybrid: int = 0
    """With zero: shard over this many ranks and replicate over the rest (HSDP); 0: over all."""
    microbatch_size: int = 1
    """Sequences of a microbatch."""
    microbatches: int = 1
    """Microbatches of each replica in a step."""
    seq: int | None = None
    """Tokens of a sequence; None: the model's own."""
    schedule: str = "1f1b"
    """A name of `simlab.schedules.SCHEDULES`."""
    chunks: int | None = None
    """Stages on each rank, for the schedules that have a choice; None: 2 with those and with V-shaped ones, else 1."""
    recompute: str = "none"
    """'none'; 'selective' (scores and softmax, Korthikanti et al. 2022); 'per-op' (all that is cheap and every second matrix product, those
    of k, attention's output and the gate's other half, as torchtitan does); 'full' (each layer's forward)."""
    precision: str = "bf16"
    """'fp32', 'fp16', 'bf16' or 'fp8' (matrix products in fp8, the rest in bf16)."""
    sequence_parallel: bool = False
    """Whether norms and residuals are sharded over tp too, with all-gather and reduce-scatter in place of all-reduce."""
    attention: str = "flash"
    """'flash': one kernel, the best that the GPU has, scores are never stored; 'flash-2', 'flash-1': that generation of it; 'unfused':
    matrix products with softmax and dropout between them."""
    library: str = "megatron"
    """Whose code runs. 'megatron': Megatron-LM, NeMo, DeepSpeed: 16-bit parameters beside the optimizer's fp32 ones, gradients and shards
    in flat buffers, an Adam of one kernel, a loss of its own. 'torch': DDP and FSDP2 (`fully_shard`) with torch's AdamW and cross-entropy:
    fp32 parameters that are cast where they are used; ZeRO-3 copies each parameter out of what was gathered and each gradient into what
    is scattered; ZeRO-1 and 2 keep parameters gathered over a step. 'fsdp1': the same with flat parameters, of which each is a view."""
    fused: bool = True
    """Whether norms, rotary embeddings and activations are a kernel each (by torch.compile or a library), not torch's op by op."""
    dropout: bool | None = None
    """Whether it has dropout; None: where attention is unfused."""
    dp_overlap: bool = True
    """Whether gradients are reduced while the backward still runs that makes them (and ZeRO-1's and 2's parameters gathered during the
    first forward)."""
    tp_overlap: str = "weight-grad"
    """'none'; 'weight-grad': the backward's communication beside the weight gradient; 'pipelined': all of it, in pieces, beside its
    matrix product."""
    bucket_bytes: int | None = None
    """Gradients are reduced, and sharded parameters gathered, in pieces of this many bytes. None: of as many numbers as in Megatron-LM,
    40 million, and a million times dp x cp where that is more: else a ring's latency would be paid too often."""
    gradient_bytes: int | None = None
    """Bytes of a gradient when it is reduced; None: as the parameters in fp16, else 4."""
    prefetch: int = 1
    """With ZeRO-3: units (the embedding, a layer, the head) that are gathered ahead; 0: each parameter is gathered when it is needed, one
    after the other."""
    reshard: bool = True
    """With ZeRO-3: whether gathered parameters are freed after the forward (and gathered again for the backward)."""
    uneven: bool = False
    """Whether stages may have different numbers of layers; embedding and head counting as a layer each is always allowed."""
    offload: str = "none"
    """'none', 'optimizer' (its states and step on the host), 'parameters' (they too) or 'activations' (over PCIe and back)."""
    offload_to: str = "host"
    """'host' (its memory) or 'nvme' (the node's drives, which its GPUs share)."""
    order: str = "-".join(DIMENSIONS)
    """How ranks are numbered, the dimension that varies fastest first (Megatron-LM's --order): neighbours share a node."""

    def __post_init__(self):
        for field in ("schedule", "order"):
            if not isinstance(getattr(self, field), str):
                raise InputError(f"{field} = {getattr(self, field)!r}: give a text, such as {getattr(Plan, field)!r}")
        object.__setattr__(self, "schedule", ALIASES.get(self.schedule, self.schedule))
        if self.schedule not in SCHEDULES:
            raise InputError(
                f"unknown schedule {self.schedule!r}{did_you_mean(self.schedule, SCHEDULES) or ';'} there is {', '.join(SCHEDULES)}"
            )
        if self.chunks is None:
            object.__setattr__(self, "chunks", 2 if self.schedule in (*CHUNKED, *V_SHAPED) else 1)
        own = 2 if self.schedule in V_SHAPED else 1
        if self.chunks != own and self.schedule not in CHUNKED:
            raise InputError(
                f"chunks = {self.chunks!r}: {self.schedule} has {own}, without a choice; leave it out, or take one of {', '.join(CHUNKED)}"
            )
        for field in ("dp", "tp", "pp", "cp", "microbatch_size", "microbatches", "chunks"):
            require_whole(field, getattr(self, field), 1)
        for field in ("hybrid", "prefetch"):
            require_whole(field, getattr(self, field), 0)
        if not isinstance(self.zero, int) or isinstance(self.zero, bool) or self.zero not in (0, 1, 2, 3):
            raise InputError(f"zero = {self.zero!r}: give 0 (none), 1, 2 or 3")
        for field in ("seq", "gradient_bytes", "bucket_bytes"):
            if getattr(self, field) is not None:
                require_whole(field, getattr(self, field), 1)
        for field in ("sequence_parallel", "fused", "dropout", "dp_overlap", "reshard", "uneven"):
            if not (isinstance(getattr(self, field), bool) or (field == "dropout" and self.dropout is None)):
                raise InputError(f"{field} = {getattr(self, field)!r}: give True or False")
        for field, choices in (
            ("recompute", RECOMPUTE), ("precision", PRECISIONS), ("attention", ATTENTIONS),
            ("tp_overlap", TP_OVERLAPS), ("offload", OFFLOADS), ("offload_to", OFFLOAD_TARGETS),
            ("cp_layout", CP_LAYOUTS), ("cp_kind", CP_KINDS), ("library", LIBRARIES),
        ):  # fmt: skip
            if getattr(self, field) not in tuple(choices):
                raise InputError(f"{field} = {getattr(self, field)!r}: give one of {', '.join(choices)}")
        if self.cp > 1 and self.attention == "unfused":  # as in Megatron-LM: blocks of scores are joined inside the fused kernel
            raise InputError(f"cp = {self.cp} with attention = 'unfused': give a fused one, {', '.join(ATTENTIONS[:-1])}")
        if sorted(self.order.split("-")) != sorted(DIMENSIONS):
            raise InputError(f"order = {self.order!r}: give tp, cp, dp and pp once each, joined by '-', the fastest first")
        if self.hybrid and (self.dp * self.cp) % self.hybrid:
            raise InputError(
                f"hybrid = {self.hybrid} does not divide dp x cp = {self.dp * self.cp}; {near(self.hybrid, self.dp * self.cp)}"
            )
        if self.sequence_parallel and self.tp == 1:
            object.__setattr__(self, "sequence_parallel", False)
        if self.dropout is None:
            object.__setattr__(self, "dropout", self.attention == "unfused")
        if self.gradient_bytes is None:
            object.__setattr__(self, "gradient_bytes", 2 if self.precision == "fp16" else 4)
        if self.bucket_bytes is None:
            object.__setattr__(self, "bucket_bytes", self.gradient_bytes * max(40_000_000, 1_000_000 * self.dp * self.cp))

    @property
    def gpus(self):
        """How many it takes: dp x tp x pp x cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def stages(self):
        """Pipeline stages: pp x chunks."""
        return self.pp * self.chunks

    @property
    def element_bytes(self):
        """Bytes of a parameter, an activation or a message's number."""
        return PRECISIONS[self.precision]

    @property
    def shards(self):
        """Over how many ranks what ZeRO shards is spread."""
        return self.hybrid or self.dp * self.cp

    @property
    def global_batch(self):
        """Sequences in a step."""
        return self.dp * self.microbatch_size * self.microbatches

    def check(self, model, gpus=None):
        """`InputError` if `model` cannot be cut like this, or if it does not take exactly `gpus`; else itself."""
        seq = self.seq or model.seq
        if gpus is not None and self.gpus != gpus:
            total = f"dp x tp x pp x cp = {self.dp} x {self.tp} x {self.pp} x {self.cp} = {self.gpus}"
            rest = self.tp * self.pp * self.cp
            hint = f"dp = {gpus // rest} would" if gpus % rest == 0 else f"tp x pp x cp = {rest} {_divides(rest, gpus)}"
            raise InputError(f"{total}, but there are {gpus} GPUs: {hint}")
        if 0 < model.positions < seq:
            raise InputError(f"seq = {seq} is more than {model.name or 'the model'}'s {model.positions} positions: give at most those")
        for field, value, name, whole in (
            ("tp", self.tp, "heads", model.heads), ("tp", self.tp, "ffn", model.ffn), ("cp", self.cp, "seq", seq),
        ):  # fmt: skip
            if whole % value:
                raise InputError(f"{field} = {value} does not divide {model.name or 'the model'}'s {name} = {whole}; {near(value, whole)}")
        if self.cp > 1 and self.cp_kind == "all-to-all" and model.heads % (self.tp * self.cp):
            raise InputError(
                f"cp = {self.cp} all-to-all does not divide the {model.heads // self.tp} heads that tp = {self.tp} leaves of "
                f"{model.name or 'the model'}'s {model.heads}; {near(self.cp, model.heads // self.tp)}, or cp_kind = 'ring' or 'all-gather'"
            )
        if self.cp > 1 and self.cp_kind != "all-to-all" and self.cp_layout == "zigzag" and seq % (2 * self.cp):
            raise InputError(f"2 cp = {2 * self.cp} zigzag chunks do not divide seq = {seq}; {near(2 * self.cp, seq)}")
        if model.kv_heads % self.tp and self.tp % model.kv_heads:
            raise InputError(
                f"tp = {self.tp} neither divides {model.name or 'the model'}'s kv_heads = {model.kv_heads} nor is a multiple of them; "
                f"{near(self.tp, model.kv_heads)}"
            )
        self.layers_of_stages(model.layers)
        return self

    def layers_of_stages(self, layers, stages=None):
        """[layers of each stage]. Equally many; else, embedding and head counting as a layer each, as Llama 3 405B's 126 on 16 ranks
        (Dubey et al. 2024, arXiv 2407.21783, section 3.3.2); else, if `uneven`, as near to it as can be; else `InputError`."""
        stages = stages or self.stages
        if stages > layers:
            raise InputError(
                f"pp x chunks = {self.pp} x {self.chunks} = {stages} stages are more than the {layers} layers; {near(stages, layers)}"
            )
        if layers % stages == 0:
            return [layers // stages] * stages
        if (layers + 2) % stages == 0 and (layers + 2) // stages >= 2:
            each = (layers + 2) // stages
            return [each - 1, *[each] * (stages - 2), each - 1]
        if not self.uneven:
            raise InputError(
                f"pp x chunks = {self.pp} x {self.chunks} = {stages} stages do not divide {layers} layers "
                f"(nor {layers + 2} with embedding and head as one each); {near(stages, layers)}"
            )
        return [layers // stages + (1 <= stage <= layers % stages) for stage in range(stages)]

    def ranks(self):
        """[(dp, cp, pp, tp) of each GPU], in `order`: as it is, tp is innermost, so that it stays within a node; then cp, dp, pp."""
        fastest_last = self.order.split("-")[::-1]
        coordinates = [dict(zip(fastest_last, at)) for at in product(*(range(getattr(self, name)) for name in fastest_last))]
        return [(at["dp"], at["cp"], at["pp"], at["tp"]) for at in coordinates]

    def offsets(self, *dimensions):
        """[numbers of the ranks that share all coordinates with rank 0 but those of `dimensions`], in order."""
        strides, stride = {}, 1
        for name in self.order.split("-"):
            strides[name] = stride
            stride *= getattr(self, name)
        reached = [range(0, getattr(self, name) * strides[name], strides[name]) for name in dimensions]
        return sorted(sum(steps) for steps in product(*reached))

    def pipelines_in_nodes(self, gpus_per_node):
        """Whether no pipeline crosses from one node to another."""
        if self.gpus <= gpus_per_node or self.pp == 1:
            return True
        block = self.pp * self.offsets("pp")[1]  # so many ranks are whole pipelines
        return gpus_per_node % block == 0


def near(value, whole):
    """What to try instead of `value`, which should divide `whole`."""
    divisors = [n for n in range(1, whole + 1) if whole % n == 0] if whole <= 10**6 else []
    closest = sorted(sorted(divisors, key=lambda n: abs(n - value))[:3])
    return f"nearest that do: {', '.join(map(str, closest))}" if closest else "give a divisor"


def _divides(rest, gpus):
    return f"does not divide them; {near(rest, gpus)}"

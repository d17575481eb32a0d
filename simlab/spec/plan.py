"""How a model is trained on many GPUs: what is split, sharded, computed again and moved."""

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from simlab.display import plain
from simlab.layer.passes.recomputation import RECOMPUTE
from simlab.libraries import LIBRARIES, Library
from simlab.optimizers import OPTIMIZERS
from simlab.schedules import ALIASES, SCHEDULES
from simlab.spec.fields import (
    Derived,
    FieldFacts,
    documented,
    documented_fields,
    json_schema,
    short_repr,
    with_field_docs,
)
from simlab.spec.layout import DIMENSIONS, Layout, spreads_experts
from simlab.spec.plan_checks import (
    ATTENTIONS,
    CP_KINDS,
    CP_LAYOUTS,
    DISPATCHERS,
    GRAPHS,
    OFFLOAD_TARGETS,
    OFFLOADS,
    PRECISIONS,
    TP_OVERLAPS,
    ZERO_STAGES,
    check_combination,
    check_fields,
)
from simlab.spec.plan_effects import check_effects
from simlab.spec.plan_models import check_model
from simlab.spec.stage_layers import check_stage_layers, layers_of_stages

if TYPE_CHECKING:
    from simlab.spec.model import Model


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Plan:
    """One way to train a model on many GPUs.

    All fields are checked when a plan is made. `InputError` says which value is wrong and what
    would be valid; a value that would have no effect beside the others is refused, too. A field
    whose default is None is given its value then, but for `seq` and `bucket_bytes`.
    `dataclasses.replace` derives such a number anew from the changed fields, unless it was given. It keeps `dropout`, which is a
    property of the model that is trained.
    """

    dp: int = documented(
        "The number of data-parallel replicas. Each trains on its own part of the batch.", default=1
    )
    tp: int = documented(
        """The number of tensor-parallel ranks. Each holds its part of every layer's matrices
        (Shoeybi et al. 2019, Megatron-LM).""",
        default=1,
    )
    pp: int = documented("The number of pipeline ranks. Each holds `chunks` stages.", default=1)
    cp: int = documented(
        """The number of context-parallel ranks. Each holds its part of every sequence; `cp_kind`
        says what they send each other.""",
        default=1,
    )
    ep: int = documented(
        """The number of expert-parallel ranks: so many of the dp x cp ranks share the experts of
        each layer. Each holds an ep-th of them and computes the tokens of all that these experts are
        chosen for. All-to-alls bring the tokens and take the results back (Lepikhin et al. 2020,
        GShard, arXiv 2006.16668).""",
        default=1,
    )
    expert_load: float = documented(
        """The tokens that the busiest expert-parallel rank computes over the mean. 1 stands for
        balanced experts. A capacity factor to which experts are padded says the same number. Lists,
        times and memory are those of the busiest rank.""",
        default=1.0,
    )
    etp: int = documented(
        """The number of tensor-parallel ranks that cut each expert, tp or 1 (Megatron-LM's
        --expert-tensor-parallel-size). None stands for tp. With 1 the ranks of a tensor-parallel group hold experts
        of their own: an `ep` group is of the tp x dp x cp ranks then, and each sends the tokens that
        sequence parallelism leaves it.""",
        default=None,
    )
    dispatcher: str = documented(
        """How tokens travel to their experts: by NCCL's all-to-all, or once to a node as by DeepEP's
        kernels. 'all-to-all' sends a copy for each expert. 'once-a-node' sends a token once to each
        node that has experts for it, and there to each GPU that has (Megatron-LM's
        --moe-token-dispatcher-type flex).""",
        default="all-to-all",
        choices=DISPATCHERS,
    )
    ep_overlap: bool = documented(
        """Whether the all-to-alls of expert parallelism run beside the computation of another
        microbatch: a forward and a backward then go side by side, layer by layer, each of which
        computes while the other one's tokens travel (DeepSeek-AI 2024, DualPipe; Megatron-LM's
        --overlap-moe-expert-parallel-comm). A rank holds one layer of a microbatch more then.""",
        default=False,
    )
    fused_experts: bool = documented(
        """Whether all experts of a rank are one kernel for each product, which also makes their activation
        and its gradient, casts these, and adds biases (Megatron-LM's --use-transformer-engine-op-fuser, with
        precision 'fp8-mx').""",
        default=False,
    )
    cp_layout: str = documented(
        """Which part of a sequence a context-parallel rank holds. 'zigzag' gives rank r the chunks
        r and 2 cp - 1 - r of 2 cp, so that all ranks compute equally much of causal attention.
        'contiguous' gives rank r the r-th of cp parts, so that the last rank computes (2 cp - 1) /
        cp times the mean and all others wait for it.""",
        default="zigzag",
        choices=CP_LAYOUTS,
    )
    cp_kind: str = documented(
        """How context-parallel ranks exchange keys and values. 'ring' passes them round.
        'all-to-all' gives each rank whole sequences of a cp-th of the heads (Ulysses). 'all-gather'
        gives each rank the keys and values of the whole sequence (Llama 3).""",
        default="ring",
        choices=CP_KINDS,
    )
    zero: int = documented(
        """The ZeRO stage, which says what the ranks that hold the same part of the model shard. 0 shards nothing, 1 the
        optimizer's states, 2 also gradients, 3 also parameters (FSDP). Stages 0 and 1 reduce
        gradients once a step, stages 2 and 3 after every backward, but in torch's pipelines once a
        step.""",
        default=0,
        choices=ZERO_STAGES,
    )
    hybrid: int = documented(
        """The number of ranks over which ZeRO shards; the groups of so many ranks hold replicas of
        each other (HSDP). 0 shards over all dp x cp ranks.""",
        default=0,
    )
    microbatch_size: int = documented("The number of sequences in a microbatch.", default=1)
    microbatches: int = documented(
        "The number of microbatches that each replica processes in a step.", default=1
    )
    seq: int | None = documented(
        "The number of tokens in a sequence. None stands for the model's own.", default=None
    )
    schedule: str = documented(
        "The pipeline schedule: the order of forwards and backwards on each rank.",
        default="1f1b",
        choices=tuple(SCHEDULES),
    )
    chunks: int = documented(
        """The number of stages on each pipeline rank. Interleaved schedules leave the choice; None
        stands for 2 with those and with V-shaped schedules, and for 1 with all others.""",
        default=None,
    )
    stage_layers: str | tuple[int, ...] = documented(
        """The number of layers on each stage, as a rule or as one number for each stage. 'even'
        gives each stage equally many. 'ends-count-as-layers' counts the embedding and the head as a
        layer each, so that the first and the last stage hold one layer less, or none. 'uneven'
        gives one layer more to some stages. 'auto' is 'even' where that comes out even, and
        'ends-count-as-layers' elsewhere. Among given numbers the first and the last may be 0: such
        a stage holds the embedding or the head only.""",
        default="auto",
    )
    recompute: str = documented(
        """Which activations are dropped after the forward and computed again for the backward.
        'selective' drops attention's scores and softmax (Korthikanti et al. 2022). 'outputs' drops
        the results of norms, of experts' activation functions and of latent attention's products up,
        each made again from what it was made of (Megatron-LM's --recompute-modules layernorm moe_act
        mla_up_proj). 'per-op' drops
        all that is cheap and the results of every second matrix product: those of k, of attention's
        output and of one half of the gated MLP (torchtitan). 'full' keeps only each layer's
        input; with library 'torch' it ends before a layer's last product, which the backward does not
        need.""",
        default="none",
        choices=RECOMPUTE,
    )
    precision: str = documented(
        """The number format of parameters, activations and messages. 'fp8' computes matrix products
        in 8 bits and keeps all else in bf16, but with library 'megatron' for the inputs of those
        products, which Transformer Engine keeps in 8 bits. It has a scale for each tensor, with
        library 'megatron' from the largest values of earlier steps (--fp8-recipe delayed). 'fp8-current'
        scales a tensor by its own largest value, which is found first (tensorwise), and 'fp8-mx' has a
        scale for every 32 numbers (mxfp8), both of Transformer Engine, so with library 'megatron'.
        'fp8-rowwise' has one for each row (torchao's recipe, so with library 'torch' or 'fsdp1'), and
        what tensor parallelism sends stays in 16 bits. Products are taken to be as fast with each. 'fp4'
        computes all three products in 4 bits, with a scale for every 16 numbers (nvfp4 of Transformer
        Engine on Blackwell, so with library 'megatron'); of all layers, for which recipes leave
        some in 16 bits is no part of a plan.""",
        default="bf16",
        choices=tuple(PRECISIONS),
    )
    fp8_head: bool = documented(
        """Whether the output head, too, is a product in 8 bits (Megatron-LM's --fp8-output-proj, with
        precision 'fp8-mx'). It stays in 16 bits otherwise.""",
        default=False,
    )
    fp8_param_gather: bool = documented(
        """Whether the weights of a layer's products are parameters in 8 bits, and are gathered so
        (Megatron-LM's --fp8-param-gather, with precision 'fp8' and ZeRO). Otherwise Transformer
        Engine keeps 8-bit copies of them beside parameters in 16 bits.""",
        default=False,
    )
    sequence_parallel: bool = documented(
        """Whether tensor-parallel ranks also shard the activations of norms and residuals along the
        sequence. All-gathers and reduce-scatters then replace all-reduces. With tp = 1
        there is nothing to shard, and it is set to False.""",
        default=False,
    )
    attention: str = documented(
        """The attention kernel. 'flash' is one fused kernel that never stores scores, the best that
        the GPU has; 'flash-2' and 'flash-1' are that generation of it. 'flash-fp8' computes in 8 bits, too,
        with precision 'fp8-mx' (Megatron-LM's fp8_dot_product_attention). 'unfused' computes matrix
        products with softmax and dropout between them.""",
        default="flash",
        choices=ATTENTIONS,
    )
    library: str = documented(
        """The library whose code runs. 'megatron' stands for Megatron-LM, NeMo and DeepSpeed: 16-bit
        parameters beside the optimizer's fp32 ones, flat buffers of gradients, a fused Adam and a
        fused loss. 'torch' stands for DDP and FSDP2 (`fully_shard`) with torch's AdamW and
        cross-entropy: fp32 parameters are cast where they are used; ZeRO-3 copies parameters out of
        what it gathers and gradients into what it scatters; ZeRO-1 and 2 keep parameters gathered
        over a step; inputs that sequence parallelism gathers are kept for the backward. 'fsdp1' is
        the same with flat parameters, of which each parameter is a view.
        'nanotron' is Hugging Face's: as 'megatron', but each backward makes 16-bit gradients that are
        then added to the fp32 ones, DDP keeps buckets, and ZeRO-1 reduces all gradients to all ranks.""",
        default="megatron",
        choices=tuple(LIBRARIES),
    )
    fused: bool = documented(
        """Whether each norm, rotary embedding and activation function is one kernel, made by
        torch.compile or by a library. Otherwise torch launches one kernel per op.""",
        default=True,
    )
    cuda_graphs: str = documented(
        """What the host launches as one, for the launches were recorded: with 'router' the router of experts and
        the sizes of what is exchanged; with 'parts' these and attention or the state space of each layer
        (Megatron-LM's --cuda-graph-modules moe_router moe_preprocess, and attn mamba); with 'whole' all of a
        step but the update (--cuda-graph-impl full_iteration).""",
        default="none",
        choices=GRAPHS,
    )
    compiled_loss: bool = documented(
        """Whether a kernel makes the loss in which no logits in fp32 are written: torch.compile's
        (libraries 'torch' and 'fsdp1'; torchtitan's compile.components) or Transformer Engine's
        ('megatron'; --cross-entropy-fusion-impl te). Otherwise Megatron-LM's loss is its own.""",
        default=False,
    )
    dropout: bool = documented(
        "Whether the model applies dropout. None stands for True where attention is unfused.",
        default=None,
    )
    dp_overlap: bool = documented(
        """Whether gradients are reduced while the backward still runs. ZeRO-1 and 2 then also gather
        parameters during the first forward.""",
        default=True,
    )
    tp_overlap: str = documented(
        """Which tensor-parallel communication runs beside a matrix product. 'weight-grad' runs that
        of the backward beside the weight gradient. 'pipelined' cuts all of it into pieces, each
        beside a piece of its own product.""",
        default="weight-grad",
        choices=TP_OVERLAPS,
    )
    bucket_bytes: int | None = documented(
        """The size of a piece in which ZeRO 0 and 1 reduce gradients, and ZeRO-1 gathers updated
        parameters, in bytes of gradients. None stands for one piece for each unit (the embedding, a
        layer, the head), as ZeRO-2 and 3 always have it and as the executor does it.""",
        default=None,
    )
    gradient_bytes: int = documented(
        """The bytes of one number of a gradient when it is reduced. None stands for 2 in fp16 and 4
        otherwise.""",
        default=None,
    )
    optimizer: str = documented(
        """The optimizer, which says what is kept of each parameter and what its step moves and
        computes. 'adam' keeps two moments, 'sgd' one. 'adafactor' keeps means over each row and each
        column of a matrix. 'muon' keeps one moment of matrices of layers and makes it orthogonal;
        vectors, the embedding and the head are Adam's. With ZeRO-1 it gives each matrix to one rank.""",
        default="adam",
        choices=tuple(OPTIMIZERS),
    )
    moment_bytes: int = documented(
        """The bytes of one number of Adam's two moments, 4 or 2 (Megatron-LM's --exp-avg-dtype and
        --exp-avg-sq-dtype, with library 'megatron').""",
        default=4,
    )
    prefetch: int = documented(
        """With ZeRO-3, the number of units (the embedding, a layer, the head) that are gathered
        ahead. 0 gathers each parameter when it is needed, one after the other.""",
        default=1,
    )
    reshard: bool = documented(
        """With ZeRO-3, whether gathered parameters are freed after the forward and gathered again
        for the backward. Without, they stay until the backward is over, and in a pipeline until
        all gradients of their stage are there.""",
        default=True,
    )
    offload: str = documented(
        """What lives on the host. 'optimizer' keeps the optimizer's states there and updates there.
        'parameters' keeps parameters there, too. 'activations' moves activations there over PCIe
        after the forward and back for the backward.""",
        default="none",
        choices=OFFLOADS,
    )
    offload_to: str = documented(
        "Where `offload` puts it: the host's memory, or the node's drives, which its GPUs share.",
        default="host",
        choices=OFFLOAD_TARGETS,
    )
    order: str = documented(
        """How ranks are numbered, the dimension that varies fastest first (Megatron-LM's --order).
        Ranks that differ in it are neighbours and share a node.""",
        default="-".join(DIMENSIONS),
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if isinstance(self.schedule, str):
            self._set(schedule=ALIASES.get(self.schedule, self.schedule))
        for name in ("chunks", "gradient_bytes", "etp"):
            if isinstance(getattr(self, name), Derived):
                self._set(**{name: None})
        check_fields(self, plan_fields())
        if self.chunks is None:
            self._set(chunks=Derived(SCHEDULES[self.schedule].chunks))
        if self.etp is None:
            self._set(etp=Derived(self.tp))
        self._set(stage_layers=check_stage_layers(self.stage_layers, self.stages))
        check_combination(self)
        if self.tp == 1:  # as Megatron-LM does, so that a sweep over tp may begin at 1
            self._set(sequence_parallel=False)
        if self.dropout is None:
            self._set(dropout=self.attention == "unfused")
        if self.gradient_bytes is None:
            self._set(gradient_bytes=Derived(2 if self.precision == "fp16" else 4))
        check_effects(self, plan_fields())

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def to_dict(self) -> dict[str, Any]:
        """{field: value} in the types that JSON knows; `Plan(**values)` makes the plan again."""
        return plain(self)

    @property
    def gpus(self) -> int:
        """The number of GPUs that the plan takes: dp x tp x pp x cp."""
        return self.dp * self.tp * self.pp * self.cp

    @property
    def stages(self) -> int:
        """The number of pipeline stages: pp x chunks."""
        return self.pp * self.chunks

    @property
    def is_pipeline(self) -> bool:
        """Whether there are several stages."""
        return self.stages > 1

    @property
    def habits(self) -> Library:
        """What the library does that the plan does not say."""
        return LIBRARIES[self.library]

    @property
    def has_narrow_products(self) -> bool:
        """Whether matrix products are computed in 8 or in 4 bits."""
        return self.precision.startswith(("fp8", "fp4"))

    @property
    def cast_bytes(self) -> float:
        """The bytes of a number that was cast for a product: 1 without scales, and in 4 bits 1/2 with a
        scale of a byte for every 16 numbers."""
        return 1 / 2 + 1 / 16 if self.precision == "fp4" else 1.0

    @property
    def sends_casts(self) -> bool:
        """Whether a tensor is cast for products before ranks gather it; scales of rows go with no gather."""
        return self.has_narrow_products and self.precision != "fp8-rowwise"

    @property
    def element_bytes(self) -> int:
        """The bytes of one number of a parameter, an activation or a message."""
        return PRECISIONS[self.precision]

    @property
    def shards(self) -> int:
        """The number of ranks over which ZeRO spreads what it shards."""
        return self.hybrid or self.holders

    @property
    def is_sharded(self) -> bool:
        """Whether these are several."""
        return self.shards > 1

    @property
    def copies(self) -> int:
        """The number of ranks of a pipeline that hold each stage: 2 with DualPipe, else 1. Each of them
        runs its part of the microbatches."""
        return SCHEDULES[self.schedule].copies

    @property
    def holders(self) -> int:
        """The number of ranks that hold the same part of the model and sum its gradients."""
        return self.dp * self.cp * self.copies

    @property
    def spreads_experts(self) -> bool:
        """See `simlab.spec.layout.spreads_experts`."""
        return spreads_experts(self)

    @property
    def expert_holders(self) -> int:
        """The number of ranks that hold the same part of the same experts, over which ZeRO spreads
        what it shards of them."""
        return self.holders * self.tp // (self.etp * self.ep)

    @property
    def global_batch(self) -> int:
        """The number of sequences in a step."""
        return self.dp * self.microbatch_size * self.microbatches

    @cached_property
    def layout(self) -> Layout:
        """Which rank stands where, and which groups the ranks form."""
        degrees = {name: getattr(self, name) for name in DIMENSIONS}
        order = tuple(self.order.split("-"))
        return Layout(
            **degrees,
            order=order,
            shards=self.hybrid or None,
            ep=self.ep,
            etp=self.etp,
            copies=self.copies,
        )

    def check(self, model: "Model", gpus: int | None = None) -> "Plan":
        """This plan, if `model` can be split like this on exactly `gpus` GPUs (None: on any
        number). Raises `InputError` otherwise."""
        check_model(self, model, gpus)
        return self

    def layers_of_stages(self, layers: int, stages: int | None = None) -> list[int]:
        """[layers of each stage] of a model of `layers` layers; see `stage_layers`. Raises
        `InputError` where the rule does not come out even."""
        said = f"pp x chunks = {self.pp} x {self.chunks} = {self.stages}"
        return layers_of_stages(self.stage_layers, layers, stages or self.stages, said)


def plan_schema() -> dict[str, Any]:
    """The JSON schema of a plan: of the object that a plan file or a JSON message holds."""
    return json_schema(Plan)


def plan_fields() -> list[FieldFacts]:
    """[`FieldFacts` of each field of `Plan`], from which command lines and schemas are made."""
    return [*_plan_fields()]


@lru_cache(1)  # each plan asks for them, and Python takes long to find types
def _plan_fields() -> list[FieldFacts]:
    return documented_fields(Plan)

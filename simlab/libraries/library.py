"""The record of a library: what its code does, which a plan does not say."""

from dataclasses import dataclass

Ops = tuple[int, int, int]
"""(forward, input-gradient, weight-gradient) ops that the host dispatches."""


@dataclass(frozen=True, kw_only=True)
class Library:
    """One library, as `simlab.libraries.LIBRARIES` holds it under its name. What a fact is read from
    stands beside its value, in the library's file."""

    name: str

    # what it can be asked for
    # ----------------------------------------------------------------------------------------

    most_zero: int = 3
    """The last of ZeRO's stages that it has."""
    has_eight_bits: bool = True
    """Whether it computes products in 8 bits."""
    scales_rows: bool = False
    """Whether products in 8 bits can have a scale for each row ('fp8-rowwise')."""
    keeps_narrow_states: bool = False
    """Whether ZeRO can keep moments in 16 bits and parameters in 8."""
    own_recomputation: str = ""
    """The kind of recomputation that only it and its like have: 'outputs' or 'per-op'."""
    predicts_more_tokens: bool = False
    """Whether it trains modules that predict one more token each (`Model.mtp_layers`)."""
    records_launches: bool = False
    """Whether it records launches in CUDA graphs (`Plan.cuda_graphs`)."""
    compiles_loss: bool = False
    """Whether torch.compile, or Transformer Engine's kernel, can make its loss."""

    # gradients and the update
    # ----------------------------------------------------------------------------------------

    has_flat_gradients: bool = False
    """Whether gradients stay in one fp32 buffer beside 16-bit parameters, whose optimizer has an fp32
    copy of them. Otherwise parameters are fp32 and cast where they are used, and gradients come with
    a backward and go with the update."""
    adds_in_place: bool = False
    """Whether the kernel that makes a weight's gradient adds it to that buffer."""
    adds_after_backward: bool = False
    """Whether a backward makes 16-bit gradients of all its weights, which are added to the fp32 ones when
    it is over."""
    copies_into_buckets: bool = False
    """Whether without ZeRO all 16-bit gradients are also in buckets, between steps too."""
    reduces_to_all: bool = False
    """Whether with ZeRO-1 every rank gets the sum of all gradients, and not of its shard only."""
    clips_every_gradient: bool = False
    """Whether with ZeRO-1 a rank takes the norm of all gradients that it holds, clips and clears them."""
    gathers_lists: bool = False
    """Whether ZeRO-1 gathers updated parameters as lists of tensors, which it copies three times."""
    fuses_optimizer: bool = False
    """Whether the optimizer's step is one kernel, where the optimizer has one."""

    # ZeRO-2 and 3, and pipelines
    # ----------------------------------------------------------------------------------------

    cuts_each_tensor: bool = False
    """Whether ZeRO-3 cuts each tensor over the ranks, so that parameters are copied out of what is
    gathered, and gradients into what is scattered; otherwise many tensors are one flat one."""
    joins_gradients: bool = False
    """Whether the gradient of a flat parameter is made by joining those of its views."""
    reduces_after_last_backward: bool = False
    """Whether in a pipeline ZeRO-2 and 3 reduce the gradients of a stage, and free its parameters, when
    its last backward is over."""
    has_world_communicator: bool = False
    """Whether it has a communicator of all ranks, and in the stead of the pipeline's one of all that hold a
    part of the same replica."""

    # what a layer does
    # ----------------------------------------------------------------------------------------

    autocasts: bool = False
    """Whether torch's autocast decides the types of what data parallelism does not shard, in 16 bits."""
    keeps_gathered_inputs: bool = False
    """Whether a rank keeps what sequence parallelism has gathered for a product until the gradient of the
    product's weight is made; otherwise it gathers its input once more."""
    exchanges_heads: bool = False
    """Whether tensor-parallel ranks exchange heads for tokens where a norm needs all heads of a token."""
    stops_recomputing_early: bool = False
    """Whether full recomputation ends when all tensors are there that the backward reads."""
    keeps_eight_bit_copies: bool = False
    """Whether each weight of a product in 8 bits is also kept in 8 bits, as it is and transposed."""
    keeps_eight_bit_inputs: bool = False
    """Whether the inputs of products in 8 bits are kept in 8 bits, of experts' products, too."""
    searches_largest_values: bool = False
    """Whether operands of products in 8 bits are read once more before the cast, for their scale."""
    joins_products: bool = False
    """Whether queries, keys and values are one product, and a gate and its product up another one."""
    reorders_heads: bool = False
    """Whether queries, keys and values are copied into other orders after their product."""
    fuses_activation: bool = True
    """Whether a gated activation can be one kernel (`Plan.fused`)."""
    rotates_apart: bool = False
    """Whether ops of torch apply a rotary embedding with a factor (`Model.scaled_rotary`)."""
    limits_apart: bool = False
    """Whether ops of torch limit gate and up before the kernel of the activation (`Model.clamped`)."""
    adds_biases_apart: bool = False
    """Whether ops of torch add the biases of experts' second products, expert by expert."""
    fuses_loss: bool = False
    """Whether the loss is the vocabulary-parallel one, on logits in fp32, whose gradient takes their place."""
    copies_logits: bool = False
    """Whether such a loss subtracts the largest logit out of place, while the logits are still there."""
    has_product_workspace: bool = False
    """Whether its products have cuBLAS workspaces of their own, beside those of torch's products."""
    launches_each_expert: bool = False
    """Whether each expert's product, and its casts to 8 bits, are launched by themselves."""
    layer_ops: tuple[Ops, Ops] | None = None
    """The ops of a layer, without its collectives, without sequence parallelism and with it; None:
    those that `simlab.lowering.kernels.host` counts."""

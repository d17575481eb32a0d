"""Multi-head latent attention (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1)."""

from typing import TYPE_CHECKING

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, linear, norm

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

GROUP = "latents"


def latent(model: "ModelSizes", normed: Tensor, q: Tensor, k: Tensor, v: Tensor) -> list[Operation]:
    """Queries, keys and values by way of latents: down to a latent, its norm, and up to all heads.

    Keys are put together from what comes up and from the rotary part that all heads have in common,
    which is a copy of each head's key. Tensor-parallel ranks have their heads of the products up, and
    all of those down, which with sequence parallelism meet a rank's own tokens; then the latents
    are gathered (`MLASelfAttention` in megatron/core/transformer/multi_latent_attention.py).
    """
    rank, rope, up = model.kv_rank, model.rope_size, model.head_size - model.rope_size
    operations, entered = [], normed
    if model.q_rank:
        made, entered = (
            Tensor(name, model.q_rank, Cut.TOKENS, group=GROUP) for name in ("q latent", "q normed")
        )
        operations += [
            linear(OperationKind.Q_DOWN, normed, (made,)),
            norm("norm of q latent", made, entered),
        ]
    made, latents = (
        Tensor(name, rank, Cut.TOKENS, group=GROUP) for name in ("kv latent", "kv normed")
    )
    turned = Tensor("rotary part of keys", rope, Cut.TOKENS, group=GROUP)
    own = k._replace(name="own part of keys", numbers=model.heads * up, least=up)
    up_product = linear(OperationKind.KV_UP, latents, (own, v), cut=Cut.HEADS, joined=True)
    return [
        *operations,
        linear(OperationKind.Q_UP, entered, (q,), cut=Cut.HEADS),
        linear(OperationKind.KV_DOWN, normed, (made, turned), joined=True),
        norm("norm of kv latent", made, latents),
        # the rotary part comes along where latents are gathered
        up_product._replace(reads=(latents, turned)),
        Operation(OperationKind.COPY, (k,), (k,), saves=(turned,), name="copy of keys"),
    ]

"""The kernels of a transformer layer on one GPU: what its forward, input gradient and weight gradient launch, in order.

Sizes follow Megatron-LM's layer (Shoeybi et al. 2019; Korthikanti et al. 2022): tokens x hidden everywhere, tensor parallelism
dividing what lies between a column-parallel and a row-parallel matrix, and with sequence parallelism the rest too.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from simlab.cost.context import busiest_share
from simlab.cost.parameters import unit_parameters

RUNTIME_OPS = {True: (30, 50), False: (57, 90)}
"""{whether attention, norms and activations are an op each: (forward, backward) ops of a layer that the host dispatches}. Counted with
torch's dispatcher on a layer written as Megatron-LM's of 2021 (57 and 90) and on the same one with those fused."""

FUSED_SOFTMAX_MATRICES = 4
"""What a rank's matrices of scores, heads x sequences, must be a multiple of for Megatron-LM's kernel that scales, masks and normalises
them in one pass: a block has 4 warps, each with a row of its own matrix. Any other number goes through torch's own ops (megatron/model/
fused_softmax.py, `attn_batch_size % 4 == 0`; vTrain's copy, src/model/fused_softmax.py of VIA-Research/vTrain, has the same)."""

TORCH_SOFTMAX = {"cast": 6, "scaling": 8, "mask": 8, "softmax": 8, "cast back": 6}
"""{op: bytes that it reads and writes of a score} of those: to fp32, times the layer's number (query-key layer scaling), masked in place,
normalised, back to 16 bits; 36, where the one kernel moves 4. Backward 48, where it moves 6: a softmax's gradient needs its result too,
and a mask's is a copy that is then masked."""

EAGER = {"norm": 9, "rotary": 5, "activation": 10 / 6}
"""What torch's own ops, one kernel each, read and write of a Llama layer, in units of the fused kernel's: RMSNorm casts to fp32, squares,
takes the mean, scales twice and casts back (36 bytes an element, not 4); rotary embedding casts, multiplies complex numbers and casts
back (20, not 4); the gated activation stores its first half (10 bytes, not 6)."""


@dataclass(frozen=True)
class Matmul:
    """`batch` products of m x k by k x n."""

    name: str
    m: int
    n: int
    k: int
    batch: int = 1
    role: str = "forward"
    """'forward', 'input' (gradient) or 'weight' (gradient): their operands lie differently in memory."""

    @property
    def flops(self):
        """Two for each multiplication and addition."""
        return 2 * self.m * self.n * self.k * self.batch


@dataclass(frozen=True)
class Attention:
    """Scores, softmax and their product with the values in one kernel that stores no scores (Dao et al. 2022)."""

    name: str
    batch: int
    heads: int
    queries: int
    keys: int
    head_size: int
    backward: bool = False
    generation: str = "flash"
    """Of the kernel: 'flash' is the best that the GPU has, 'flash-1' and 'flash-2' are those of FlashAttention's papers."""
    share: float = 1.0
    """Of the scores that the causal mask leaves: what this rank has over the mean of the context-parallel ranks."""

    @property
    def flops(self):
        """In full, as all published figures count them, though a causal kernel does half: 4 q k d each way, 2.5 times it backward.
        The mean of the context-parallel ranks; this one's are `share` times that."""
        return 4 * self.batch * self.heads * self.queries * self.keys * self.head_size * (2.5 if self.backward else 1)


@dataclass(frozen=True)
class Memory:
    """Anything that the memory bounds: norms, activation functions, dropout, softmax, additions."""

    name: str
    size_bytes: float
    """Read and written."""
    flops = 0


@dataclass(frozen=True)
class Communication:
    """A collective of a tensor- or context-parallel group."""

    name: str
    kind: str
    """'all_reduce', 'all_gather', 'reduce_scatter', 'all_to_all', 'ring' (a neighbour to the next, size_bytes a step)."""
    dimension: str
    """'tp' or 'cp'."""
    size_bytes: float
    """Of the whole buffer (all-to-all: of a rank's)."""
    beside: str = ""
    """The name of the kernel that may run at the same time; '': none."""
    steps: int = 1
    """How many of them, one after the other ('ring')."""
    flops = 0


class LayerKernels(NamedTuple):
    """What one layer launches for a microbatch on one rank."""

    forward: list
    input_grad: list
    weight_grad: list
    again: list
    """What is computed again before the backward."""


class Sizes(NamedTuple):
    """Tokens and elements on one rank that all kernels are made of."""

    tokens: int
    """of a rank's part of the microbatch: b s / cp"""
    outside: float
    """elements of a hidden state outside the tensor-parallel part: tokens x hidden, / tp with sequence parallelism"""
    width: int
    """bytes of an element"""


def kernel_names(model, plan):
    """First words of what a step's forwards run beside communication, in order: 'attention', 'qkv', 'norm' (both), 'head', ..."""
    parts = (embedding_kernels(model, plan), layer_kernels(model, plan), head_kernels(model, plan))
    forward = [kernel for part in parts for kernel in part.forward if not isinstance(kernel, Communication)]
    return list(dict.fromkeys(kernel.name.split()[0] for kernel in forward))


def sizes(model, plan):
    """`Sizes` of `model` under `plan`."""
    tokens = plan.microbatch_size * (plan.seq or model.seq) // plan.cp
    return Sizes(tokens, tokens * model.hidden / (plan.tp if plan.sequence_parallel else 1), plan.element_bytes)


def layer_kernels(model, plan):
    """`LayerKernels` of `model` under `plan`."""
    forward = [*_attention_part(model, plan), *_mlp_part(model, plan)]
    input_grad, weight_grad = [], []
    for kernel in reversed(forward):
        grads_in, grads_weight = _backward(kernel, plan)
        input_grad += grads_in
        weight_grad += grads_weight
    ways = {"none": [], "selective": _recomputed_scores(forward), "per-op": _recomputed_ops(model, plan, forward), "full": forward}
    grads = input_grad + _residual_grads(model, plan), weight_grad + _bias_grads(model, plan)
    return _with_copies(LayerKernels(forward, *grads, ways[plan.recompute]), plan, unit_parameters(model, plan, "layer"))


def _attention_part(model, plan):
    s, t, d = sizes(model, plan), plan.tp, model.head_size
    heads, kv = model.heads // t, max(1, model.kv_heads // t)
    kernels = [_eager(Memory("norm 1", 2 * s.width * s.outside), model, plan), *_enter(model, plan, "qkv")]
    kernels.append(Matmul("qkv", s.tokens, (heads + 2 * kv) * d, model.hidden))
    if not model.positions:
        kernels.append(_eager(Memory("rotary", 2 * s.width * s.tokens * (heads + kv) * d), model, plan))
    kernels += _unfused(model, plan, heads) if plan.attention == "unfused" else _flash(model, plan, heads, kv)
    kernels.append(Matmul("output", s.tokens, model.hidden, heads * d))
    return [*kernels, *_leave(model, plan, "output"), _residual("residual 1", model, plan)]


def _flash(model, plan, heads, kv):
    """Fused attention, and what context parallelism sends for it.

    In a ring every rank passes on its keys and values, cp - 1 times, and time is that of the rank with most to compute: of the causal
    triangle the last one's contiguous chunk has (2 cp - 1) / cp times the mean, zigzag chunks the mean (`simlab.cost.context`).
    With all-to-all (DeepSpeed-Ulysses, Jacobs et al. 2023, arXiv 2309.14509) a rank trades its part of the sequence with all heads for the
    whole sequence with a cp-th of the heads: 4 all-to-alls of q, k, v and the result, each of 1/cp of a tensor per rank, of which it
    sends (cp - 1) / cp. Every rank has the whole triangle of its heads, so no layout is unbalanced. Where there are fewer key and
    value heads than ranks, they are sent to several.
    With all-gather (Llama 3, Dubey et al. 2024, arXiv 2407.21783, section 3.3.2) every rank waits for all keys and all values, which it
    keeps for the backward, and reduce-scatters their gradients. Time is the busiest rank's, as in a ring.
    """
    seq, d, batch, cp = plan.seq or model.seq, model.head_size, plan.microbatch_size, plan.cp
    if cp == 1:
        return [Attention("attention", batch, heads, seq, seq, d, generation=plan.attention)]
    head = sizes(model, plan).width * sizes(model, plan).tokens * d  # bytes of one head's tensor on a rank
    if plan.cp_kind == "all-to-all":
        kv_sent = -(-kv // cp) * cp
        q, k, v, result = (
            Communication(f"{name} exchange", "all_to_all", "cp", count * head)
            for name, count in (("q", heads), ("k", kv_sent), ("v", kv_sent), ("result", heads))
        )
        return [q, k, v, Attention("attention", batch, heads // cp, seq, seq, d, generation=plan.attention), result]
    share = busiest_share(cp, plan.cp_layout)
    attention = Attention("attention", batch, heads, seq // cp, seq, d, generation=plan.attention, share=share)
    if plan.cp_kind == "all-gather":
        return [*(Communication(f"{name} gather", "all_gather", "cp", cp * kv * head) for name in ("keys", "values")), attention]
    return [Communication("attention ring", "ring", "cp", 2 * kv * head, "attention", cp - 1), attention]


def _unfused(model, plan, heads):
    seq, d, s = plan.seq or model.seq, model.head_size, sizes(model, plan)
    batch, queries = plan.microbatch_size * heads, seq // plan.cp
    scores = batch * queries * seq
    passes = {"softmax": 2 * s.width} if softmax_is_fused(model, plan) else TORCH_SOFTMAX
    kernels = [Matmul("scores", queries, seq, d, batch), *(Memory(name, size * scores) for name, size in passes.items())]
    if plan.dropout:
        kernels.append(Memory("attention dropout", (2 * s.width + 1) * scores))
    return [*kernels, Matmul("values", queries, d, seq, batch), Memory("transpose", 2 * s.width * s.tokens * heads * d)]


def softmax_is_fused(model, plan):
    """Whether stored scores are scaled, masked and normalised in one pass. Leaves out: the longest sequence that the kernel takes (2048 in
    2021, longer since), fp32, which it does not take but is counted as if it did, and that torch's ops keep their result in fp32."""
    return plan.element_bytes != 2 or plan.microbatch_size * (model.heads // plan.tp) % FUSED_SOFTMAX_MATRICES == 0


def runtime_ops(model, plan):
    """(forward, backward) ops of a layer that the host dispatches."""
    forward, backward = RUNTIME_OPS[plan.fused and plan.attention != "unfused"]
    more = 0 if plan.attention != "unfused" or softmax_is_fused(model, plan) else len(TORCH_SOFTMAX) - 1
    return forward + more, backward + more


def _mlp_part(model, plan):
    s, t = sizes(model, plan), plan.tp
    tokens = s.tokens * (model.experts_per_token if model.experts else 1)
    up = (1 + model.gated_mlp) * model.ffn // t
    kernels = [_eager(Memory("norm 2", 2 * s.width * s.outside), model, plan), *_enter(model, plan, "up")]
    if model.experts:
        kernels += [Matmul("router", s.tokens, model.experts, model.hidden), Memory("permute", 4 * s.width * tokens * model.hidden)]
    kernels += [
        Matmul("up", tokens, up, model.hidden),
        _eager(Memory("activation", s.width * tokens * (up + model.ffn // t)), model, plan),
        Matmul("down", tokens, model.hidden, model.ffn // t),
    ]
    return [*kernels, *_leave(model, plan, "down"), _residual("residual 2", model, plan)]


def _eager(kernel, model, plan):
    """`kernel`, or what torch's own ops move in its stead. A GPT's norm and activation are one op in torch too."""
    if plan.fused or model.bias:
        return kernel
    return Memory(kernel.name, kernel.size_bytes * EAGER[kernel.name.split()[0]])


def _residual(name, model, plan):
    """Bias, dropout and the residual's addition."""
    s = sizes(model, plan)
    return Memory(name, (3 * s.width + bool(plan.dropout)) * s.outside)


def _enter(model, plan, product):
    """What comes before a column-parallel matrix."""
    if plan.tp == 1 or not plan.sequence_parallel:
        return []
    size = _hidden_bytes(model, plan) / (2 if plan.precision == "fp8" else 1)  # cast before it is sent
    return [Communication(f"{product} gather", "all_gather", "tp", size, product)]


def _leave(model, plan, product):
    """What comes after a row-parallel matrix."""
    if plan.tp == 1:
        return []
    if plan.sequence_parallel:
        return [Communication(f"{product} scatter", "reduce_scatter", "tp", _hidden_bytes(model, plan), product)]
    return [Communication(f"{product} reduce", "all_reduce", "tp", _hidden_bytes(model, plan), product)]


def message_kernels(model, plan):
    """What follows a message from another stage: each tensor-parallel rank was sent a part of it and gathers the others', so that what
    is whole on all of them crosses the slow links once (Narayanan et al. 2021, section 4.1). With sequence parallelism it stays cut."""
    if plan.tp == 1 or plan.sequence_parallel:
        return []
    return [Communication("message gather", "all_gather", "tp", _hidden_bytes(model, plan))]


def _hidden_bytes(model, plan):
    s = sizes(model, plan)
    return s.width * s.tokens * model.hidden


COLUMN = ("qkv", "up", "head")


def _backward(kernel, plan):
    """([input-gradient kernels], [weight-gradient kernels]) of a forward kernel."""
    if isinstance(kernel, Matmul):
        return _matmul_backward(kernel, plan)
    if isinstance(kernel, Attention):
        return [replace(kernel, name="attention grad", backward=True)], []
    if isinstance(kernel, Communication):
        return _communication_backward(kernel, plan)
    # of the forward's bytes; a norm's backward reads its input and gradient twice: for the input's gradient, and for the weights'
    part = {"norm": 2.5, "softmax": 1.5, "mask": 2, "residual": 0.8, "activation": 1.6}.get(kernel.name.split()[0], 1)
    return [Memory(f"{kernel.name} grad", part * kernel.size_bytes)], []


def _matmul_backward(kernel, plan):
    if kernel.name in ("scores", "values"):  # both operands are activations
        left = Matmul(f"{kernel.name} grad left", kernel.m, kernel.k, kernel.n, kernel.batch, "input")
        return [left, Matmul(f"{kernel.name} grad right", kernel.k, kernel.n, kernel.m, kernel.batch, "input")], []
    grads = [Matmul(f"{kernel.name} input grad", kernel.m, kernel.k, kernel.n, kernel.batch, "input")]
    if kernel.name in COLUMN and plan.tp > 1 and not plan.sequence_parallel:
        size = kernel.m * kernel.k * plan.element_bytes
        grads.append(Communication(f"{kernel.name} grad reduce", "all_reduce", "tp", size, f"{kernel.name} weight grad"))
    return grads, [Matmul(f"{kernel.name} weight grad", kernel.n, kernel.k, kernel.m, kernel.batch, "weight")]


def _communication_backward(kernel, plan):
    product = kernel.name.split()[0]
    if kernel.kind == "all_reduce":
        return [], []  # the other side's identity: its sum is `_matmul_backward`'s
    if kernel.kind == "all_gather" and kernel.dimension == "cp":  # what was gathered is kept
        return [Communication(f"{product} grad scatter", "reduce_scatter", "cp", kernel.size_bytes)], []
    if kernel.kind == "all_gather":
        again = Communication(f"{product} gather again", "all_gather", "tp", kernel.size_bytes, f"{product} input grad")
        size = kernel.size_bytes * (2 if plan.precision == "fp8" else 1)  # sums are of 16 bits
        scatter = Communication(f"{product} grad scatter", "reduce_scatter", "tp", size, f"{product} weight grad")
        return [again, scatter], []  # only its part of the input was kept
    if kernel.kind == "reduce_scatter":
        return [Communication(f"{product} grad gather", "all_gather", "tp", kernel.size_bytes, f"{product} input grad")], []
    if kernel.kind == "all_to_all":  # a gradient goes back the way that its tensor came
        return [Communication(f"{product} grad exchange", "all_to_all", "cp", kernel.size_bytes)], []
    return [Communication("attention grad ring", "ring", "cp", 2 * kernel.size_bytes, "attention grad", kernel.steps)], []


def _residual_grads(model, plan):
    """The gradients of a residual's two ways are added, twice a layer."""
    s = sizes(model, plan)
    return [Memory("residual sum grad", 2 * 3 * s.width * s.outside)]


def _bias_grads(model, plan):
    """Column sums of the outputs' gradients."""
    if not model.bias:
        return []
    s = sizes(model, plan)
    columns = (model.heads + 2 * model.kv_heads) * model.head_size / plan.tp + model.ffn / plan.tp
    return [Memory("bias grad", s.width * (s.tokens * columns + 2 * s.outside))]


def _recomputed_scores(forward):
    """What selective recomputation runs again; nothing with a fused kernel, whose backward computes the scores again anyway."""
    return [kernel for kernel in forward if kernel.name in ("scores", *TORCH_SOFTMAX, "attention dropout", "values")]


def _recomputed_ops(model, plan, forward):
    """What torchtitan's per-op recomputation runs again: all but attention, what was reduced, and every second matrix product. Of q, k, v,
    output, gate, up, down (`_apply_ac_to_transformer_block` counts them) k, output and up are computed again; without a gate k, output
    and down."""
    columns = {"qkv": max(1, model.kv_heads // plan.tp) * model.head_size}
    columns |= {"up": model.ffn // plan.tp, "down": 0} if model.gated_mlp else {"up": 0}
    again = []
    for kernel in forward:
        if isinstance(kernel, Attention) or (isinstance(kernel, Communication) and kernel.kind != "all_gather"):
            continue
        if isinstance(kernel, Matmul):
            kernel = replace(kernel, n=columns.get(kernel.name, kernel.n))
        if not isinstance(kernel, Matmul) or kernel.n:
            again.append(kernel)
    return again


def _with_copies(kernels, plan, parameters):
    """`LayerKernels` of a unit of so many parameters with what ZeRO-3 copies on the computing stream where torch shards.

    FSDP2 (torch/distributed/fsdp/_fully_shard/_fsdp_collectives.py): a gathered buffer has rank after rank, so each parameter is copied out
    of it, before the forward and before the backward (`foreach_all_gather_copy_out`), and each gradient into what is scattered, in its
    type (`foreach_reduce_scatter_copy_in`). FSDP1's flat parameter is gathered in place; its gradient is its views' joined.
    """
    if plan.zero < 3 or plan.shards == 1 or plan.library == "megatron":
        return kernels
    size = plan.element_bytes * parameters
    if plan.library == "fsdp1":
        return kernels._replace(weight_grad=[*kernels.weight_grad, Memory("copy of gradients", 2 * size)])
    out, again = Memory("copy of parameters", 2 * size), [Memory("copy of parameters again", 2 * size)] * plan.reshard
    into = Memory("copy of gradients", size + plan.gradient_bytes * parameters)
    return LayerKernels([out, *kernels.forward], [*again, *kernels.input_grad], [*kernels.weight_grad, into], kernels.again)


def head_kernels(model, plan):
    """`LayerKernels` of the last stage's end: norm, output head and cross-entropy.

    A logit's loss reads and writes about 30 bytes forward and 14 backward in Megatron-LM's vocabulary-parallel form (cast to fp32, maximum,
    subtraction, exponential, sum, division), which it has without tensor parallelism, too; 14 and 22 in torch's own (cast, log-softmax;
    zeros for its gradient, that, cast).
    """
    s = sizes(model, plan)
    vocab = -(-model.vocab // plan.tp)
    logits, megatron = s.tokens * vocab, plan.library == "megatron"
    gather, head = _enter(model, plan, "head"), Matmul("head", s.tokens, vocab, model.hidden)
    loss = Memory("loss", (30 if megatron else 14) * logits)
    forward = [Memory("last norm", 2 * s.width * s.outside), *gather, head, *_vocabulary_sums(s, plan), loss]
    grads = [Memory("loss grad", (14 if megatron else 22) * logits)]
    head_grads, weight_grads = _matmul_backward(head, plan)
    grads += [*head_grads, *(grad for kernel in gather for grad in _communication_backward(kernel, plan)[0])]
    grads.append(Memory("last norm grad", 3 * s.width * s.outside))
    whole = LayerKernels(forward, grads, weight_grads, [])
    return _with_copies(whole, plan, unit_parameters(model, plan, "head", first=plan.stages == 1))


def _vocabulary_sums(s, plan):
    """What the vocabulary-parallel loss needs of the other ranks: each token's largest logit, then the sum of exponentials and the
    target's logit, in fp32 (Megatron-LM, core/tensor_parallel/cross_entropy.py)."""
    if plan.tp == 1:
        return []
    return [
        Communication("loss maximum", "all_reduce", "tp", 4 * s.tokens),
        Communication("loss sums", "all_reduce", "tp", 2 * 4 * s.tokens),
    ]


def embedding_kernels(model, plan):
    """`LayerKernels` of the first stage's begin: the rows of the embedding (and positions, dropout), summed over tp; their gradient, for
    which sequence parallelism gathers that of all tokens. It is dense: zeros, the tokens' rows added, and all of it added to what earlier
    microbatches made, unless ZeRO-3 scatters it first."""
    s = sizes(model, plan)
    rows = Memory("embedding", (2 + 2 * bool(model.positions) + bool(plan.dropout)) * s.width * s.outside)
    sums = _leave(model, plan, "embedding")
    gathers = [grad for kernel in sums for grad in _communication_backward(kernel, plan)[0]]
    dense = model.vocab * model.hidden / plan.tp * (s.width if plan.zero == 3 else 2 * s.width + 2 * plan.gradient_bytes)
    grad = Memory("embedding grad", 3 * 4 * s.tokens * model.hidden / plan.tp + dense)
    return _with_copies(LayerKernels([rows, *sums], gathers, [grad], []), plan, unit_parameters(model, plan, "embedding"))

"""Bytes that kernels read and write, held against torch's own ops, and what ZeRO-3, fp8 and a
vocabulary cut over ranks add, against closed forms."""

from dataclasses import replace

import pytest

from simlab.cost.roofline import efficiencies_of, kernel_s
from simlab.lowering.kernels import (
    Communication,
    Matmul,
    Memory,
    embedding_kernels,
    head_kernels,
    layer_kernels,
)
from simlab.spec.cluster import gpus
from simlab.spec.model import Model
from simlab.spec.plan import Plan

torch = pytest.importorskip("torch")
from torch_bytes import meta, moved_bytes  # noqa: E402  (it needs torch)

TOKENS, HIDDEN, FFN, VOCAB = 64, 256, 1024, 4096
GPT = Model(layers=2, hidden=HIDDEN, heads=8, vocab=VOCAB, positions=TOKENS, seq=TOKENS)
LLAMA = replace(GPT, positions=0, bias=False, gated_mlp=True, ffn=FFN)
PLAIN = Plan(dropout=False)
ATEN = torch.ops.aten


def size_of(kernels, name):
    """Bytes of the one `Memory` kernel of that name."""
    (found,) = [k.size_bytes for k in kernels if isinstance(k, Memory) and k.name == name]
    return found


def hidden():
    return meta(TOKENS, HIDDEN)


def moved(function):
    return moved_bytes(function, least=TOKENS * HIDDEN)


# norms, activations, dropout
# ------------------------------------------------------------------------------------------


def norm_backward(mask):
    rows, weight = meta(TOKENS, 1, dtype=torch.float32), meta(HIDDEN)
    return ATEN.native_layer_norm_backward(
        hidden(), hidden(), [HIDDEN], rows, rows, weight, weight, mask
    )


@pytest.mark.parametrize("name", ["norm 1", "norm 2"])
def test_a_norm_moves_what_torchs_does_and_its_backward_what_its_two_kernels_do(name):
    """One kernel for the input's gradient, one for the weight's and the bias's: each reads both
    operands."""
    kernels = layer_kernels(GPT, PLAIN)
    forward = moved(
        lambda: ATEN.native_layer_norm(hidden(), [HIDDEN], meta(HIDDEN), meta(HIDDEN), 1e-5)
    )
    backward = sum(
        moved(lambda mask=mask: norm_backward(mask))
        for mask in ([True, False, False], [False, True, True])
    )
    for its, label in ((kernels, name), (head_kernels(GPT, PLAIN), "last norm")):
        assert size_of(its.forward, label) == forward
        assert size_of(its.input_grad, f"{label} grad") == backward


@pytest.mark.parametrize("model", [GPT, LLAMA], ids=["gpt", "llama"])
@pytest.mark.parametrize("fused", [True, False])
def test_the_last_norm_of_a_model_moves_what_the_norms_of_its_layers_do(model, fused):
    plan = replace(PLAIN, fused=fused)
    layer, head = layer_kernels(model, plan), head_kernels(model, plan)
    for part in ("forward", "input_grad"):
        end = " grad" if part == "input_grad" else ""
        assert size_of(getattr(head, part), f"last norm{end}") == size_of(
            getattr(layer, part), f"norm 1{end}"
        )


def test_an_activation_moves_what_torchs_gelu_does_forward_and_about_that_backward():
    kernels, wide = layer_kernels(GPT, PLAIN), meta(TOKENS, 4 * HIDDEN)
    assert size_of(kernels.forward, "activation") == moved(lambda: ATEN.gelu(wide))
    backward = moved(lambda: ATEN.gelu_backward(wide, wide))
    assert size_of(kernels.input_grad, "activation grad") == pytest.approx(backward, rel=0.07)


def test_a_gated_activation_moves_three_numbers_forward_and_five_backward():
    """Two read and one written; then the gradient and both read, two gradients written."""
    kernels, one = layer_kernels(LLAMA, PLAIN), 2 * TOKENS * FFN
    assert size_of(kernels.forward, "activation") == 3 * one
    assert size_of(kernels.input_grad, "activation grad") == pytest.approx(5 * one, rel=0.07)


@pytest.mark.parametrize("tp, sequence_parallel", [(1, False), (4, False), (4, True)])
def test_a_residual_reads_two_and_writes_one_and_dropout_a_byte_of_mask_each_way(
    tp, sequence_parallel
):
    """Forward what torch's addition moves; backward, dropout reads a gradient and the mask and
    writes a gradient: five bytes, of which the kernel is within an eighth."""
    part = tp if sequence_parallel else 1
    plan = Plan(tp=tp, sequence_parallel=sequence_parallel, dropout=False)
    numbers = TOKENS * HIDDEN // part
    without, with_mask = (
        layer_kernels(GPT, replace(plan, dropout=dropout)) for dropout in (False, True)
    )
    added = moved(lambda: ATEN.add(hidden(), hidden())) / part
    for name in ("residual 1", "residual 2"):
        assert size_of(without.forward, name) == added
        assert size_of(with_mask.forward, name) - added == numbers
        assert size_of(with_mask.input_grad, f"{name} grad") == pytest.approx(
            5 * numbers, rel=0.125
        )


def test_the_gradients_of_both_residuals_are_added_to_those_of_their_branches():
    kernels = layer_kernels(GPT, PLAIN)
    assert size_of(kernels.input_grad, "residual sum grad") == 2 * moved(
        lambda: ATEN.add(hidden(), hidden())
    )


def test_dropout_of_scores_writes_a_byte_of_mask_each_and_reads_it_backward():
    plan = Plan(attention="unfused", dropout=True, microbatch_size=2)
    scores = meta(2, 8, TOKENS, TOKENS)
    kernels = layer_kernels(GPT, plan)
    forward = moved_bytes(lambda: ATEN.native_dropout(scores, 0.1, True), least=scores.numel())
    assert size_of(kernels.forward, "attention dropout") == forward == 5 * scores.numel()
    assert size_of(kernels.input_grad, "attention dropout grad") == 5 * scores.numel()


def test_one_kernel_for_stored_scores_moves_what_torchs_softmax_does_both_ways():
    """Backward it reads the gradient and the result, and writes a gradient."""
    plan = Plan(attention="unfused", dropout=False, microbatch_size=2)
    scores = meta(2, 8, TOKENS, TOKENS)
    kernels = layer_kernels(GPT, plan)
    forward = moved_bytes(lambda: ATEN._softmax(scores, -1, False), least=scores.numel())
    backward = moved_bytes(
        lambda: ATEN._softmax_backward_data(scores, scores, -1, scores.dtype), least=scores.numel()
    )
    assert size_of(kernels.forward, "softmax") == forward
    assert size_of(kernels.input_grad, "softmax grad") == backward


def test_scores_that_the_one_kernel_does_not_take_go_through_torchs_ops_in_fp32():
    """Two matrices of scores: not a multiple of four. Backward, a mask's gradient is a copy of the
    whole that is then masked in place."""
    plan = Plan(attention="unfused", dropout=False)
    kernels = layer_kernels(replace(GPT, heads=2, kv_heads=2, head_size=128), plan)
    half, scores = meta(2, TOKENS, TOKENS), meta(2, TOKENS, TOKENS, dtype=torch.float32)
    mask = meta(TOKENS, TOKENS, dtype=torch.bool)
    ops = {
        "cast": (lambda: half.float(), lambda: scores.to(half.dtype)),
        "scaling": (lambda: ATEN.mul(scores, 2.0), lambda: ATEN.mul(scores, 2.0)),
        "mask": (
            lambda: ATEN.masked_fill_(scores, mask, 0),
            lambda: ATEN.masked_fill_(scores.clone(), mask, 0),
        ),
        "softmax": (
            lambda: ATEN._softmax(scores, -1, False),
            lambda: ATEN._softmax_backward_data(scores, scores, -1, scores.dtype),
        ),
        "cast back": (lambda: scores.to(half.dtype), lambda: half.float()),
    }
    for name, (forward, backward) in ops.items():
        assert size_of(kernels.forward, name) == moved_bytes(forward, least=scores.numel())
        grad = size_of(kernels.input_grad, f"{name} grad")
        assert grad == moved_bytes(backward, least=scores.numel())


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_biases_read_the_gradient_of_every_product_once(tp):
    """Their gradients are column sums: torch's reads all and writes a row."""
    products = (3 * HIDDEN // tp, 4 * HIDDEN // tp, HIDDEN, HIDDEN)
    expected = sum(
        moved_bytes(lambda n=n: ATEN.sum.dim_IntList(meta(TOKENS, n), [0]), least=TOKENS * n)
        for n in products
    )
    kernels = layer_kernels(GPT, replace(PLAIN, tp=tp))
    assert size_of(kernels.weight_grad, "bias grad") == expected
    assert not [k for k in layer_kernels(LLAMA, PLAIN).weight_grad if k.name == "bias grad"]


@pytest.mark.parametrize("tp", [1, 4])
def test_rotary_embedding_reads_and_writes_queries_and_keys_each_way(tp):
    kernels = layer_kernels(replace(LLAMA, kv_heads=4), replace(PLAIN, tp=tp))
    numbers = TOKENS * (8 + 4) // tp * (HIDDEN // 8)
    assert size_of(kernels.forward, "rotary") == 2 * 2 * numbers
    assert size_of(kernels.input_grad, "rotary grad") == 2 * 2 * numbers


# embedding, head and loss
# ------------------------------------------------------------------------------------------


DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}


@pytest.mark.parametrize("precision", DTYPES)
def test_torchs_loss_moves_what_its_ops_do_both_ways(precision):
    """In 16 bits a cast to fp32, then a log-softmax; backward zeros, the softmax's gradient and in
    16 bits a cast."""
    logits = meta(TOKENS, VOCAB, dtype=DTYPES[precision]).requires_grad_()
    target = meta(TOKENS, dtype=torch.int64)
    forward = moved_bytes(lambda: loss_of(logits, target), least=logits.numel())
    loss = loss_of(logits, target)
    backward = moved_bytes(loss.backward, least=logits.numel())
    kernels = head_kernels(GPT, replace(PLAIN, library="torch", precision=precision))
    assert size_of(kernels.forward, "loss") == forward
    assert size_of(kernels.input_grad, "loss grad") == backward


def loss_of(logits, target):
    return torch.nn.functional.cross_entropy(logits.float(), target)


@pytest.mark.parametrize("precision", DTYPES)
def test_a_compiled_loss_reads_logits_once_each_way_and_writes_their_gradient(precision):
    """As one kernel each way: nothing of their size is made in fp32. Transformer Engine's has read them
    once before, for their maximum and sum, and writes the gradient in the forward, which the backward
    multiplies."""
    logits = TOKENS * VOCAB * DTYPES[precision].itemsize
    for library, passes in (("torch", 1), ("megatron", 3)):
        plan = replace(PLAIN, library=library, precision=precision, compiled_loss=True)
        kernels = head_kernels(GPT, plan)
        assert size_of(kernels.forward, "loss") == passes * logits
        assert size_of(kernels.input_grad, "loss grad") == 2 * logits


@pytest.mark.parametrize("precision", DTYPES)
def test_megatrons_loss_moves_what_its_ops_do_both_ways(precision):
    """Megatron-Core's `_VocabParallelCrossEntropy` (core/tensor_parallel/cross_entropy.py): in fp32
    a maximum, a difference and an exponential in place, a sum, a quotient in place; backward a
    product in place. In 16 bits there is a cast before and one after."""
    logits, row = meta(TOKENS, VOCAB, dtype=DTYPES[precision]), meta(TOKENS, 1, dtype=torch.float32)

    def forward():
        numbers = logits.float()
        numbers.amax(-1)
        numbers.sub_(row).exp_()
        numbers.sum(-1)
        numbers.div_(row)

    def backward():
        softmax.mul_(row).to(logits.dtype)

    softmax = meta(TOKENS, VOCAB, dtype=torch.float32)
    kernels = head_kernels(GPT, replace(PLAIN, precision=precision))
    assert size_of(kernels.forward, "loss") == moved_bytes(forward, least=logits.numel())
    assert size_of(kernels.input_grad, "loss grad") == moved_bytes(backward, least=logits.numel())


@pytest.mark.parametrize("tp", [2, 4])
def test_a_vocabulary_cut_over_ranks_sums_three_fp32_numbers_a_token_in_two_all_reduces(tp):
    """Its largest logit; the sum of exponentials and the target's logit. None without."""
    its = [k for k in head_kernels(GPT, replace(PLAIN, tp=tp)).forward if k.name[:4] == "loss"]
    largest, sums = [k for k in its if isinstance(k, Communication)]
    number = torch.finfo(torch.float32).bits // 8
    assert (largest.size_bytes, sums.size_bytes) == (number * TOKENS, 2 * number * TOKENS)
    assert {(k.kind, k.dimension) for k in (largest, sums)} == {("all_reduce", "tp")}
    names = [k.name for k in head_kernels(GPT, replace(PLAIN, tp=tp)).forward]
    assert names.index("head") < names.index("loss maximum") < names.index("loss sums")
    assert names[-1] == "loss"
    assert not [k for k in head_kernels(GPT, PLAIN).forward if isinstance(k, Communication)]


def test_ranks_that_the_vocabulary_does_not_divide_compute_the_larger_part():
    kernels = head_kernels(replace(GPT, vocab=4097), replace(PLAIN, tp=4, library="torch"))
    assert [k.n for k in kernels.forward if isinstance(k, Matmul)] == [1025]
    assert size_of(kernels.forward, "loss") == 14 * 1025 * TOKENS


@pytest.mark.parametrize("precision", DTYPES)
def test_dropout_of_the_embedding_moves_what_torchs_does_both_ways(precision):
    """Without dropout the rows of the tokens are read and written, and, in a GPT, added to those of
    the positions."""
    numbers = TOKENS * HIDDEN
    whole, mask = meta(numbers, dtype=DTYPES[precision]), meta(numbers, dtype=torch.bool)
    forward = moved(lambda: ATEN.native_dropout(whole, 0.1, True))
    backward = moved(lambda: ATEN.native_dropout_backward(whole, mask, 1.1))
    for model, accesses in ((GPT, 4), (LLAMA, 2)):
        plain = replace(PLAIN, precision=precision)
        without = embedding_kernels(model, plain)
        dropped = embedding_kernels(model, replace(plain, dropout=True))
        rows = size_of(without.forward, "embedding")
        assert rows == accesses * whole.nbytes
        assert size_of(dropped.forward, "embedding") - rows == forward
        assert size_of(dropped.input_grad, "embedding dropout grad") == backward
        assert not without.input_grad


@pytest.mark.parametrize("zero, a_number", [*((z, 2 + 2 + 4 + 4) for z in (0, 1, 2)), (3, 2)])
def test_the_embeddings_gradient_is_dense(zero, a_number):
    """Zeros are written (2 bytes) and read again to be added to fp32 (4 read, 4 written); rows of
    tokens are read, and read and written where they are added, in fp32. ZeRO-3 scatters what was
    written."""
    plan = Plan(dp=2, zero=zero, gradient_bytes=4)
    kernels = embedding_kernels(GPT, plan)
    rows = 3 * 4 * TOKENS * HIDDEN
    found = size_of(kernels.weight_grad, "embedding grad")
    assert found == rows + a_number * VOCAB * HIDDEN


# ZeRO-3's copies
# ------------------------------------------------------------------------------------------

COPIES = ("copy of parameters", "copy of parameters again", "copy of gradients")


def copies(kernels):
    return [
        sum(k.size_bytes for k in part if k.name in COPIES)
        for part in (kernels.forward, kernels.input_grad, kernels.weight_grad)
    ]


@pytest.mark.parametrize(
    "precision, width, gradient", [("bf16", 2, 4), ("bf16", 2, 2), ("fp32", 4, 4)]
)
@pytest.mark.parametrize("reshard", [True, False])
def test_fsdp2_copies_parameters_out_and_gradients_in_once_each(
    precision, width, gradient, reshard
):
    """Out of the gathered buffer before the forward, and before the backward where they were
    dropped; gradients into the buffer that is scattered, in its type."""
    plan = Plan(
        dp=2, zero=3, library="torch", precision=precision, gradient_bytes=gradient, reshard=reshard
    )
    layer = torch.nn.TransformerEncoderLayer(HIDDEN, 8, 4 * HIDDEN)
    numbers = sum(p.numel() for p in layer.parameters())
    out, into = 2 * width * numbers, (width + gradient) * numbers
    assert copies(layer_kernels(GPT, plan)) == [out, reshard * out, into]


def test_fsdp1_joins_gradients_alone_and_megatron_or_one_rank_copies_nothing():
    plan = Plan(dp=2, zero=3, library="fsdp1")
    layer = torch.nn.TransformerEncoderLayer(HIDDEN, 8, 4 * HIDDEN)
    joined = 2 * 2 * sum(p.numel() for p in layer.parameters())
    assert copies(layer_kernels(GPT, plan)) == [0, 0, joined]
    for other in (
        replace(plan, library="megatron"),
        replace(plan, library="torch", zero=2),
        replace(plan, library="torch", dp=1),
    ):
        assert copies(layer_kernels(GPT, other)) == [0, 0, 0]


# fp8
# ------------------------------------------------------------------------------------------


def test_in_fp8_inputs_are_gathered_in_8_bits_and_sums_travel_in_16():
    """A part of the input is cast before it is sent; results, and the gradients of inputs, are sums
    over ranks, which would overflow 8 bits."""
    plan = Plan(tp=4, sequence_parallel=True)
    whole = 2 * TOKENS * HIDDEN
    for precision, gathered in (("bf16", whole), ("fp8", whole / 2)):
        kernels = layer_kernels(GPT, replace(plan, precision=precision))
        for part in (kernels.forward, kernels.input_grad):
            sizes = {
                (k.kind, "gather again" in k.name or k in kernels.forward): k.size_bytes
                for k in part
                if isinstance(k, Communication)
            }
            for (kind, of_input), size in sizes.items():
                is_input = kind == "all_gather" and of_input
                assert size == (gathered if is_input else whole), (precision, kind)


def test_with_a_scale_for_each_row_all_that_is_sent_has_16_bits():
    plan = Plan(tp=4, sequence_parallel=True, library="torch", precision="fp8-rowwise")
    assert layer_kernels(GPT, plan) == layer_kernels(GPT, replace(plan, precision="bf16"))


@pytest.mark.parametrize("precision, width", [("bf16", 2), ("fp32", 4)])
def test_a_weights_gradient_is_added_to_one_in_fp32_and_other_results_are_written(precision, width):
    gpu = gpus()["a100-sxm-80gb"]
    reached = gpu.memory_bandwidth_bytes_per_s * efficiencies_of(gpu).memory
    written = {}
    for role in ("forward", "input", "weight"):
        # of a product with next to nothing to compute: the operands are read, the result written
        small, large = (Matmul("thin", 8192, n, 1, role=role) for n in (8192, 16384))
        more_s = kernel_s(large, gpu, precision) - kernel_s(small, gpu, precision)
        written[role] = (more_s * reached - width * 8192) / 8192**2
    assert written["weight"] - written["forward"] == pytest.approx(8 - width, rel=0.01)
    assert written["input"] == pytest.approx(written["forward"], rel=0.05)


@pytest.mark.parametrize(
    "fields, width",
    [({}, 4), ({"gradient_bytes": 2}, 2), ({"gradient_bytes": 2, "precision": "bf16"}, 4)],
)
def test_gradients_in_8_bit_plans_are_summed_in_the_type_in_which_they_are_reduced(fields, width):
    plan = Plan(**{"precision": "fp8"} | fields)
    made = [k for k in layer_kernels(LLAMA, plan).weight_grad if isinstance(k, Matmul)]
    assert {k.sum_bytes for k in made} == {width}

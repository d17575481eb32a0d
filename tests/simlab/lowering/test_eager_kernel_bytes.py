"""What torch's own ops move in the stead of a fused kernel, counted on the reference code of Llama
(meta-llama/llama3, llama/model.py)."""

from dataclasses import replace

import pytest

from simlab.lowering.kernels import Memory, head_kernels, layer_kernels
from simlab.spec.model import Model
from simlab.spec.plan import Plan

torch = pytest.importorskip("torch")
from torch_bytes import meta, moved_bytes  # noqa: E402  (it needs torch)

TOKENS, HIDDEN, HEADS, FFN = 64, 256, 8, 512
LLAMA = Model(
    layers=2, hidden=HIDDEN, heads=HEADS, ffn=FFN, vocab=1024, seq=TOKENS, gated_mlp=True, bias=False
)  # fmt: skip
EAGER = Plan(dropout=False, fused=False)


def size_of(kernels, name):
    """Bytes of the one `Memory` kernel of that name."""
    (found,) = [k.size_bytes for k in kernels if isinstance(k, Memory) and k.name == name]
    return found


def norm():
    x, weight = meta(TOKENS, HIDDEN), meta(HIDDEN)
    numbers = x.float()
    normed = numbers * torch.rsqrt(numbers.pow(2).mean(-1, keepdim=True) + 1e-5)
    return normed.type_as(x) * weight


def rotary():
    turns = meta(1, TOKENS, 1, HIDDEN // HEADS // 2, dtype=torch.complex64)
    for x in (meta(1, TOKENS, HEADS, HIDDEN // HEADS) for _ in ("queries", "keys")):
        pairs = torch.view_as_complex(x.float().reshape(1, TOKENS, HEADS, -1, 2))
        torch.view_as_real(pairs * turns).flatten(3).type_as(x)


def activation():
    return torch.nn.functional.silu(meta(TOKENS, FFN)) * meta(TOKENS, FFN)


@pytest.mark.parametrize("tp, sequence_parallel", [(1, False), (2, False), (2, True)])
def test_ops_in_the_stead_of_a_kernel_move_what_the_reference_codes_do(tp, sequence_parallel):
    plan = replace(EAGER, tp=tp, sequence_parallel=sequence_parallel)
    forward, outside = layer_kernels(LLAMA, plan).forward, tp if sequence_parallel else 1
    # pairs are counted as one number each, of which there are half as many
    normed, turned, activated = (
        moved_bytes(code, least=TOKENS * HIDDEN // 2) for code in (norm, rotary, activation)
    )
    for name in ("norm 1", "norm 2"):
        assert size_of(forward, name) == normed / outside
    assert size_of(head_kernels(LLAMA, plan).forward, "last norm") == normed / outside
    assert size_of(forward, "rotary") == turned / tp
    assert size_of(forward, "activation") == pytest.approx(activated / tp)


def test_nanotron_has_kernels_for_all_but_the_gated_activation():
    fused, plan = (replace(EAGER, fused=True, library=name) for name in ("megatron", "nanotron"))
    one, its = (
        {k.name: k.size_bytes for k in layer_kernels(LLAMA, each).forward if isinstance(k, Memory)}
        for each in (fused, plan)
    )
    copied = "order of q, k and v"  # which Megatron-LM's attention takes as they are
    assert copied not in one and its.pop(copied) > 0
    assert {name for name in its if its[name] != one[name]} == {"activation"}
    assert its["activation"] == pytest.approx(moved_bytes(activation, least=TOKENS * FFN))

"""Attention in windows and with narrow heads, held against what others measured of the kernels alone."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.cost.attention import attention_s, fraction
from simlab.cost.roofline import efficiencies_of, kernel_s, peak_flops
from simlab.lowering.kernels import Attention, layer_kernels
from simlab.spec.cluster import gpus

SEQUENCES = 2048, 4096, 8192, 16384, 32768
WINDOWED_MS = {
    ("h200-sxm", 64, 1024): (
        (0.166, 0.358, 0.738, 1.499, 3.021),
        (0.488, 1.042, 2.149, 4.392, 9.045),
    ),
    ("gb200", 128, 128): (
        (0.109, 0.210, 0.414, 0.822, 2.634),
        (0.237, 0.465, 0.911, 1.818, 3.692),
    ),
    ("gb300", 128, 128): (
        (0.104, 0.202, 0.397, 0.790, 2.530),
        (0.227, 0.442, 0.862, 1.712, 3.450),
    ),
}
"""{(GPU, heads of 64, window): (ms forward, ms backward) of two sequences of each of `SEQUENCES`} of cuDNN in
bf16, ten times (NVIDIA/cudnn-frontend@3929da2e, benchmark/sdpa_benchmark_training/results/gpt_oss and
h200_919_only_cudnn)"""
CAUSAL = {"h200-sxm": (0.763, 0.525), "gb200": (0.655, 0.474), "gb300": (0.802, 0.515)}
"""{GPU: the parts of the peak with which causal attention of 4,096 and 8,192 tokens took what it did in the
same benchmark}: a chip under load is slower, which `efficiencies_of` has in it."""
UNEXPLAINED = 32768, False
"""Forward on a Blackwell, windows of a sequence of 32,768 take 3.2 times as long as of one of 16,384."""


def in_benchmark(gpu):
    """What the kernels of a GPU reach in a short benchmark: heads of 64 in the catalogue's ratio."""
    known = efficiencies_of(gpus()[gpu])
    ratios = [
        a / b for a, b in zip(known.attention["flash, heads of 64"], known.attention["flash"])
    ]
    flash = list(CAUSAL[gpu])
    narrow = [part * ratio for part, ratio in zip(flash, ratios)]
    return replace(known, attention={"flash": flash, "flash, heads of 64": narrow})


def windows(heads, seq, window, size=64, **more):
    return Attention("", 2, heads, seq, window, size, share=2 - window / seq, within=seq, **more)


@pytest.mark.parametrize(("gpu", "heads", "window"), WINDOWED_MS)
def test_attention_in_windows_takes_what_cudnn_measured(gpu, heads, window):
    reached, its = in_benchmark(gpu), gpus()[gpu]
    for backward, measured in zip((False, True), WINDOWED_MS[gpu, heads, window]):
        for seq, ms in zip(SEQUENCES, measured):
            if (seq, backward) == UNEXPLAINED and window == 128:
                continue
            kernel = windows(heads, seq, window, backward=backward)
            seconds = attention_s(kernel, reached, peak_flops(its, "bf16"), its.sms, its.sms)
            assert 1e3 * seconds == pytest.approx(ms, rel=0.18 if seq == 2048 else 0.08), (
                seq,
                backward,
            )


IN_BLOCKS_MS = {
    "gb200": {
        (64, 8, 128): (0.326, 1.305, 1.156, 4.272), (128, 128, 192): (0.714, 2.620, 2.478, 9.567),
        (64, 64, 192): (0.363, 1.331, 1.254, 4.546), (128, 128, 64): (None, 2.080, None, 7.427),
    },
    "gb300": {
        (64, 8, 128): (0.242, 1.203, 0.856, 3.917), (128, 128, 192): (0.546, 2.348, 1.944, 8.030),
        (64, 64, 192): (0.269, 1.185, 0.957, 3.991), (128, 128, 64): (None, 1.871, None, 6.648),
    },
}  # fmt: skip
"""{GPU: {(heads, heads of keys, head size): ms of two sequences of 4,096 tokens forward and backward, and of
8,192}} in MXFP8, where values of heads of 192 have 128 and heads of 64 have windows of 128 (the same
benchmark, llama3.1, dsv3, kimiK26 and gpt_oss)"""


@pytest.mark.parametrize("gpu", IN_BLOCKS_MS)
def test_attention_in_8_bits_takes_what_cudnn_measured_at_the_clock_of_a_loaded_chip(gpu):
    """Products keep .595/.729 of their greatest rate under load. Backward, windows save nothing."""
    for (heads, _, size), measured in IN_BLOCKS_MS[gpu].items():
        for seq, both in ((4096, measured[:2]), (8192, measured[2:])):
            for backward, ms in zip((False, True), both):
                if ms is None:
                    continue
                kernel = (
                    windows(heads, seq, 128, backward=backward, generation="flash-fp8")
                    if size == 64
                    else Attention(
                        "", 2, heads, seq, seq, size, backward, "flash-fp8", value_size=128
                    )
                )
                loaded_ms = 1e3 * kernel_s(kernel, gpus()[gpu], "fp8-mx")
                assert loaded_ms * 0.595 / 0.729 == pytest.approx(ms, rel=0.15), (heads, seq)


def test_it_casts_what_it_reads():
    """Queries, keys and values in the forward, and the gradient of the result in the backward."""
    model = sl.Model(
        layers=1, hidden=512, heads=8, kv_heads=2, vocab=1024, seq=256, bias=False, gated_mlp=True
    )
    plan = sl.Plan(precision="fp8-mx", attention="flash-fp8")
    kernels = layer_kernels(model, plan)
    casts = {
        half: [k.size_bytes for k in kernels_of if k.name.startswith("casts for attention")]
        for half, kernels_of in (("F", kernels.forward), ("I", kernels.input_grad))
    }
    assert casts == {"F": [6 * 256 * (8 + 2 + 2) * 64], "I": [6 * 256 * 8 * 64]}
    (kernel,) = (k for k in kernels.forward if isinstance(k, Attention))
    assert kernel.generation == "flash-fp8"
    with pytest.raises(sl.InputError, match="'flash-fp8' with precision = 'bf16': give precision"):
        sl.Plan(attention="flash-fp8")


HEADS_ON_AN_H100 = {
    False: {64: (363, 379), 128: (518, 529)},
    True: {64: (417, 432), 128: (499, 518)},
}
"""{backward: {head size: TFLOP/s with 4,096 and 8,192 tokens}} of cuDNN on an H100, forward causal and backward
without a mask (Shah et al. 2024, FlashAttention-3, arXiv 2407.08608, figures 5 and 6)"""


@pytest.mark.parametrize("backward", HEADS_ON_AN_H100)
def test_heads_of_64_reach_less_of_the_peak_than_heads_of_128(backward):
    measured = HEADS_ON_AN_H100[backward]
    reached = efficiencies_of(gpus()["h100-sxm-80gb"])

    def part(size):
        return fraction(Attention("", 1, 8, 4096, 4096, size, backward=backward), reached)

    for narrow, wide in zip(measured[64], measured[128]):
        assert part(64) / part(128) == pytest.approx(narrow / wide, rel=0.015)
    assert part(32) == part(64) < part(96) < part(128) == part(192)


def test_a_window_never_takes_longer_than_none():
    its = gpus()["gb200"]
    for size in (64, 128, 256):
        for backward in (False, True):
            seconds = [
                attention_s(kernel, efficiencies_of(its), 2.5e15, its.sms, its.sms)
                for kernel in (
                    *(windows(8, 4096, w, size, backward=backward) for w in (1, 128, 129, 1024, 4095)),
                    Attention("", 2, 8, 4096, 4096, size, backward=backward),
                )
            ]  # fmt: skip
            assert seconds == sorted(seconds)


def test_windows_slide_over_the_sequence_that_the_kernel_names():
    model = sl.Model(layers=1, hidden=512, heads=8, vocab=1024, seq=4096, window=128)
    (kernel,) = (k for k in layer_kernels(model, sl.Plan()).forward if isinstance(k, Attention))
    assert (kernel.keys, kernel.within) == (128, 4096)
    for other in (replace(model, window=0), replace(model, window_slides=False)):
        (kernel,) = (k for k in layer_kernels(other, sl.Plan()).forward if isinstance(k, Attention))
        assert kernel.within == 0

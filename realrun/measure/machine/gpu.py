"""The `Gpu` that explains the samples of one device best."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median
from typing import Any

from realrun.measure.machine.comparison import Kernel, kernel_of
from realrun.measure.machine.regression import nonnegative_fit
from realrun.measure.machine.sample import Sample
from simlab.cost.roofline import efficiencies_of, kernel_s
from simlab.spec.cluster import cluster_of_gpu, clusters
from simlab.spec.hardware import Efficiency, Gpu

ROLES = ("forward", "input", "weight")


CPU_TILES = ((64, 64, 1.0),)


def fitted_gpu(
    samples: Sequence[Sample], memory_bytes: float, about: dict[str, Any], said: str
) -> Gpu:
    """The `Gpu` that explains `samples`: its peaks are the greatest rates that were reached (of
    `about`'s precision at least what the fit says that the median product reaches between its launch
    and its end), and its efficiencies what the median kernel of a kind reaches of them. about: see
    `node.description`; said: the source of the figures."""
    peaks: dict[str, float] = {}
    precision = about["precision"]
    for sample in samples:
        if sample.kind in ("peak", "matmul"):
            of = sample.variant if sample.kind == "peak" else precision
            m, n, k = (sample.sizes[name] for name in "mnk")
            peaks[of] = max(peaks.get(of, 0.0), 2 * m * n * k / sample.seconds)
    bandwidth = max(
        sample.sizes["size_bytes"] / sample.seconds
        for sample in samples
        if (sample.kind, sample.variant) == ("memory", "copy")
    )
    tiles = CPU_TILES if about["sms"] == 1 else _catalogued(about["device"]).tiles
    blank = Efficiency(
        matmul=dict.fromkeys(ROLES, 1.0),
        tiles=tiles,
        kernel_s=next(s.seconds for s in samples if s.kind == "launch"),
        attention={"flash": [1.0, 1.0]},
        attention_tail={"forward": 0.0, "backward": 0.0},
        memory=1.0,
        source=said,
    )
    gpu = Gpu(
        name=about["device"],
        peak_flops=peaks,
        memory_bytes=memory_bytes,
        memory_bandwidth_bytes_per_s=bandwidth,
        sms=about["sms"],
        efficiency=blank,
        source=f"{said}; peaks and bandwidth are the greatest rates that a product and a copy reached, no data sheet's",
    )
    memory = [sample for sample in samples if sample.kind == "memory"]
    gpu = _with(gpu, memory=_part(memory, gpu, precision, lambda part: {"memory": part}))
    matmul = {
        role: _part(
            [s for s in samples if (s.kind, s.variant) == ("matmul", role)],
            gpu,
            precision,
            lambda part: {"matmul": dict.fromkeys(ROLES, part)},
        )
        for role in ROLES
    }
    # without its launch and the edges of its tiles a product is faster than the rate that it reached
    above = max(1.0, *matmul.values())
    gpu = replace(gpu, peak_flops=peaks | {precision: peaks[precision] * above})
    matmul = {role: part / above for role, part in matmul.items()}
    return _with(gpu, matmul=matmul, **_attention(samples, gpu, precision))


def _catalogued(device: str) -> Efficiency:
    """The `Efficiency` of the catalogue's GPU that `device` is, or an A100's. It gives the tiles,
    which nobody can time."""
    return efficiencies_of(clusters()[cluster_of_gpu(device) or "dgx-a100"].gpu)


def _with(gpu: Gpu, **changes: Any) -> Gpu:
    return replace(gpu, efficiency=replace(efficiencies_of(gpu), **changes))


def _part(
    samples: Sequence[Sample],
    gpu: Gpu,
    precision: str,
    change: Callable[[float], dict[str, Any]],
) -> float:
    """The median, over the kernels of `samples`, of the part of the peak at which their formula gives
    the measured time."""
    parts = []
    for sample in samples:
        kernel = kernel_of(sample, precision)

        def formula(part: float, kernel: Kernel = kernel) -> float:
            return kernel_s(kernel, _with(gpu, **change(part)), precision)

        parts.append(_solved(formula, sample.seconds))
    known = [part for part in parts if part is not None]
    return median(known) if known else 1.0


def _solved(
    formula: Callable[[float], float], seconds: float, least: float = 1e-4, most: float = 10.0
) -> float | None:
    """The part, `least` to `most`, at which `formula` gives `seconds`; None where no part in
    between does. The formula must fall with the part."""
    if not formula(most) < seconds < formula(least):
        return None
    for _ in range(60):
        middle = exp((log(least) + log(most)) / 2)
        least, most = (middle, most) if formula(middle) > seconds else (least, middle)
    return middle


def _attention(samples: Sequence[Sample], gpu: Gpu, precision: str) -> dict[str, Any]:
    """{"attention", "attention_tail"}: the part of the peak, and on a GPU the tail that the longest
    block of queries makes."""
    parts: list[float] = []
    tails: dict[str, float] = {}
    for way in ("forward", "backward"):
        mine = [s for s in samples if (s.kind, s.variant) == ("attention", way)]
        rows, none = [], efficiencies_of(gpu).kernel_s
        for sample in mine:
            flat = kernel_s(kernel_of(sample, precision), gpu, precision) - none
            tail_s = (
                kernel_s(
                    kernel_of(sample, precision),
                    _with(gpu, attention_tail={"forward": 1.0, "backward": 1.0}),
                    precision,
                )
                - none
                - flat
            )
            rows.append([flat, tail_s] if gpu.sms > 1 else [flat])
        rest = [max(sample.seconds - none, sample.seconds / 10) for sample in mine]
        slower, *tail = nonnegative_fit(rows, rest)
        if slower <= 0:  # all tail: too few sizes to tell the two apart
            (slower,), tail = nonnegative_fit([row[:1] for row in rows], rest), []
        parts.append(1 / slower)
        tails[way] = tail[0] if tail else 0.0
    return {"attention": {"flash": parts}, "attention_tail": tails}

"""It holds the bubbles that papers give in closed form, with which a simulation can be compared.

All of them leave out messages, jitter and unequal stages. F, I and W are a rank's times for one
microbatch, summed over its stages, and B = I + W. The bubble is the idle time of the rank with the
longest span, from its first op to its last.
"""

from simlab.errors import require_seconds
from simlab.program import Program


def closed_bubble_s(
    program: Program,
    forward_s: float,
    input_grad_s: float,
    weight_grad_s: float,
    pair_s: float | None = None,
) -> float | None:
    """The bubble of `program` in seconds, by the formula of the schedule that it is named after.

    forward_s, input_grad_s, weight_grad_s: the times F, I and W, in seconds.
    pair_s: the time F&B of a forward and a backward side by side, from B to F + B, in seconds; None
            means F + B.

    None if there is no formula for the schedule, or if its condition does not hold:

    GPipe, 1F1B, Eager 1F1B  (p-1) (F+B)           always [1, 2]
    interleaved, looped BFS  (p-1) (F+B) / v       m >= p and m is a multiple of p [2]
    ZB-H1                    (p-1) (F+I-W)         W <= F, W <= I, m >= 2p [3]
    ZB-H2                    (p-1) (F+I-2W)        W <= F = I, m >= 2p [3]
    ZB-V                     0                     F = I = W, m >= 2p - 1 [3]
    V-Half                   (p-1) (F+B) / 2       F = I = W, m >= 2p, p is even [4]
    DualPipe                 (p/2-1) (F&B+B-3W)    W <= F = I, m >= 2p [5]
    DualPipeV                (p-1) (F&B+B-3W) / 2  W <= F = I, m >= 2p [5]

    [1] Huang et al. 2019, arXiv 1811.06965. [2] Narayanan et al. 2021, arXiv 2104.04473.
    [3] Qi et al. 2023, arXiv 2401.10241. [4] Qi et al. 2024, arXiv 2405.15362; with an odd p the
    bubble is smaller. [5] DeepSeek-AI 2024, arXiv 2412.19437; DualPipeV is the same on half of the
    ranks, with stages of half the size.

    DualPipe's formula says how much longer the step is than the work of a rank with the most pairs.
    The first rank, whose span is the longest, has p/2 - 2 pairs fewer (DualPipeV has p - 2 fewer, of
    half the size). Each pair that it lacks makes it work longer, and idle less, by F + B - F&B. So
    these times are subtracted here.
    """
    for what, value in (
        ("forward_s", forward_s),
        ("input_grad_s", input_grad_s),
        ("weight_grad_s", weight_grad_s),
    ):
        require_seconds(what, value)
    p, m, v = len(program.ranks), program.microbatches, program.stages // max(1, len(program.ranks))
    f, i, w, b = forward_s, input_grad_s, weight_grad_s, input_grad_s + weight_grad_s
    fills = w <= f and w <= i and m >= 2 * p
    match program.name:
        case "gpipe" | "1f1b" | "eager-1f1b":
            return (p - 1) * (f + b)
        case "interleaved-1f1b" | "looped-bfs":
            return (p - 1) * (f + b) / v if m >= p and m % p == 0 else None
        case "zb-h1":
            return (p - 1) * (f + i - w) if fills else None
        case "zb-h2":
            return (p - 1) * (f + i - 2 * w) if fills and f == i else None
        case "zb-v":
            return 0.0 if f == i == w and m >= 2 * p - 1 else None
        case "v-half":
            return (p - 1) * (f + b) / 2 if f == i == w and m >= 2 * p and p % 2 == 0 else None
        case "dualpipe" | "dualpipe-v" if fills and f == i:
            pair = f + b if pair_s is None else pair_s
            # These are the ranks of one direction, and the size of a stage.
            ranks, size = (p // 2, 1) if program.name == "dualpipe" else (p, 1 / 2)
            if b <= pair <= f + b:
                return size * (
                    (ranks - 1) * (pair + b - 3 * w) - max(0, ranks - 2) * (f + b - pair)
                )
    return None

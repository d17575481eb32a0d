"""The bubbles that the papers give in closed form, to hold a simulation against.

All of them leave out messages, jitter and unequal stages. F, I, W are a rank's times for one microbatch (all its stages
together), B = I + W. The bubble is the idle time of the rank with the longest span, from its first op to its last.
"""


def closed_bubble_s(program, forward_s, input_grad_s, weight_grad_s, pair_s=None):
    """The bubble of `program`, s, by the formula of the schedule it is named after; None where there is none that holds.

    pair_s: F&B of a pair, from B to F + B; None: F + B.

    GPipe, 1F1B, Eager 1F1B  (p-1) (F+B)           Huang et al. 2019, arXiv 1811.06965; Narayanan et al. 2021, arXiv 2104.04473
    interleaved, looped BFS  (p-1) (F+B) / v       from m = p on, with m a multiple of p
    ZB-H1                    (p-1) (F+I-W)         Qi et al. 2023, arXiv 2401.10241; W at most F and I, m >= 2p
    ZB-H2                    (p-1) (F+I-2W)        the same paper; the same conditions and F = I
    ZB-V                     0                     the same paper; F = I = W, m >= 2p - 1
    V-Half                   (p-1) (F+B) / 2       Qi et al. 2024, arXiv 2405.15362; F = I = W, m >= 2p, p even (at odd p it is less)
    DualPipe                 (p/2-1) (F&B+B-3W)    DeepSeek-AI 2024, arXiv 2412.19437; W at most F, F = I
    DualPipeV                (p-1) (F&B+B-3W) / 2  the same on half the ranks, with stages of half the size

    DualPipe's is how much longer the step is than the work of a rank with the most pairs. The first rank, whose span is the
    longest, has p/2 - 2 pairs fewer (DualPipeV: p - 2, of half the size), so it works longer and idles less by that many
    (F+B-F&B), which are taken off here.
    """
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
            ranks, size = (p // 2, 1) if program.name == "dualpipe" else (p, 1 / 2)  # those of one direction; a stage's size
            if b <= pair <= f + b:
                return size * ((ranks - 1) * (pair + b - 3 * w) - max(0, ranks - 2) * (f + b - pair))
    return None

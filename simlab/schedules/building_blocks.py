"""It makes V-Half and V-Min by repeating the pattern of one microbatch.

Qi, Wan, Amar and Lin 2024, "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362), place
the ops of one microbatch as a *building block* and repeat it every 6 units of time, which are the
six ops F, I and W of a rank's two stages. The time from a stage's F to its W is its lifespan, which
determines how many microbatches are held. So a schedule is designed for a given memory.

Rank r of p holds the stages r and 2p - 1 - r. A microbatch goes down the ranks through the first
stages (F), up through the second stages (F), down with its gradient (I) and up again (I). A
schedule chooses the time from one rank to the next in each of these four passes. The sum of the
four, times p, is the whole lifespan of the microbatch. Because of the V-shaped placement, a stage
that runs early on the way down runs late on the way back, so every rank holds the same.
"""

from collections import deque
from collections.abc import Sequence
from itertools import permutations, product
from typing import Any, NamedTuple

from simlab.program import Op, Program
from simlab.schedules.schedule import Case, Schedule

INTERVAL = 6
"""The units of time from one microbatch to the next."""
PASSES = {"v-half": (2, 1, 2, 1), "v-min": (1, 1, 1, 1)}
"""{schedule: the units of time from one rank to the next in the passes F down, F up, I down, I
up}."""


class Block(NamedTuple):
    """When the ops of one microbatch start on one rank, in units of time.

    The digit 0 stands for the rank's first stage, 1 for its second.
    """

    f0: int
    f1: int
    i1: int
    i0: int
    w1: int
    w0: int


def v_half(ranks: int, microbatches: int) -> Program:
    """V-Half: every rank holds half of 1F1B's activations, p/2 + 1 microbatches.

    If F = I = W, the bubble is half of 1F1B's, (p - 1)(F + B) / 2.
    """
    return _repeated("v-half", ranks, microbatches)


def v_min(ranks: int, microbatches: int) -> Program:
    """V-Min: every rank holds a third of 1F1B's activations, about p/3 + 1 microbatches.

    If F = I = W, the bubble is about two thirds of 1F1B's. No schedule of this kind can hold less,
    because every pass goes from rank to rank without a pause.
    """
    return _repeated("v-min", ranks, microbatches)


def _repeated(name: str, ranks: int, microbatches: int) -> Program:
    blocks = _tightest(ranks, PASSES[name])
    orders = [
        _forwards_and_input_grads(rank, ranks, block, microbatches)
        for rank, block in enumerate(blocks)
    ]
    return Program(_with_weight_grads(orders, microbatches, max(map(_held, blocks))), name=name)


def _forwards_and_input_grads(rank: int, ranks: int, block: Block, microbatches: int) -> list[Op]:
    """The F and I of one rank in the order of the repeated block.

    In round n, an op that starts k intervals after the block begins is on microbatch n - k.
    """
    first, second = rank, 2 * ranks - 1 - rank
    starts = [
        (block.f0, first, "F"),
        (block.f1, second, "F"),
        (block.i1, second, "I"),
        (block.i0, first, "I"),
    ]
    pattern = sorted(
        (start % INTERVAL, start // INTERVAL, stage, kind) for start, stage, kind in starts
    )
    rounds = range(microbatches + max(start // INTERVAL for start, _, _ in starts))
    return [
        Op(stage, kind, n - late)
        for n in rounds
        for _, late, stage, kind in pattern
        if 0 <= n - late < microbatches
    ]


def _with_weight_grads(
    orders: Sequence[Sequence[Op]], microbatches: int, most_held: int
) -> list[list[Op]]:
    """[per rank] the ops of `orders`, and a W wherever the rank would wait or hold more than
    `most_held`.

    The places of the W are found by running the ops, each of which takes one unit. In the steady
    state a W falls into the slots that the block leaves free. At the end of the step, where only
    input gradients are left, a W fills what would be bubble.
    """
    stages, never = 2 * len(orders), float("inf")
    ranks = [deque(order) for order in orders]
    programs: list[list[Op]] = [[] for _ in orders]
    pending: list[deque[Op]] = [deque() for _ in orders]
    held = [0] * len(orders)
    # The indices are stage + 1 and microbatch.
    forward_ended: list[list[float]] = [[0.0] * microbatches] + [
        [never] * microbatches for _ in range(stages)
    ]
    # The gradient of the loss is there when the F of the last stage ends.
    gradient_ended: list[list[float]] = [[never] * microbatches for _ in range(stages)] + [
        forward_ended[-1]
    ]
    now = 0
    while any(ranks) or any(pending):
        for rank, order in enumerate(ranks):
            stage, kind, microbatch = order[0] if order else (0, "", 0)
            if kind == "F" and held[rank] < most_held and forward_ended[stage][microbatch] <= now:
                forward_ended[stage + 1][microbatch] = now + 1
                held[rank] += 1
                programs[rank].append(order.popleft())
            elif kind == "I" and gradient_ended[stage + 1][microbatch] <= now:
                gradient_ended[stage][microbatch] = now + 1
                pending[rank].append(Op(stage, "W", microbatch))
                programs[rank].append(order.popleft())
            elif pending[rank]:
                held[rank] -= 1
                programs[rank].append(pending[rank].popleft())
        now += 1
    return programs


def _tightest(ranks: int, passes: Any) -> list[Block]:
    """[per rank] the `Block` of the choice that holds the fewest activations and, of these, ends
    first.

    The pauses where the microbatch turns around (before its second F, its first I and its last I)
    can be chosen, from 1 unit to a whole interval. A choice is valid if two ops of a rank never run
    at the same time. Because the block repeats every 6 units, this means that no two starts are
    equal modulo 6. The two slots that are left over are for the W.
    """
    candidates = []
    for pauses in product(range(1, INTERVAL + 1), repeat=3):
        # Modulo 6, the starts of all other ranks equal those of one of these ranks.
        some = (_starts(rank, ranks, passes, pauses) for rank in range(min(ranks, INTERVAL)))
        if all(len({start % INTERVAL for start in four}) == 4 for four in some):
            blocks = [
                _with_weight_gradients(*_starts(rank, ranks, passes, pauses))
                for rank in range(ranks)
            ]
            candidates.append((max(map(_held, blocks)), max(map(max, blocks)), blocks))
    return min(candidates)[-1]


def _starts(rank: int, ranks: int, passes: Any, pauses: Any) -> list[int]:
    """When the F, F, I and I of the microbatch start on `rank`: it goes down, up, down and up, and
    pauses at each turn."""
    down, up = rank, ranks - 1 - rank
    starts, begun = [], 0
    for step, pause, distance in zip(passes, (*pauses, 0), (down, up, down, up)):
        starts.append(begun + step * distance)
        begun += step * (ranks - 1) + pause
    return starts


def _with_weight_gradients(f0: int, f1: int, i1: int, i0: int) -> Block:
    """The `Block` with each W in one of the free slots, as soon as possible after its I."""
    free = sorted(set(range(INTERVAL)) - {start % INTERVAL for start in (f0, f1, i1, i0)})
    pairs = [(_next(i1, slots[0]), _next(i0, slots[1])) for slots in permutations(free)]
    return Block(f0, f1, i1, i0, *min(pairs, key=sum))


def _next(after: int, slot: int) -> int:
    """The first time after `after` that equals `slot` modulo the interval."""
    return after + 1 + (slot - after - 1) % INTERVAL


def _held(block: Block) -> int:
    """The most activations of a stage that the rank holds at any time, if a microbatch enters every
    interval without end."""
    lives = [(block.f0, block.w0), (block.f1, block.w1)]
    return max(
        sum((last - now) // INTERVAL - (first - 1 - now) // INTERVAL for first, last in lives)
        for now in range(INTERVAL)
    )


def _bubble_s(c: Case) -> float | None:
    """Half of 1F1B's on an even number of ranks; on an odd one it is smaller."""
    holds = c.f == c.i == c.w and c.m >= 2 * c.p and c.p % 2 == 0
    return (c.p - 1) * (c.f + c.b) / 2 if holds else None


V_HALF = Schedule("v-half", v_half, _bubble_s, steady=True)
V_MIN = Schedule("v-min", v_min, steady=True)

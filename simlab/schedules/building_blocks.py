"""V-Half and V-Min: a schedule as one microbatch's pattern, repeated.

Qi, Wan, Amar and Lin 2024, "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362): lay down the ops of one
microbatch as a *building block*, repeat it every 6 units of time (a rank's six ops F I W of two stages, one unit each), and
the time from a stage's F to its W, its lifespan, says how many microbatches are held: memory is designed, not found out.

Rank r of p holds the stages r and 2p - 1 - r. A microbatch goes down through the first halves (F), up through the second
halves (F), down with its gradient (I) and up again (I). What a schedule chooses is the time from one rank to the next in
each of the four passes; the sum of the four times p is the microbatch's whole lifespan, and on V-shaped placement the stage
that is early down the pipeline is late on the way back, so that every rank holds the same.
"""

from collections import deque
from itertools import permutations, product
from typing import NamedTuple

from simlab.program import Op, Program

INTERVAL = 6  # units of time from one microbatch to the next
PASSES = {"v-half": (2, 1, 2, 1), "v-min": (1, 1, 1, 1)}  # units from rank to rank: F down, F up, I down, I up


class Block(NamedTuple):
    """When one microbatch's ops start on one rank, in units; stage 0 is the rank's first, stage 1 its second."""

    f0: int
    f1: int
    i1: int
    i0: int
    w1: int
    w0: int


def v_half(ranks, microbatches):
    """Half of 1F1B's activations on every rank (p/2 + 1 microbatches) with half of 1F1B's bubble, (p-1) (F+B) / 2, if F = I = W."""
    return _repeated("v-half", ranks, microbatches)


def v_min(ranks, microbatches):
    """A third of 1F1B's activations on every rank (about p/3 + 1), with about two thirds of 1F1B's bubble if F = I = W.

    Nothing can hold less: every pass goes from rank to rank without a pause.
    """
    return _repeated("v-min", ranks, microbatches)


def _repeated(name, ranks, microbatches):
    blocks = _tightest(ranks, PASSES[name])
    orders = [_forwards_and_input_grads(rank, ranks, block, microbatches) for rank, block in enumerate(blocks)]
    return Program(_with_weight_grads(orders, microbatches, max(map(_held, blocks))), name=name)


def _forwards_and_input_grads(rank, ranks, block, microbatches):
    """The F and I of one rank in the order of the repeated block: in round n, an op that starts k intervals late is on n - k."""
    first, second = rank, 2 * ranks - 1 - rank
    starts = [(block.f0, first, "F"), (block.f1, second, "F"), (block.i1, second, "I"), (block.i0, first, "I")]
    pattern = sorted((start % INTERVAL, start // INTERVAL, stage, kind) for start, stage, kind in starts)
    rounds = range(microbatches + max(start // INTERVAL for start, _, _ in starts))
    return [Op(stage, kind, n - late) for n in rounds for _, late, stage, kind in pattern if 0 <= n - late < microbatches]


def _with_weight_grads(orders, microbatches, most_held):
    """The ops of each rank: those of `orders`, and a W wherever the rank would have to wait or hold more than `most_held`.

    That is found out by running them, all ops one unit long. In the steady state W falls into the block's own slots; at the
    end of the step, where the input gradients drain, W fills what would be bubble.
    """
    stages, never = 2 * len(orders), float("inf")
    ranks = [deque(order) for order in orders]
    programs, pending, held = [[] for _ in orders], [deque() for _ in orders], [0] * len(orders)
    forward_ended = [[0] * microbatches] + [[never] * microbatches for _ in range(stages)]  # [stage + 1][microbatch]
    gradient_ended = [[never] * microbatches for _ in range(stages)] + [forward_ended[-1]]  # of the last one's loss: its F's end
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


def _tightest(ranks, passes):
    """[`Block` of each rank] that holds the fewest activations, then ends the soonest.

    Free to choose are the pauses where the microbatch turns round (its second F, its first I, its last I), from 1 to a whole
    interval: those at which no two ops of a rank ever meet, which at a repetition every 6 units means no two starts
    equal modulo 6. The two slots left over are the W's.
    """
    candidates = []
    for pauses in product(range(1, INTERVAL + 1), repeat=3):
        some = (_starts(rank, ranks, passes, pauses) for rank in range(min(ranks, INTERVAL)))  # modulo 6 the others are like these
        if all(len({start % INTERVAL for start in four}) == 4 for four in some):
            blocks = [_with_weight_gradients(*_starts(rank, ranks, passes, pauses)) for rank in range(ranks)]
            candidates.append((max(map(_held, blocks)), max(map(max, blocks)), blocks))
    return min(candidates)[-1]


def _starts(rank, ranks, passes, pauses):
    """When the microbatch's F, F, I, I start on `rank`: down, turn, up, turn, down, turn, up."""
    down, up = rank, ranks - 1 - rank
    starts, begun = [], 0
    for step, pause, distance in zip(passes, (*pauses, 0), (down, up, down, up)):
        starts.append(begun + step * distance)
        begun += step * (ranks - 1) + pause
    return starts


def _with_weight_gradients(f0, f1, i1, i0):
    """The `Block` with each W in a slot that is still free, soon after its I."""
    free = sorted(set(range(INTERVAL)) - {start % INTERVAL for start in (f0, f1, i1, i0)})
    pairs = [(_next(i1, slots[0]), _next(i0, slots[1])) for slots in permutations(free)]
    return Block(f0, f1, i1, i0, *min(pairs, key=sum))


def _next(after, slot):
    """The first time after `after` that is `slot` modulo the interval."""
    return after + 1 + (slot - after - 1) % INTERVAL


def _held(block):
    """The most half-rank activations held at any time, with microbatches coming in every interval for ever."""
    lives = [(block.f0, block.w0), (block.f1, block.w1)]
    return max(sum((last - now) // INTERVAL - (first - 1 - now) // INTERVAL for first, last in lives) for now in range(INTERVAL))

"""What the tests hold simlab against: random plans that are valid by construction, and independent
ways to time them.

Nothing here asks the code under test anything: `Op`, `Program` and `OpTimes` only carry a plan over
to it.
"""

from functools import cache
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise

from hypothesis import strategies as st

from simlab.cost import OpTimes
from simlab.program import Op, Program

SECONDS = st.one_of(st.just(0.0), st.floats(1e-6, 0.1))


def needs(op, ops, stages):
    """The dependency rule, written down again: `ops` tells whether the next stage's backward is
    split."""
    stage, kind, microbatch = op
    if kind == "F":
        return [(stage - 1, "F", microbatch)] if stage else []
    if kind == "W":
        return [(stage, "I", microbatch)]
    gradient = (stage + 1, "I" if (stage + 1, "I", microbatch) in ops else "B", microbatch)
    return [(stage, "F", microbatch)] + ([gradient] if stage + 1 < stages else [])


def start_times(ranks, seconds, wire):
    """({op: start}, {op: end}) of the earliest execution of `ranks`, by a recursive walk from each
    op to what it waits for.

    seconds: {kind: [s per stage]}.  wire(source, destination): (latency, time that a message
                                     occupies the link,
    time that sending it keeps the sender from its next op), all s. Links are serial: a message
    leaves when its op has ended and the one before it on the same directed pair has left.
    """
    place = {op: (rank, at) for rank, ops in enumerate(ranks) for at, op in enumerate(ops)}
    stages = 1 + max(op[0] for op in place)
    rank_of = {op: rank for op, (rank, _) in place.items()}
    sent = {}  # (source, destination): its messages, in the order of the source's ops
    for op in place:
        for user in place:
            if op in needs(user, place, stages) and rank_of[user] != rank_of[op]:
                sent.setdefault((rank_of[op], rank_of[user]), []).append(op)

    @cache
    def start(op):
        rank, at = place[op]
        bounds = [0.0]
        if at:
            before = ranks[rank][at - 1]
            bounds.append(
                end(before)
                + sum(wire(*pair)[2] for pair, messages in sent.items() if before in messages)
            )
        for need in needs(op, place, stages):
            source = rank_of[need]
            bounds.append(
                end(need) if source == rank else left(need, source, rank) + wire(source, rank)[0]
            )
        return max(bounds)

    def end(op):
        return start(op) + seconds[op[1]][op[0]]

    @cache
    def left(op, source, destination):
        queue = sent[source, destination]
        at = queue.index(op)
        free_at = left(queue[at - 1], source, destination) if at else 0.0
        return max(end(op), free_at) + wire(source, destination)[1]

    return {op: start(op) for op in place}, {op: end(op) for op in place}


def cross_rank_dependencies(ranks):
    """How many (user, need) pairs lie on two ranks."""
    rank_of = {op: rank for rank, ops in enumerate(ranks) for op in ops}
    stages = 1 + max(op[0] for op in rank_of)
    return sum(
        rank_of[need] != rank_of[op] for op in rank_of for need in needs(op, rank_of, stages)
    )


def can_end(ranks):
    """Whether the ops, each after its needs and after the op before it on its rank, have an order
    at all."""
    ops = {op for rank in ranks for op in rank}
    stages = 1 + max(op[0] for op in ops)
    graph = {op: set(needs(op, ops, stages)) for op in ops}
    for rank in ranks:
        for before, after in pairwise(rank):
            graph[after].add(before)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError:
        return False
    return True


def fluid_finish_times(jobs, capacity):
    """[when each job is done] if `jobs` (arrival, work) share `capacity` equally, at most 1 each: a
    walk from event to event."""
    remaining, done, now = {}, {}, 0.0
    arrivals = sorted(range(len(jobs)), key=lambda job: jobs[job][0])
    while arrivals or remaining:
        rate = min(1.0, capacity / len(remaining)) if remaining else 1.0
        next_end = now + min(remaining.values()) / rate if remaining else float("inf")
        next_arrival = jobs[arrivals[0]][0] if arrivals else float("inf")
        first = min(remaining, key=remaining.get) if remaining else None
        passed, now = min(next_end, next_arrival) - now, min(next_end, next_arrival)
        remaining = {job: work - passed * rate for job, work in remaining.items()}
        if next_arrival < next_end:
            job = arrivals.pop(0)
            remaining[job] = jobs[job][1]
        else:
            del remaining[first]
            done[first] = now
    return [done[job] for job in range(len(jobs))]


@st.composite
def plans(draw, split=True):
    """A random valid `Program`: stages dealt out to ranks, some backwards split into I and W, run
    in a random legal order."""
    stages = draw(st.integers(1, 5), label="stages")
    microbatches = draw(st.integers(1, 5), label="microbatches")
    ranks = draw(st.integers(1, stages), label="ranks")
    random = draw(st.randoms(use_true_random=False))
    rank_of = [*range(ranks), *(random.randrange(ranks) for _ in range(stages - ranks))]
    random.shuffle(rank_of)
    waiting = set()
    for stage in range(stages):
        for microbatch in range(microbatches):
            halves = "IW" if split and random.random() < 0.4 else "B"
            waiting |= {(stage, kind, microbatch) for kind in "F" + halves}
    every, done, rows = frozenset(waiting), set(), [[] for _ in range(ranks)]
    while waiting:
        ready = sorted(
            op for op in waiting if all(need in done for need in needs(op, every, stages))
        )
        op = random.choice(ready)
        rows[rank_of[op[0]]].append(Op(*op))
        waiting.remove(op)
        done.add(op)
    return Program(rows, name="random")


def seconds_of_kinds(program):
    """A random {kind: [seconds per stage]} for `program`."""
    per_stage = st.lists(SECONDS, min_size=program.stages, max_size=program.stages)
    return st.fixed_dictionaries(dict.fromkeys("FBIW", per_stage))


def op_times(seconds):
    """`OpTimes` of {kind: [seconds per stage]}."""
    return OpTimes(
        forward_s=seconds["F"],
        backward_s=seconds["B"],
        input_grad_s=seconds["I"],
        weight_grad_s=seconds["W"],
    )

"""On-call cases: a training that misbehaves, as the one who is called sees it, simulated.

Each case hides a fault in a small pipeline and shows what a monitor has: step times, what each rank
computes and waits, stacks, bytes. The fault, its rank and the op follow from that evidence.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.schedules import generate
from simlab.trace import Trace

CAUSES = ("slow_gpu", "uneven_stages", "stopped", "wrong_order", "leak")
"""What can be wrong. Its name is `drill.causes.CAUSE` in the words."""
STACKS = ("stopped", "wrong_order")
"""Those of which stacks are shown, in which nothing moves any more."""
FORWARD_S, BACKWARD_S = 0.020, 0.040
GIB = 2**30


@dataclass(frozen=True)
class Case:
    """What is seen, as rows of a table, and what is wrong: the rank that is at fault and why."""

    rows: list[list[str]]
    rank: int
    cause: str


def case(cause: str, seed: str) -> Case:
    """The case of a cause with the random choices of `seed`. `InputError` for another cause."""
    if cause not in CAUSES:
        raise InputError(f"an on-call case {cause!r}: choose one of {', '.join(CAUSES)}")
    makers: Mapping[str, Callable[[Random], Case]] = {
        "slow_gpu": _slow_gpu,
        "uneven_stages": _uneven_stages,
        "stopped": _stopped,
        "wrong_order": _wrong_order,
        "leak": _leak,
    }
    return makers[cause](Random(seed))


def _slow_gpu(random: Random) -> Case:
    """From some step on, one rank computes more slowly than before."""
    ranks = random.choice((4, 6, 8))
    rank = random.randrange(ranks - 1)
    factor = random.uniform(1.4, 2.0)
    before, after = _trace(ranks, {}), _trace(ranks, {rank: factor})
    since = random.randrange(20, 60)
    return Case(_timing_rows([before] * 2 + [after] * 2, since), rank, "slow_gpu")


def _uneven_stages(random: Random) -> Case:
    """The last stage has the output head besides its layers, from the first step on."""
    ranks = random.choice((4, 6, 8))
    trace = _trace(ranks, {ranks - 1: random.uniform(1.4, 2.0)})
    return Case(_timing_rows([trace] * 4, random.randrange(20, 60)), ranks - 1, "uneven_stages")


def _trace(ranks: int, slower: Mapping[int, float]) -> Trace:
    factors = [slower.get(rank, 1.0) for rank in range(ranks)]
    times = OpTimes(
        forward_s=tuple(FORWARD_S * factor for factor in factors),
        backward_s=tuple(BACKWARD_S * factor for factor in factors),
    )
    return simulate(generate("1f1b", ranks, 2 * ranks), times)


def _timing_rows(traces: list[Trace], since: int) -> list[list[str]]:
    """Step times of four steps, and the share of its time that each rank computes in the last."""
    steps = (since - 10, since - 1, since, since + 10)
    rows = [["step", *map(str, steps)]]
    rows.append(["step time, ms", *(f"{trace.step_s * 1e3:.0f}" for trace in traces)])
    for rank in range(traces[-1].ranks):
        busy = [sum(span.end_s - span.start_s for span in trace.compute(rank)) for trace in traces]
        cells = (f"{one * 1e3:.0f}" for one in busy)
        rows.append([f"rank {rank}, computing, ms", *cells])
    return rows


def _stopped(random: Random) -> Case:
    """One rank has stopped inside an op, and everyone else waits for it sooner or later."""
    ranks = random.choice((4, 6))
    program = generate("1f1b", ranks, 2 * ranks)
    rank = random.randrange(ranks)
    at = random.randrange(2, len(program.ranks[rank]) - 2)
    stopped = program.ranks[rank][at]
    return Case(_stack_rows(program, stopped), rank, "stopped")


def _wrong_order(random: Random) -> Case:
    """One rank's list has a backward before its own forward."""
    ranks = random.choice((4, 6))
    lists = [list(ops) for ops in generate("1f1b", ranks, 2 * ranks).ranks]
    rank = random.randrange(ranks)
    forward = Op(rank, "F", random.randrange(1, ranks))
    backward = Op(rank, "B", forward.microbatch)
    ops = lists[rank]
    here, there = ops.index(forward), ops.index(backward)
    ops[here], ops[there] = backward, forward
    return Case(_stack_rows(Program(lists), None), rank, "wrong_order")


def _stack_rows(program: Program, stopped: Op | None) -> list[list[str]]:
    """Where each rank stands when nothing moves any more, and what it waits for."""
    done: set[Op] = set()
    at = [0] * len(program.ranks)
    moved = True
    while moved:
        moved = False
        for rank, ops in enumerate(program.ranks):
            while at[rank] < len(ops) and ops[at[rank]] != stopped:
                op = ops[at[rank]]
                if not all(need in done for need in program.needs(op)):
                    break
                done.add(op)
                at[rank] += 1
                moved = True
    rows = [["", "last op done", "is in", "waits for"]]
    for rank, ops in enumerate(program.ranks):
        last = str(ops[at[rank] - 1]) if at[rank] else "–"
        if at[rank] == len(ops):
            rows.append([f"rank {rank}", last, "optimizer", "–"])
            continue
        op = ops[at[rank]]
        missing = [str(need) for need in program.needs(op) if need not in done]
        rows.append([f"rank {rank}", last, str(op), ", ".join(missing) or "–"])
    return rows


def _leak(random: Random) -> Case:
    """One rank keeps a little more at every step."""
    ranks = random.choice((4, 8))
    rank = random.randrange(ranks)
    leak_bytes = random.uniform(0.02, 0.08) * GIB
    steps = (1, 20, 40, 60)
    rows = [["step", *map(str, steps)]]
    for one in range(ranks):
        held = random.uniform(30, 34) * GIB
        jitter = [random.uniform(-0.05, 0.05) * GIB for _ in steps]
        kept = [leak_bytes * step if one == rank else 0.0 for step in steps]
        cells = (f"{(held + more + other) / GIB:.2f}" for more, other in zip(jitter, kept))
        rows.append([f"rank {one}, GiB after the step", *cells])
    return Case(rows, rank, "leak")

"""It checks the rules that a program must keep, and finds the first one that it breaks.

Every message names the rank, the op and the reason. The rules are checked in the order in which a
person would look: whether each op is where it can be, whether what it needs exists, whether the set
of ops is complete, and only then whether the program ends.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

from simlab.errors import DeadlockError, ProgramError
from simlab.garbage import no_garbage_collection
from simlab.program import Op, Program


class Wait(NamedTuple):
    """A rank that cannot go on.

    rank:    the rank that waits.
    op:      the op that it would run next.
    need:    the op whose result it waits for.
    holder:  the rank that runs `need`; None if no rank does.
    has_run: whether `holder` has run `need`. Then the result went to another rank, which happens
             only in an invalid program.
    """

    rank: int
    op: Op
    need: Op
    holder: int | None
    has_run: bool


@no_garbage_collection()
def validate(program: Program) -> Program:
    """Return `program` if it keeps every rule.

    Raises `ProgramError` for the first rule that it breaks, or `DeadlockError` if it never ends.
    """
    for error in errors(program):
        raise error
    return program


def errors(program: Program) -> Iterator[ProgramError]:
    """Find the errors of `program` one after another, lazily.

    Once a rule is broken, the rules after it are not checked. A deadlock is looked for only if
    nothing else is wrong.
    """
    found = False
    for rule in (_empty_ranks, _each_stage_held, _each_op_on_its_own, _pairs, _complete):
        for error in rule(program):
            found = True
            yield error
        if found:
            return
    positions = reachable_positions(program)
    if any(position < len(ops) for position, ops in zip(positions, program.ranks)):
        yield deadlock(program, positions)


def _empty_ranks(program: Program) -> Iterator[ProgramError]:
    if not program.ranks:
        yield ProgramError("the program has no ranks")
    for rank, ops in enumerate(program.ranks):
        if not ops:
            yield ProgramError(
                f"rank {rank}: has no ops; every rank must run at least one stage", rank=rank
            )


def _each_stage_held(program: Program) -> Iterator[ProgramError]:
    held = set(map(itemgetter(0), program.rank_of))
    for stage in range(program.stages):
        if stage not in held:
            yield ProgramError(
                f"stage {stage} is on no rank, but there is a stage {program.stages - 1}"
            )


def _each_op_on_its_own(program: Program) -> Iterator[ProgramError]:
    """Find ops that run twice, and needs that never run, run on the wrong rank or come too late."""
    if _all_needs_come_from_other_stages(program) and len(program.rank_of) == sum(
        map(len, program.ranks)
    ):
        return  # This is quick, so a valid large program is not searched op by op.
    position_of = [{op: at for at, op in reversed(list(enumerate(ops)))} for ops in program.ranks]
    for rank, ops in enumerate(program.ranks):
        for at, op in enumerate(ops):
            first = program.rank_of[op]
            if first != rank:
                yield _error(rank, op, f"runs here and on rank {first} too; an op runs once")
            elif position_of[rank][op] != at:
                yield _error(
                    rank,
                    op,
                    f"runs twice (ops {position_of[rank][op] + 1} and {at + 1}); an op runs once",
                )
            for need in program.needs(op):
                holder = program.rank_of.get(need)
                if holder is None:
                    yield ProgramError(
                        f"rank {rank}: {need} never runs, but {op} needs it", rank=rank, op=op
                    )
                elif holder != rank and need.stage == op.stage:
                    yield _error(
                        rank,
                        op,
                        f"needs {need}, whose saved tensors are on rank {holder}; move one to the other",
                    )
                elif holder == rank and position_of[rank][need] > at:
                    yield _error(rank, op, f"comes before {need}, which it needs")


def _all_needs_come_from_other_stages(program: Program) -> bool:
    """Whether each need of each op has run earlier on the same rank, or is an op of another stage
    on another rank."""
    owners = list(program.rank_of.items())
    for rank, steps in enumerate(program.lowered):
        for op, _, awaited_slots, _ in steps:
            for slot in awaited_slots:
                need, holder = owners[slot]
                if slot < 0 or holder == rank or need[0] == op[0]:
                    return False
    return True


def _pairs(program: Program) -> Iterator[ProgramError]:
    """Find pairs that are not a forward and a backward of another microbatch right after it.

    The backward of the same microbatch needs the result of the forward.
    """
    for rank, ops in enumerate(program.ranks if program.paired else ()):
        for op, after in zip(ops, (*ops[1:], None)):
            if op in program.paired and (op.kind != "F" or after is None or after.kind not in "BI"):
                yield _error(
                    rank,
                    op,
                    f"is to run beside a backward, but {after or 'nothing'} comes after it",
                )
            elif op in program.paired and after and op.microbatch == after.microbatch:
                yield _error(
                    rank, op, f"is to run beside {after}, which cannot start before it has ended"
                )


def _complete(program: Program) -> Iterator[ProgramError]:
    """Find microbatches that a stage never runs, and forwards without exactly one backward, which
    is either B or I and W."""
    if _counts_are_complete(program):
        return
    present = program.rank_of
    holder = {op.stage: rank for op, rank in reversed(present.items())}
    for stage in range(program.stages):
        for microbatch in range(program.microbatches):
            if (op := Op(stage, "F", microbatch)) in present:
                yield from _comes_back(present, op)
            else:
                last = program.microbatches - 1
                yield ProgramError(
                    f"rank {holder[stage]}: {op} never runs, but there is a microbatch {last}",
                    rank=holder[stage],
                    op=op,
                )


def _counts_are_complete(program: Program) -> bool:
    """Whether the program has as many ops of each kind as a complete one.

    If all ops differ and all their needs are met, the program is then complete.
    """
    counts = Counter(map(itemgetter(1), program.rank_of))
    all_of_them = program.stages * program.microbatches
    if (
        counts["F"] != all_of_them
        or counts["B"] + counts["I"] != all_of_them
        or counts["I"] != counts["W"]
    ):
        return False
    return (
        not counts["B"]
        or not counts["I"]
        or not any(
            (stage, "B", m) in program.rank_of for stage, kind, m in program.rank_of if kind == "I"
        )
    )


def _comes_back(present: Mapping[Op, int], f: Op) -> Iterator[ProgramError]:
    b, i, w = (f._replace(kind=kind) for kind in "BIW")
    rank = present[f]
    if b not in present and i not in present:
        yield _error(rank, f, f"has no backward: neither {b} nor {i} with {w} runs")
    elif b in present and i in present:
        yield _error(rank, b, f"does the whole backward, but {i} does part of it again")
    elif i in present and w not in present:
        yield _error(rank, i, f"has no weight gradient: {w} never runs")


def _error(rank: int | None, op: Op | None, reason: str) -> ProgramError:
    return ProgramError(f"rank {rank}: {op} {reason}", rank=rank, op=op)


# does it end?
# ---------------------------------------------------------------------------------------------


def reachable_positions(program: Program) -> list[int]:
    """[per rank] the number of ops that it can run, if each op runs as soon as its needs have run.

    A rank that can run fewer ops than it has is stuck. Sends never block, because realrun's
    executor posts them and goes on, so a program deadlocks exactly if a rank is stuck.
    """
    position = [0] * len(program.ranks)
    # This is by slot; the last entry, -1, stands for an op that never runs.
    done = bytearray(len(program.rank_of) + 1)
    waiting: dict[int, list[int]] = {}
    ready = list(range(len(program.ranks)))
    while ready:
        rank = ready.pop()
        steps, at = program.lowered[rank], position[rank]
        while at < len(steps):
            _, slot, awaited_slots, _ = steps[at]
            missing = None
            for awaited in awaited_slots:
                if not done[awaited]:
                    missing = awaited
                    break
            if missing is not None:
                waiting.setdefault(missing, []).append(rank)
                break
            done[slot] = True
            at += 1
            if slot in waiting:
                ready.extend(waiting.pop(slot))
        position[rank] = at
    return position


def waits(program: Program, positions: Sequence[int]) -> dict[int, Wait]:
    """{rank: `Wait`} of the ranks that cannot go on.

    positions: [per rank] the number of ops that it has run.

    A rank cannot go on if its next op has a need that has neither run on the rank nor been sent to
    it.
    """
    done = [set(ops[:position]) for ops, position in zip(program.ranks, positions)]
    sent = {
        (step.op, step.destination)
        for steps, position in zip(program.lowered, positions)
        for step in steps[:position]
    }
    result = {}
    for rank, position in enumerate(positions):
        if position < len(program.ranks[rank]):
            op = program.ranks[rank][position]
            for need in program.needs(op):
                if need not in done[rank] and (need, rank) not in sent:
                    holder = program.rank_of.get(need)
                    result[rank] = Wait(
                        rank, op, need, holder, holder is not None and need in done[holder]
                    )
                    break
    return result


def deadlock(program: Program, positions: Sequence[int]) -> DeadlockError:
    """The `DeadlockError` of ranks that are stuck at `positions`.

    It names the circle of waits, or the chain of waits that ends at a rank that waits for no other.
    """
    waiting = waits(program, positions)
    path: list[int] = []
    rank: int | None = min(waiting)
    while rank is not None and rank in waiting and rank not in path:
        path.append(rank)
        rank = waiting[rank].holder
    circle = path if rank is None or rank not in path else path[path.index(rank) :]
    circle_waits = [waiting[member] for member in circle]
    return DeadlockError("deadlock: " + "; ".join(map(wait_text, circle_waits)), waits=circle_waits)


def wait_text(wait: Wait) -> str:
    """One sentence that says which rank waits, at which op, and for what."""
    if wait.holder is None:
        where = "which no rank runs"
    elif wait.holder == wait.rank:
        where = "which comes later on the same rank"
    elif wait.has_run:
        where = f"which rank {wait.holder} has run but does not send here"
    else:
        where = f"which rank {wait.holder} has not run"
    return f"rank {wait.rank} waits at {wait.op} for {wait.need}, {where}"

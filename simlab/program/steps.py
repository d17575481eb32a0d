"""It works out what each op awaits from other ranks and where its result goes."""

from collections.abc import Sequence
from typing import NamedTuple

from simlab.program.op import Op


class Step(NamedTuple):
    """One op of one rank, where its inputs come from and where its output goes.

    slot:          the number of the op in the program: its place in `Program.rank_of`.
    awaited_slots: the slots of the ops that it needs and that have not run earlier on the same
                   rank; -1 stands for an op that is not in the program.
    destination:   the rank that gets the result, or None if the result stays on this rank.
    """

    op: Op
    slot: int
    awaited_slots: tuple[int, ...]
    destination: int | None


Columns = dict[tuple[int, str], dict[int, int]]
"""{(stage, kind): {microbatch: slot}}."""
Rule = tuple[dict[int, int], dict[int, int] | None, dict[int, int] | None, dict[int, int]]
"""For a (stage, kind), four times {microbatch: slot}: of the op, of the first and the second op that
it needs, and of the op that uses its result."""


def steps_of_rank(
    ops: Sequence[Op], rank: int, rules: dict[tuple[int, str], Rule], owners: Sequence[int]
) -> list[Step]:
    """The `Step` of each of `ops`, which `rank` runs, see `Program.lowered`.

    rules:  the `Rule` of each (stage, kind).
    owners: the rank of each slot.

    A large program has hundreds of thousands of ops, so only numbers are hashed here.
    """
    done, steps = bytearray(len(owners)), []
    for op in ops:
        stage, kind, microbatch = op
        own, first, second, users = rules[stage, kind]
        awaited_slots: tuple[int, ...] = ()
        destination = None
        if first is not None:
            need = first.get(microbatch, -1)
            if need < 0 or not done[need]:
                awaited_slots = (need,)
            if second is not None:
                need = second.get(microbatch, -1)
                if need < 0 or not done[need]:
                    awaited_slots += (need,)
        if microbatch in users:
            destination = owners[users[microbatch]]
            if destination == rank:
                destination = None
        slot = own[microbatch]
        done[slot] = True
        steps.append(tuple.__new__(Step, (op, slot, awaited_slots, destination)))
    return steps

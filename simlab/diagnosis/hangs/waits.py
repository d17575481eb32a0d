"""Who waits for whom, over all groups and pairs together, and the ranks that wait for nobody.

Each rank numbers the collectives of a group. As long as all is well, the ranks of a group have the same
one under each number. A send belongs to the receive with the same number among the messages of its pair.
So a call that is not done waits for the ranks that have not come to it, or have called something else.
Following these waits from rank to rank leads to the cause: a rank that waits for nobody, or ranks that
wait for each other in a circle.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

from simlab.diagnosis.hangs.calls import RECV, SCHEDULED, SEND, STARTED, Call, Calls, squeezed

MISSING, DIFFERENT, SIZE, BEHIND, STUCK = "missing", "different", "size", "behind", "stuck"
REASONS = (MISSING, DIFFERENT, SIZE, BEHIND, STUCK)


class Wait(NamedTuple):
    """One rank's wait: the call that it waits in, the ranks that it waits for, and what they did:
    'missing' (they have not called it), 'different' (they called something else), 'size' (they gave
    another size), 'behind' (they called it, and their GPU has not begun or not ended it) or 'stuck'
    (all have called it, and it does not end)."""

    call: Call
    on: tuple[int, ...]
    reason: Annotated[str, REASONS]


def waits_of(calls: Calls) -> list[Wait]:
    """The `Wait` of each call in which a rank waits."""
    return [
        _of_message(calls, call) if call.is_message else _of_collective(calls, call)
        for call in calls.pending
    ]


def _of_collective(calls: Calls, call: Call) -> Wait:
    here = calls.by_place[call.group.name, call.group.ranks, call.number, call.part]
    others = [rank for rank in call.group.ranks if rank != call.rank]
    not_here = [rank for rank in others if rank not in here]
    absent = tuple(
        rank
        for rank in not_here
        if rank in calls.ranks and not calls.has_passed(rank, call.group, call.number)
    )
    members = list(here.values())
    other = odd(members, lambda one: squeezed(one.name))
    if call.rank in other:
        return Wait(call, _but(call.rank, (*absent, *_all(other, members))), DIFFERENT)
    if other:
        return Wait(call, tuple(sorted({*absent, *other})), DIFFERENT)
    if absent:
        return Wait(call, absent, MISSING)
    sized = odd(members, lambda one: one.size)
    if sized:
        on = _all(sized, members) if call.rank in sized else sized
        return Wait(call, _but(call.rank, on), SIZE)
    gone = tuple(rank for rank in not_here if rank not in calls.ranks)
    if gone:
        return Wait(call, gone, MISSING)
    if not call.group.is_known and not not_here:
        unseen = _unseen(calls, call)
        if unseen:
            return Wait(call, unseen, MISSING)
    slow = tuple(rank for rank in others if calls.waits_before(rank, call.group, call.number))
    if slow:
        return Wait(call, slow, BEHIND)
    waiting = [one for one in members if not one.is_done]
    late = tuple(one.rank for one in waiting if one.state == SCHEDULED)
    if len(waiting) == 1 and others:
        return Wait(call, (), BEHIND)
    if any(one.state == STARTED for one in waiting) and late:
        return Wait(call, () if call.rank in late else late, BEHIND)
    return Wait(call, tuple(one.rank for one in waiting if one.rank != call.rank), STUCK)


def _unseen(calls: Calls, call: Call) -> tuple[int, ...]:
    """The ranks that may be in a group without having called anything in it: those that wait in nothing."""
    busy = {one.rank for one in calls.pending}
    return tuple(rank for rank in calls.world if rank not in {*busy, *call.group.ranks})


def _of_message(calls: Calls, call: Call) -> Wait:
    """A send waits for its receive, and a receive for its send. Where nothing says whose that is, it is
    one of the ranks that wait in nothing, if there are any."""
    if call.peer < 0:
        busy = {one.rank for one in calls.pending}
        free = tuple(rank for rank in calls.world if rank not in busy)
        return Wait(call, free or _but(call.rank, busy), MISSING if free else STUCK)
    other = calls.messages[call.pair][RECV if call.name == SEND else SEND].get(call.number)
    if other is None:
        return Wait(call, (call.peer,), MISSING)
    if call.size and other.size and call.size != other.size:
        return Wait(call, (call.peer,), SIZE)
    return Wait(call, () if other.is_done else (call.peer,), STUCK)


def odd(members: Iterable[Call], value: Callable[[Call], str]) -> tuple[int, ...]:
    """The ranks whose value is not that of most; all of them where no value is that of most. A rank
    whose value is unknown, '', is not odd."""
    known = {call.rank: value(call) for call in members if value(call)}
    counts = Counter(known.values()).most_common()
    if len(counts) < 2:
        return ()
    is_tie = counts[0][1] == counts[1][1]
    return tuple(rank for rank, one in known.items() if is_tie or one != counts[0][0])


def _all(some: Sequence[int], members: Sequence[Call]) -> tuple[int, ...]:
    """For whom an odd rank waits: for the others where all of them are odd, else for nobody."""
    return tuple(some) if len(some) == len(members) else ()


def _but(rank: int, ranks: Iterable[int]) -> tuple[int, ...]:
    return tuple(sorted({*ranks} - {rank}))


def ends_of(waits: Sequence[Wait]) -> tuple[list[int], list[list[int]]]:
    """(the ranks that wait for nobody, the circles) to which the waits lead."""
    on: dict[int, set[int]] = defaultdict(set)
    users: dict[int, set[int]] = defaultdict(set)
    for wait in waits:
        rank = wait.call.rank
        # Who all wait for each other need no more than a ring of edges.
        ring = [min(wait.on, key=lambda one: (one < rank, one))] if wait.on else []
        edges = ring if wait.reason == STUCK else wait.on
        on[rank].update(edges)
        for other in edges:
            users[other].add(rank)
    free = sorted(rank for rank in {*on, *users} if not on.get(rank))
    left = {*on} - _reached(free, users)
    circles = []
    while left:
        circle = _circle(min(left), on, users)
        circles.append(sorted(circle))
        left -= _reached(circle, users)
    return free, circles


def _reached(starts: Iterable[int], edges: dict[int, set[int]]) -> set[int]:
    found, todo = set(starts), list(starts)
    while todo:
        new = edges.get(todo.pop(), set()) - found
        found |= new
        todo += new
    return found


def _circle(rank: int, on: dict[int, set[int]], users: dict[int, set[int]]) -> set[int]:
    """Ranks that all wait for each other and for nobody else, to which the waits of `rank` lead."""
    while not (reach := _reached([rank], on)) <= (back := _reached([rank], users)):
        rank = min(reach - back)
    return reach

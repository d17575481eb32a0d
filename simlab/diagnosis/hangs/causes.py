"""It finds the causes to which all waits lead."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from simlab.diagnosis.hangs.calls import RECV, SEND, Call, Calls, squeezed
from simlab.diagnosis.hangs.hang import CIRCLE, IDLE, NONE, Cause, Hang, ranks_text
from simlab.diagnosis.hangs.waits import (
    DIFFERENT,
    MISSING,
    SIZE,
    STUCK,
    Wait,
    ends_of,
    odd,
    waits_of,
)

UNSEEN = "The recorder does not see gloo's sends and receives"


def hang_in(calls: Calls, detail: str = "") -> Hang:
    """The `Hang` that `calls` show. detail: what is to be said if they show none."""
    waits = waits_of(calls)
    free, circles = ends_of(waits)
    found: dict[tuple[Any, ...], Cause] = {}
    for rank in free:
        _join(found, _of_free(calls, waits, rank))
    for cause in [*_of_odd(waits), *(_of_circle(calls, waits, circle) for circle in circles)]:
        _join(found, cause)
    for rank in _idle(calls, waits) if waits else ():
        _join(found, Cause("", (), 0, "", (rank,), (), IDLE, ""))
    for cause in () if waits else _of_ended(calls):
        _join(found, cause)
    causes = sorted(
        found.values(), key=lambda one: (one.reason in (STUCK, IDLE), -len(one.waiting))
    )
    causes = [cause._replace(detail=_detail(calls, cause)) for cause in causes]
    no_dump = tuple(rank for rank in calls.world if rank not in calls.ranks)
    if not causes:
        return Hang("", (), 0, "", (), (), NONE, detail, no_dump)
    first = causes[0]
    culprit = tuple(sorted({rank for cause in causes for rank in cause.culprit}))
    told = {_place(cause) for cause in causes if cause.reason != CIRCLE}
    also = [wait for wait in waits if _place(_cause(wait.call, (), (), "")) not in told]
    return Hang(
        first.group, first.ranks, first.number, first.name, culprit, first.waiting, first.reason,
        first.detail, no_dump, tuple(causes), tuple(_said(also)),
    )  # fmt: skip


def _place(cause: Cause) -> tuple[Any, ...]:
    return cause.group, cause.ranks, cause.number, cause.name


def _join(found: dict[tuple[Any, ...], Cause], cause: Cause) -> None:
    """Add a cause; culprits of one call and one reason are one cause."""
    key = *_place(cause), cause.reason
    if key in found:
        both = {*found[key].culprit, *cause.culprit}
        waiting = {*found[key].waiting, *cause.waiting} - both
        cause = cause._replace(culprit=tuple(sorted(both)), waiting=tuple(sorted(waiting)))
    found[key] = cause


def _of_free(calls: Calls, waits: Sequence[Wait], rank: int) -> Cause:
    """The cause that a rank is that waits for nobody."""
    own = [wait for wait in waits if wait.call.rank == rank and not wait.on]
    users = [wait for wait in waits if rank in wait.on]
    by_call: dict[tuple[Any, ...], list[Wait]] = defaultdict(list)
    for wait in users or own:
        by_call[_key(wait.call)].append(wait)
    next_name = _next(calls, [wait.call for wait in users], rank)
    same = min(
        by_call.values(),
        key=lambda its: (
            _awaited(its[0].call) != next_name,
            its[0].call.is_message,
            its[0].call.at,
        ),
    )
    call, reason = same[0].call, same[0].reason
    if reason == DIFFERENT and rank not in _callers(calls, call):
        reason = MISSING
    waiting = tuple(sorted(wait.call.rank for wait in same if wait.call.rank != rank))
    if reason == STUCK:
        return _cause(call, (), tuple(sorted({rank, *waiting})), reason)
    return _cause(call, (rank,), waiting, reason)


def _awaited(call: Call) -> str:
    """What another rank must call for `call` to end."""
    return {SEND: RECV, RECV: SEND}.get(call.name, call.name)


def _next(calls: Calls, users: Iterable[Call], rank: int) -> str:
    """What `rank` would have called next: what a rank of the same tp, dp or cp group, which has the same
    list of calls, called after as many; else a send after a receive, and a receive after a send."""
    own = [call.name for call in calls.of_rank[rank]]
    for user in users:
        its = [call.name for call in calls.of_rank[user.rank]]
        if not user.is_message and len(its) > len(own) and its[: len(own)] == own:
            return its[len(own)]
    return SEND if own[-1:] == [RECV] else RECV


def _of_odd(waits: Sequence[Wait]) -> Iterable[Cause]:
    """The causes of the ranks that called something else, whoever they wait for besides."""
    by_call: dict[tuple[Any, ...], list[Wait]] = defaultdict(list)
    for wait in waits:
        if wait.reason == DIFFERENT:
            by_call[_key(wait.call)[:-1]].append(wait)
    for same in by_call.values():
        wrong = odd([wait.call for wait in same], lambda call: call.name)
        right = [wait.call for wait in same if wait.call.rank not in wrong] or [same[0].call]
        waiting = tuple(call.rank for call in right if call.rank not in wrong)
        if wrong:
            yield _cause(right[0], wrong, waiting, DIFFERENT)


def _of_ended(calls: Calls) -> Iterable[Cause]:
    """The causes in the last collective of each group, where nobody waits: gloo's calls end, too, when
    they fail, as where ranks gave it different sizes."""
    last = {place[:2]: place for place in sorted(calls.by_place, key=lambda one: one[2:])}
    for place in last.values():
        its = list(calls.by_place[place].values())
        for reason, wrong in (
            (DIFFERENT, odd(its, lambda call: squeezed(call.name))),
            (SIZE, odd(its, lambda call: call.size)),
        ):
            if wrong:
                right = [call for call in its if call.rank not in wrong] or its
                yield _cause(right[0], wrong, (), reason)
                break


def _of_circle(calls: Calls, waits: Sequence[Wait], circle: Sequence[int]) -> Cause:
    """The cause that ranks are that wait for each other."""
    inside = [wait for wait in waits if wait.call.rank in circle and {*wait.on} & {*circle}]
    reasons = {wait.reason for wait in inside}
    places = {_key(wait.call) for wait in inside}
    call = inside[0].call
    if reasons == {STUCK}:
        return _cause(call, (), tuple(circle), STUCK)
    if reasons in ({SIZE}, {DIFFERENT}) and (len(places) == 1 or call.is_message):
        (reason,) = reasons
        return _cause(call, tuple(circle), (), reason)
    # A send need not hold up its rank: where only some ranks do nothing but send, it is they that do
    # not go on.
    others = {wait.call.rank for wait in inside if wait.call.name != SEND}
    senders = [rank for rank in circle if rank not in others]
    culprit = tuple(senders or circle)
    waiting = tuple(rank for rank in circle if rank not in culprit)
    return _cause(call, culprit, waiting, CIRCLE)


def _idle(calls: Calls, waits: Sequence[Wait]) -> Iterable[int]:
    """The ranks of a pipeline amid a step that neither wait nor are waited for. A stage gets back a
    gradient for each activation that it sends, so at the end of a step it has received from each
    neighbour as many messages as it has sent to it."""
    seen = {wait.call.rank for wait in waits} | {rank for wait in waits for rank in wait.on}
    excess: dict[tuple[int, int], int] = defaultdict(int)
    for call in calls.all:
        if call.is_message:
            excess[call.rank, call.peer] += 1 if call.name == SEND else -1
    return sorted({rank for (rank, _), count in excess.items() if count} - seen)


def _key(call: Call) -> tuple[Any, ...]:
    return call.group.name, call.group.ranks, call.number, call.part, call.peer, call.name


def _callers(calls: Calls, call: Call) -> dict[int, Call]:
    return calls.by_place.get((call.group.name, call.group.ranks, call.number, call.part), {})


def _cause(call: Call, culprit: Sequence[int], waiting: Sequence[int], reason: str) -> Cause:
    pair = tuple(sorted((call.rank, call.peer)))
    ranks = pair if call.peer >= 0 else call.group.ranks
    return Cause(
        call.group.name, ranks, call.number, call.name, tuple(culprit), tuple(waiting), reason, ""
    )


def _detail(calls: Calls, cause: Cause) -> str:
    """What the first culprit did, with the line of its code where the file has it."""
    if not cause.culprit or cause.culprit[0] not in calls.ranks:
        return ""
    rank = cause.culprit[0]
    its = calls.of_rank[rank]
    of_group = [call for call in its if call.group.name == cause.group]
    if cause.reason in (DIFFERENT, SIZE):
        here = [call for call in of_group if call.number == cause.number and call.name]
        here.sort(key=lambda call: call.is_done)
        where = f", at {here[0].where}" if here and here[0].where else ""
        return f"Rank {rank} called {here[0].name} of {here[0].sizes}{where}." if here else ""
    if cause.reason != MISSING:
        return ""
    if not its:
        return f"Rank {rank} has called nothing at all."
    if not of_group:
        return f"Rank {rank} has called nothing of this group."
    last = of_group[-1]
    where = f", at {last.where}" if last.where else ""
    unseen = "" if calls.sees_messages else f" {UNSEEN}: rank {rank} may wait in one."
    return f"The last that rank {rank} called is {last.name} number {last.number}{where}.{unseen}"


def _said(waits: Iterable[Wait]) -> Iterable[str]:
    """What each rank waits for; ranks of one call that wait for the same are one line."""
    lines: dict[tuple[Any, ...], tuple[Wait, list[int]]] = {}
    for wait in waits:
        call = wait.call
        same = call.group.name, call.group.ranks, call.number, call.part, call.name, wait.on
        key = (*same, call.rank if call.is_message or wait.reason == STUCK else -1)
        lines.setdefault(key, (wait, []))[1].append(call.rank)
    for wait, ranks in lines.values():
        call = wait.call
        on = f"for {ranks_text(wait.on)}" if wait.on else "for its end"
        where = f", at {call.where}" if call.where else ""
        waits_or = "waits" if len(ranks) == 1 else "wait"
        yield (
            f"{ranks_text(ranks)} {waits_or} in {call.name} number {call.number} of group "
            f"{call.group.name} {on}{where}."
        )

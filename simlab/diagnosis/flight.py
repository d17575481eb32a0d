"""What hangs, from the dumps of torch's flight recorder, one for each rank: the collective at which
the ranks of a group part, the rank that is missing there, and who waits.

Each rank numbers the collectives of a group. As long as all is well, the ranks of a group have the same
one under each number. The first number at which they differ is where the training stopped: a rank has
not come to it, or has called another collective, or gives another size.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Annotated, Any, NamedTuple

from simlab.diagnosis.fields import whole_field
from simlab.errors import InputError, shortened

COMPLETED = "completed"
MOST_SHOWN = 64
"""Ranks that a line names."""
MISSING, DIFFERENT, SIZE, STUCK, NONE = "missing", "different", "size", "stuck", "none"


class Call(NamedTuple):
    """One rank's call of a collective: its name, the sizes that it gave, whether it was completed,
    and the line of Python that called it, '' if unknown."""

    name: str
    sizes: str
    is_done: bool
    where: str


class Hang(NamedTuple):
    """Where a training stopped.

    group:   the name of the group, for people. ranks: its ranks.
    number:  the number of the collective in the group, from 1.
    name:    the collective that most ranks called, such as 'all_reduce'; '' if nothing hangs.
    culprit: the ranks that did not do as most did; empty if all are in it.
    waiting: the ranks that have called it and wait.
    reason:  'missing' (culprits have not called it), 'different' (they called something else), 'size'
             (they gave other sizes), 'stuck' (all ranks are in it, but it does not end) or 'none'.
    detail:  what the culprits did instead, or the last that they completed, for people.
    no_dump: ranks of the training that left no dump.
    """

    group: str
    ranks: tuple[int, ...]
    number: int
    name: str
    culprit: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: Annotated[str, (MISSING, DIFFERENT, SIZE, STUCK, NONE)]
    detail: str
    no_dump: tuple[int, ...]

    def __str__(self) -> str:
        lines = [self._what()]
        if self.detail:
            lines.append(self.detail)
        if self.no_dump:
            lines.append(f"No dump of {_ranks(self.no_dump)}: ended before, or could not write it.")
        return "\n".join(lines)

    def _what(self) -> str:
        if self.reason == NONE:
            return "Every collective that a rank has begun was completed: no hang in these dumps."
        what = f"{self.name} number {self.number} of group {self.group} (ranks {_list(self.ranks)})"
        waiting = f"{_ranks(self.waiting)} in it" if self.waiting else "nobody in it"
        has = "has" if len(self.culprit) == 1 else "have"
        return {
            MISSING: f"{_ranks(self.culprit)} {has} not called {what}; {waiting}.",
            DIFFERENT: f"{_ranks(self.culprit)} called something else instead of {what}; {waiting}.",
            SIZE: f"{_ranks(self.culprit)} gave another size to {what}; {waiting}.",
            STUCK: f"All ranks are in {what}, and it does not end: look at the network, or at a rank "
            "that died in it.",
        }[self.reason]


def _list(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_SHOWN]))
    return shown if len(ranks) <= MOST_SHOWN else f"{shown}, and {len(ranks) - MOST_SHOWN} more"


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_list(ranks)}"


def hang_of(dumps: Sequence[tuple[int | None, dict[str, Any]]]) -> Hang:
    """The `Hang` that some dumps show.

    dumps: (the rank, the parsed JSON of its dump). Where the rank is None, it is the position: dumps
    do not say whose they are.

    Raises `InputError` if a dump is not one, or two are of one rank.
    """
    calls: dict[str, dict[int, dict[int, Call]]] = defaultdict(lambda: defaultdict(dict))
    members: dict[str, tuple[int, ...]] = {}
    seen: set[int] = set()
    for at, (named, data) in enumerate(dumps):
        rank = at if named is None else named
        if rank in seen:
            raise InputError(f"two dumps are of rank {rank}")
        seen.add(rank)
        try:
            members |= _groups(data)
            _add_calls(calls, rank, data["entries"])
        except InputError as error:
            raise InputError(f"the dump of rank {rank}: {error}") from error
        except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as error:
            raise InputError(
                f"the dump of rank {rank} is not a flight recorder's: {type(error).__name__} {error}"
            ) from error
    world = {rank for ranks in members.values() for rank in ranks} | seen
    no_dump = tuple(sorted(world - seen))
    everyone = tuple(sorted(world))
    found = [
        hang
        for group, of_rank in calls.items()
        if (hang := _group_hang(group, members.get(group, everyone), of_rank, no_dump))
    ]
    ended = Hang("", (), 0, "", (), (), NONE, "", no_dump)
    return min(found, key=lambda hang: (not hang.culprit, hang.reason == STUCK), default=ended)


def _groups(data: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """{group: its ranks}, as far as a dump has them."""
    found = {}
    for name, config in (data.get("pg_config") or {}).items():
        ranks = config.get("ranks", "") if isinstance(config, dict) else ""
        numbers = (
            map(int, ranks.strip("[]() ").replace(",", " ").split())
            if isinstance(ranks, str)
            else ranks
        )
        its = {whole_field(f"a rank of group {shortened(name)}", one) for one in numbers}
        if its:
            found[str(config.get("name") or name)] = tuple(sorted(its))
    return found


def _add_calls(
    calls: dict[str, dict[int, dict[int, Call]]], rank: int, entries: Sequence[dict[str, Any]]
) -> None:
    for entry in entries:
        if entry.get("is_p2p"):
            continue
        group = str((entry.get("process_group") or [""])[0])
        frames = entry.get("frames") or []
        where = "{filename}:{line} {name}".format(**frames[0]) if frames else ""
        name = str(entry["profiling_name"]).rpartition(":")[2]
        sizes = f"{entry.get('input_sizes')} {entry.get('input_dtypes', '')}".strip()
        number = whole_field("collective_seq_id", entry["collective_seq_id"])
        # gloo's entries stay 'scheduled', and are retired when they are completed
        done = entry["state"] == COMPLETED or entry.get("retired") is True
        calls[group][rank][number] = Call(name, sizes, done, where)


def _group_hang(
    group: str,
    ranks: tuple[int, ...],
    of_rank: dict[int, dict[int, Call]],
    no_dump: tuple[int, ...],
) -> Hang | None:
    """The first number at which the ranks of a group part; None if there is none."""
    known = [rank for rank in ranks if rank not in no_dump]
    first = max((min(of_rank[rank]) for rank in known if of_rank.get(rank)), default=0)
    numbers = {number for rank in known for number in of_rank.get(rank, ()) if number >= first}
    for number in sorted(numbers):
        here = {rank: of_rank.get(rank, {}).get(number) for rank in known}
        hang = _parting(group, ranks, number, here, no_dump)
        if hang:
            return hang._replace(detail=_detail(hang, of_rank))
    return None


def _parting(
    group: str,
    ranks: tuple[int, ...],
    number: int,
    here: dict[int, Call | None],
    no_dump: tuple[int, ...],
) -> Hang | None:
    called = {rank: call for rank, call in here.items() if call is not None}
    if all(call.is_done for call in called.values()) and len(called) == len(here):
        return None
    name = _most([call.name for call in called.values()])
    sizes = _most([call.sizes for call in called.values() if call.name == name])
    absent = tuple(rank for rank, call in here.items() if call is None)
    other = tuple(rank for rank, call in called.items() if call.name != name)
    odd = tuple(rank for rank, call in called.items() if call.name == name and call.sizes != sizes)
    gone = tuple(rank for rank in ranks if rank in no_dump)
    waits = tuple(rank for rank, call in called.items() if not call.is_done and call.name == name)
    for culprit, reason in ((other, DIFFERENT), (absent, MISSING), (odd, SIZE), (gone, MISSING)):
        if culprit and (waits or reason == DIFFERENT):
            waiting = tuple(rank for rank in waits if rank not in culprit)
            return Hang(group, ranks, number, name, culprit, waiting, reason, "", no_dump)
    return Hang(group, ranks, number, name, (), waits, STUCK, "", no_dump) if waits else None


def _most(values: Sequence[str]) -> str:
    return Counter(values).most_common(1)[0][0]


def _detail(hang: Hang, of_rank: dict[int, dict[int, Call]]) -> str:
    """What the first culprit did, with the line of its code where the dump has it."""
    if not hang.culprit:
        return ""
    rank = hang.culprit[0]
    its = of_rank.get(rank, {})
    call = its.get(hang.number)
    if call is None:
        before = [number for number in its if number < hang.number]
        if not before:
            return f"Rank {rank} has called nothing of this group."
        last = its[max(before)]
        where = f", at {last.where}" if last.where else ""
        return f"The last that rank {rank} called is {last.name} number {max(before)}{where}."
    where = f", at {call.where}" if call.where else ""
    return f"Rank {rank} called {call.name} of {call.sizes}{where}."

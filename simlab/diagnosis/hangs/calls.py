"""The calls that ranks have made, whatever file they were read from."""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, NamedTuple

SCHEDULED, STARTED, DONE = "scheduled", "started", "done"
SEND, RECV = "send", "recv"
COALESCED = "coalesced"
"""The entry that closes a batch of sends and receives, and has the state of all of them."""
COUNTED_IN = {
    "allreduce": "input", "allreducecoalesced": "input", "broadcast": "input", "reduce": "input",
    "barrier": "input", "allgather": "input", "allgatherbase": "input",
    "allgatherintotensor": "input", "allgatherintotensorcoalesced": "input",
    "reducescatter": "input", "reducescatterbase": "input", "reducescattertensor": "input",
    "reducescattertensorcoalesced": "input",
}  # fmt: skip
"""{collective, without underscores: which of its tensors have as many numbers on every rank}. Others
take and give each rank what is its own: all-to-all, scatter, gather and all v-forms."""


def squeezed(name: str) -> str:
    """A collective's name as torch 1.8 to 2.13 spell it, in one spelling: '_allgather_base' and
    '_ALLGATHER_BASE' are 'allgatherbase'."""
    return name.replace("_", "").lower()


class Group(NamedTuple):
    """A process group: its name and its ranks. is_known: whether a file says who its ranks are; else
    they are those that were seen in it."""

    name: str
    ranks: tuple[int, ...]
    is_known: bool = True


class Call(NamedTuple):
    """One rank's call of a collective, a send or a receive.

    rank:   who called.
    group:  the group.
    name:   'all_reduce', 'send', ...; '' if unknown.
    number: of a collective its number in the group, the same on all ranks; of a send or a receive
            its number among those of the pair, from 1.
    part:   which of the collectives that share a number it is, from 0.
    peer:   the other rank of a send or a receive; -1 of a collective.
    size:   how many numbers, and of which type, every rank must give; '' if ranks may differ.
    sizes:  what the rank gave, for people.
    state:  'scheduled', 'started' (the GPU has begun) or 'done'.
    where:  the line of Python that called it; '' if unknown.
    at:     how many calls the rank had made before it, as far as its file has them.
    """

    rank: int
    group: Group
    name: str
    number: int
    part: int = 0
    peer: int = -1
    size: str = ""
    sizes: str = ""
    state: str = SCHEDULED
    where: str = ""
    at: int = 0

    @property
    def is_done(self) -> bool:
        """Whether the call was completed."""
        return self.state == DONE

    @property
    def is_message(self) -> bool:
        """Whether it is a send or a receive."""
        return self.name in (SEND, RECV)

    @property
    def pair(self) -> tuple[str, int, int]:
        """(group, sender, receiver) of a send or a receive."""
        ends = (self.rank, self.peer) if self.name == SEND else (self.peer, self.rank)
        return self.group.name, *ends


Place = tuple[str, tuple[int, ...], int, int]
"""(name of a group, its ranks, number, part): which collective of a training a call is."""


class Calls:
    """The calls of all ranks of which there is a file.

    ranks:   those ranks. world: these, and all that are in a group with them.
    of_rank: {rank: its calls, in order}. by_place: {which collective: {rank: its call}}.
    messages: {pair: {'send' or 'recv': {number: call}}}.
    sees_messages: whether the files would have sends and receives.
    pending: the calls that each rank waits in: of those of a group, and of the messages of a pair,
             the first that is not done, since each of them ends after the one before it.
    """

    def __init__(
        self,
        calls: Iterable[Call],
        ranks: Iterable[int],
        world: Iterable[int],
        *,
        sees_messages: bool = True,
    ) -> None:
        self.sees_messages = sees_messages
        self.ranks = frozenset(ranks)
        self.all = tuple(calls)
        self.world = sorted(
            {*self.ranks, *world, *(one for it in self.all for one in it.group.ranks)}
        )
        self.of_rank: dict[int, list[Call]] = defaultdict(list)
        self.by_place: dict[Place, dict[int, Call]] = defaultdict(dict)
        self._latest: dict[tuple[str, tuple[int, ...], int], int] = {}
        self.messages: dict[tuple[str, int, int], dict[str, dict[int, Call]]] = defaultdict(
            lambda: {SEND: {}, RECV: {}}
        )
        first: dict[tuple[Any, ...], Call] = {}
        for call in self.all:
            self.of_rank[call.rank].append(call)
            if call.is_message:
                self.messages[call.pair][call.name][call.number] = call
                stream: tuple[Any, ...] = (call.rank, call.name, *call.pair)
            else:
                group = call.group.name, call.group.ranks
                self.by_place[*group, call.number, call.part][call.rank] = call
                before = self._latest.get((*group, call.rank), -1)
                self._latest[*group, call.rank] = max(before, call.number)
                stream = (call.rank, *group)
            if not call.is_done:
                kept = first.setdefault(stream, call)
                if (call.number, call.part) < (kept.number, kept.part):
                    first[stream] = call
        self.pending = list(first.values())
        self._first = {
            (one.group.name, one.group.ranks, one.rank): one.number
            for one in self.pending
            if not one.is_message
        }

    def has_passed(self, rank: int, group: Group, number: int) -> bool:
        """Whether `rank` has called that collective: it may be too old for the rank's dump to hold."""
        return self._latest.get((group.name, group.ranks, rank), -1) >= number

    def waits_before(self, rank: int, group: Group, number: int) -> bool:
        """Whether `rank` still waits in a collective of the group that comes before that one."""
        return self._first.get((group.name, group.ranks, rank), number) < number

"""The `Graph` of profiles that torch.profiler wrote, one for each rank.

The works of a collective on several ranks belong together by their group and their number in the group.
A rank waits for a collective that ends while the rank does nothing. The rest of the time in which it
does nothing is spent on loading data, where the data loader says so, and else by the host.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from simlab.diagnosis.graph import ENTRY, HOST, Graph, Need, Work
from simlab.diagnosis.profiler import (
    ALL_MEET,
    MESSAGES,
    ROUNDING_S,
    Piece,
    Rank,
    before,
    rank_of,
    world,
)
from simlab.errors import InputError, shortened


def profile_graph(profiles: Sequence[dict[str, Any]]) -> Graph:
    """The `Graph` of the profiles of some ranks of one training.

    profiles: the parsed JSON of each file. Raises `InputError` if one has no work, or two have one
    rank.
    """
    ranks = sorted(
        (rank_of(data, at) for at, data in enumerate(profiles)), key=lambda one: one.number
    )
    numbers = [one.number for one in ranks]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"two profiles are of one rank: they are of ranks {shortened(numbers)}")
    ranks_of_all = max((world(data) for data in profiles), default=0)
    notes = []
    if len(ranks) < ranks_of_all:
        notes.append(
            f"Only {len(ranks)} of {ranks_of_all} ranks have a profile: the others are unknown."
        )
    if numbers != list(range(len(ranks))):
        named = ", ".join(map(str, numbers))
        notes.append(f"Ranks are numbered by their files: they are ranks {named}.")
    notes += dict.fromkeys(note for one in ranks for note in one.notes)
    ranks, shifted = _one_clock(ranks)
    if shifted:
        notes.append("Clocks of ranks differed, and were shifted to where collectives agree.")
    steps = max(1, min(one.steps for one in ranks))
    try:
        works = _Works(ranks).works(matched=True)
        return _graph(works, ranks, steps, notes)
    except InputError:
        notes.append(
            "Collectives could not be matched among ranks: waiting counts as communication."
        )
        works = _Works(ranks).works(matched=False)
        return _graph(works, ranks, steps, notes)


def _graph(works: list[Work], ranks: list[Rank], steps: int, notes: list[str]) -> Graph:
    graph = Graph.of(works, len(ranks), steps=steps, source="profile", notes=notes)
    return replace(graph, launched=tuple(one.launched for one in ranks if one.launched))


def _numbered(rank: Rank, at: int, ranks: int) -> dict[tuple[str, str, int], Piece]:
    """{(group, kind, its number among those): each collective of `rank`}. at: which of the `ranks` it
    is. Of two, one receives what the other sends; of more, a profile does not say who is whose peer."""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    found = {}
    for piece in rank.collectives:
        kind = piece.kind
        if kind in MESSAGES:
            sender = at if kind == MESSAGES[0] else 1 - at
            kind = f"message of {sender}" if ranks == 2 else f"{kind} of {at}"
        elif kind not in ALL_MEET and ranks > 2:
            kind = f"{kind} of {at}"
        key = piece.group, kind
        found[*key, counts[key]] = piece
        counts[key] += 1
    return found


def _one_clock(ranks: list[Rank]) -> tuple[list[Rank], bool]:
    """`ranks` on the clock of the first, and whether any was shifted.

    A rank is shifted, as little as possible, if it would leave a collective before another rank has
    entered it.
    """
    first, shifted = _numbered(ranks[0], 0, len(ranks)), False
    moved = [ranks[0]]
    for at, rank in enumerate(ranks[1:], 1):
        least_s, most_s = float("-inf"), float("inf")
        for key, piece in _numbered(rank, at, len(ranks)).items():
            if key in first and piece.kind in ALL_MEET:
                least_s = max(least_s, first[key].start_s - piece.end_s)
                most_s = min(most_s, first[key].end_s - piece.start_s)
        shift_s = 0.0
        if least_s > 0 or most_s < 0:
            shift_s = (least_s + most_s) / 2 if least_s > most_s else max(least_s, min(0.0, most_s))
            shifted = True
        moved.append(_shifted(rank, shift_s))
    return moved, shifted


def _shifted(rank: Rank, shift_s: float) -> Rank:
    def moved(pieces: Iterable[Piece]) -> list[Piece]:
        return [
            piece._replace(start_s=piece.start_s + shift_s, end_s=piece.end_s + shift_s)
            for piece in pieces
        ]

    window = rank.window[0] + shift_s, rank.window[1] + shift_s
    return rank._replace(
        own=moved(rank.own),
        collectives=moved(rank.collectives),
        window=window,
        operators=moved(rank.operators),
        annotations=moved(rank.annotations),
    )


class _Works:
    """The works of all ranks."""

    def __init__(self, ranks: list[Rank]) -> None:
        self.ranks = ranks
        self.made: list[Work] = []
        # [of each rank, (end, number) of each of its own works by end]
        self.ended: list[list[tuple[float, int]]] = [[] for _ in ranks]

    def works(self, *, matched: bool) -> list[Work]:
        """The works, whose needs are found last. matched: whether collectives of several ranks that
        have the same group, kind and number are one."""
        for at, rank in enumerate(self.ranks):
            self._own(at, rank)
        for its in self.ended:
            for _, number in its[1:]:
                self._follow(number)
        self._collectives(matched=matched)
        return self.made

    def _add(self, rank: int, piece: Piece, own_s: float, needs: Iterable[Need] = ()) -> int:
        self.made.append(
            Work(
                rank,
                piece.part,
                piece.name,
                piece.kind,
                piece.end_s - own_s,
                piece.end_s,
                own_s,
                tuple(needs),
            )
        )
        return len(self.made) - 1

    def _own(self, at: int, rank: Rank) -> None:
        """Add the own work of a rank, and between two pieces of it the host's."""
        awaited = sorted(rank.collectives, key=lambda piece: piece.end_s)
        ends = [piece.end_s for piece in awaited]
        free_s, after = rank.window[0], ""
        for piece in [*rank.own, Piece(HOST, "end", rank.window[1], rank.window[1])]:
            # A collective that ends in the pause was waited for, from its begin on. The rest is the
            # host's: before it, and after it.
            first = bisect_right(ends, free_s)
            last = bisect_right(ends, piece.start_s + ROUNDING_S)
            for one in sorted(awaited[first:last], key=lambda one: one.start_s):
                self._idle(at, free_s, one.start_s, after)
                free_s, after = max(free_s, one.end_s), one.name
            self._idle(at, free_s, piece.start_s, after)
            number = self._add(at, piece, piece.end_s - piece.start_s)
            self.ended[at].append((piece.end_s, number))
            free_s, after = max(free_s, piece.end_s), piece.name

    def _idle(self, at: int, since_s: float, until_s: float, after: str) -> None:
        """Add what the host does while a rank neither works nor waits; its name is what ran before."""
        if until_s > since_s:
            piece = Piece(HOST, before(self.ranks[at], since_s, after), since_s, until_s)
            number = self._add(at, piece, until_s - since_s)
            self.ended[at].append((until_s, number))

    def _follow(self, number: int) -> None:
        """An own work follows the one before it on its rank, which has the number before its."""
        work = self.made[number]
        self.made[number] = work._replace(needs=(*work.needs, Need(number - 1)))

    def _collectives(self, *, matched: bool) -> None:
        """Add the collectives: all members enter, and then it takes its time on each."""
        found: dict[tuple[str, str, int, int], list[tuple[int, Piece]]] = defaultdict(list)
        for at, rank in enumerate(self.ranks):
            for key, piece in _numbered(rank, at, len(self.ranks)).items():
                found[*key, -1 if matched else at].append((at, piece))
        last: dict[int, tuple[float, int]] = {}  # {rank: (end, number) of its last collective}
        for members in sorted(
            found.values(), key=lambda its: min(piece.start_s for _, piece in its)
        ):
            entries = []
            for at, piece in members:
                before = self._ended_by(at, piece.start_s)
                needs = [] if before is None else [Need(before)]
                if at in last and abs(last[at][0] - piece.start_s) <= ROUNDING_S:
                    needs.append(Need(last[at][1]))  # It follows on the same stream.
                entered = Piece(ENTRY, piece.name, piece.start_s, piece.start_s, piece.kind)
                entries.append(Need(self._add(at, entered, 0.0, needs)))
            last_s = max(piece.start_s for _, piece in members)
            for at, piece in members:
                number = self._add(at, piece, max(0.0, piece.end_s - last_s), entries)
                self._awaited(at, number)
                last[at] = max(last.get(at, (piece.end_s, number)), (piece.end_s, number))

    def _ended_by(self, at: int, time_s: float) -> int | None:
        """The number of the last own work of a rank that ended by `time_s`."""
        index = bisect_right(self.ended[at], (time_s, len(self.made))) - 1
        return self.ended[at][index][1] if index >= 0 else None

    def _awaited(self, at: int, number: int) -> None:
        """The next own work waited for a collective that ended while the rank did nothing."""
        end_s = self.made[number].end_s - ROUNDING_S
        its = self.ended[at]
        for index in range(bisect_left(its, (end_s, -1)), len(its)):
            user = its[index][1]
            work = self.made[user]
            if work.start_s >= end_s:
                self.made[user] = work._replace(needs=(*work.needs, Need(number)))
            if work.end_s > end_s + 2 * ROUNDING_S:
                return

"""It reads traces of torch.profiler (Kineto), one file for each rank, as a `Graph`.

A rank's own work is what its GPU computes or, in a trace without GPU kernels, the outermost operators
of the thread that runs the steps. A collective is a kernel of NCCL, or what a thread of gloo does. Its
works on several ranks belong together by their group and their number in the group. A rank waits for a
collective that ends while the rank does nothing. The rest of the time in which it does nothing is spent
on loading data, where the data loader says so, and else by the host.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from simlab.diagnosis.fields import time_field, whole_field
from simlab.diagnosis.graph import COMPUTE, DATA, ENTRY, HOST, Graph, Need, Work
from simlab.errors import InputError, shortened

US = 1e-6
DAY_NS = 86_400 * 10**9
"""Times are read as seconds of a day, so that a float holds them to less than a nanosecond."""
ROUNDING_S = 1e-9
"""Profiles have times to the nanosecond."""
STEP = "ProfilerStep#"
LOADER = "enumerate(DataLoader)#"
GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")
SMALL_S = 20e-6
"""Operators of a CPU that end sooner than this are mostly dispatch: their time is the host's."""
NOT_WORK = ("autograd::", "c10d::", "record_param_comms")
"""How names of operators begin that only wrap others, or only begin a communication."""
ALL_MEET = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier")
"""Collectives that no rank can leave before all have entered them."""


class Piece(NamedTuple):
    """What one rank does for a while: a part, a name for people, start and end in seconds, and for a
    collective its kind and its group."""

    part: str
    name: str
    start_s: float
    end_s: float
    kind: str = ""
    group: str = ""


class Rank(NamedTuple):
    """What was read of one rank: its number, its own work and its collectives by start, the window
    of its steps in seconds, and how many they are."""

    number: int
    own: list[Piece]
    collectives: list[Piece]
    window: tuple[float, float]
    steps: int


def profile_graph(profiles: Sequence[dict[str, Any]]) -> Graph:
    """The `Graph` of the profiles of some ranks of one training.

    profiles: the parsed JSON of each file. Raises `InputError` if one has no work, or two have one
    rank.
    """
    ranks = sorted(
        (_rank(data, at) for at, data in enumerate(profiles)), key=lambda one: one.number
    )
    numbers = [one.number for one in ranks]
    if len(set(numbers)) < len(numbers):
        raise InputError(f"two profiles are of one rank: they are of ranks {shortened(numbers)}")
    world = max((_world(data) for data in profiles), default=0)
    notes = []
    if len(ranks) < world:
        notes.append(f"Only {len(ranks)} of {world} ranks have a profile: the others are unknown.")
    if numbers != list(range(len(ranks))):
        named = ", ".join(map(str, numbers))
        notes.append(f"Ranks are numbered by their files: they are ranks {named}.")
    ranks, shifted = _one_clock(ranks)
    if shifted:
        notes.append("Clocks of ranks differed, and were shifted to where collectives agree.")
    steps = max(1, min(one.steps for one in ranks))
    try:
        works = _Works(ranks).works(matched=True)
        return Graph.of(works, len(ranks), steps=steps, source="profile", notes=notes)
    except InputError:
        notes.append(
            "Collectives could not be matched among ranks: waiting counts as communication."
        )
        works = _Works(ranks).works(matched=False)
        return Graph.of(works, len(ranks), steps=steps, source="profile", notes=notes)


def _world(data: dict[str, Any]) -> int:
    info = data.get("distributedInfo")
    size = info.get("world_size") if isinstance(info, dict) else None
    return 0 if size is None else whole_field("distributedInfo.world_size", size)


def _rank(data: dict[str, Any], at: int) -> Rank:
    """What `data` says of its rank; its number is `at` if it does not say which one it is."""
    info = data.get("distributedInfo")
    number = at
    if isinstance(info, dict) and "rank" in info:
        number = whole_field("distributedInfo.rank", info["rank"])
    base_ns = whole_field("baseTimeNanoseconds", data.get("baseTimeNanoseconds") or 0)
    base_s = base_ns % DAY_NS * 1e-9
    events = [_event(event, base_s) for event in data["traceEvents"] if _is_slice(event)]
    if not events:
        raise InputError(f"the profile of rank {number} has no event with a duration")
    events.sort(key=lambda event: (event.start_s, -event.end_s))
    steps = [
        event
        for event in events
        if event.name.startswith(STEP) and event.category != "gpu_user_annotation"
    ]
    threads = {event.thread for event in steps}
    window = (events[0].start_s, max(event.end_s for event in events))
    if steps:
        window = steps[0].start_s, max(event.end_s for event in steps)
    events = [event for event in events if window[0] <= event.start_s < window[1]]
    kernels = [event for event in events if event.category in GPU_CATEGORIES]
    own = list(_gpu_work(kernels) if kernels else _cpu_work(events, threads or _busiest(events)))
    own = _with_loading(own, list(_loading(events)), gpu=bool(kernels))
    collectives = [one for event in events if (one := _collective(event))]
    return Rank(number, own, collectives, window, len(steps) or 1)


class _Event(NamedTuple):
    name: str
    category: str
    thread: tuple[Any, Any]
    start_s: float
    end_s: float
    arguments: dict[str, Any]


def _is_slice(event: Any) -> bool:
    if not isinstance(event, dict) or event.get("ph") != "X":
        return False
    return event.get("ts") is not None and event.get("dur") is not None


def _event(event: dict[str, Any], base_s: float) -> _Event:
    start_s = base_s + US * time_field("ts of an event", event["ts"])
    arguments = event.get("args")
    return _Event(
        str(event.get("name", "")), str(event.get("cat", "")), _thread(event),
        start_s, start_s + US * time_field("dur of an event", event["dur"], 0),
        arguments if isinstance(arguments, dict) else {},
    )  # fmt: skip


def _thread(event: dict[str, Any]) -> tuple[Any, Any]:
    """(process, thread) of an event: numbers, or texts such as 'stream 7'."""
    for key in ("pid", "tid"):
        if not isinstance(event.get(key), int | float | str | None):
            raise InputError(
                f"{key} of an event = {shortened(event[key])}: give a whole number or a text"
            )
    return event.get("pid"), event.get("tid")


def _busiest(events: Iterable[_Event]) -> set[tuple[Any, Any]]:
    """The thread that runs most of the operators, of a profile without steps."""
    busy: dict[tuple[Any, Any], float] = defaultdict(float)
    for event in events:
        if event.category == "cpu_op":
            busy[event.thread] += event.end_s - event.start_s
    return {max(busy, key=busy.__getitem__)} if busy else set()


def _gpu_work(kernels: Iterable[_Event]) -> Iterator[Piece]:
    """What the GPU computes or copies: the union of its kernels that are no collectives."""
    end_s = 0.0
    for event in kernels:
        if not _collective(event) and event.end_s > end_s:
            yield Piece(COMPUTE, event.name, max(end_s, event.start_s), event.end_s)
            end_s = event.end_s


def _cpu_work(events: Iterable[_Event], threads: set[tuple[Any, Any]]) -> Iterator[Piece]:
    """The outermost operators of the threads that run the steps."""
    end_s = 0.0
    for event in events:
        is_work = event.category == "cpu_op" and "::" in event.name
        if not is_work or event.thread not in threads or event.name.startswith(NOT_WORK):
            continue
        if event.end_s > end_s:
            start_s = max(end_s, event.start_s)
            part = HOST if event.end_s - start_s < SMALL_S else COMPUTE
            yield Piece(part, event.name, start_s, event.end_s)
            end_s = event.end_s


def _loading(events: Iterable[_Event]) -> Iterator[Piece]:
    """The time in which the data loader makes the next batch."""
    for event in events:
        if event.name.startswith(LOADER):
            yield Piece(DATA, "data loader", event.start_s, event.end_s)


def _with_loading(own: list[Piece], loading: list[Piece], *, gpu: bool) -> list[Piece]:
    """`own` and `loading` by start, without overlap: what a CPU does while it loads data is loading,
    and loading while the GPU computes costs nothing."""
    first, second = (own, loading) if gpu else (loading, own)
    return sorted([*first, *_beside(second, first)], key=lambda piece: piece.start_s)


def _beside(pieces: list[Piece], others: list[Piece]) -> Iterator[Piece]:
    """The parts of `pieces` in which none of `others`, which are by start, runs."""
    starts = [other.start_s for other in others]
    for piece in pieces:
        free_s = piece.start_s
        first = max(0, bisect_right(starts, piece.start_s) - 1)
        for other in others[first:]:
            if other.start_s >= piece.end_s:
                break
            if other.start_s > free_s:
                yield piece._replace(start_s=free_s, end_s=other.start_s)
            free_s = max(free_s, other.end_s)
        if free_s < piece.end_s:
            yield piece._replace(start_s=free_s)


def _collective(event: _Event) -> Piece | None:
    """The collective that an event shows, if it shows one."""
    backend, _, gloo_kind = event.name.partition(":")
    is_gloo = backend == "gloo" and bool(gloo_kind)
    if not is_gloo and not (event.category == "kernel" and "nccl" in event.name.lower()):
        return None
    kind = gloo_kind if is_gloo else str(event.arguments.get("Collective name", event.name))
    kind = kind.strip("_")
    for known in ALL_MEET:
        if known.replace("_", "") in kind.replace("_", "").lower():
            kind = known
    group = str(event.arguments.get("Process Group Ranks") or "")
    part = str(event.arguments.get("Process Group Description") or "communication")
    return Piece(part, kind, event.start_s, event.end_s, kind, group)


def _numbered(rank: Rank) -> dict[tuple[str, str, int], Piece]:
    """{(group, kind, its number among those): each collective of `rank`}"""
    counts: dict[tuple[str, str], int] = defaultdict(int)
    found = {}
    for piece in rank.collectives:
        key = piece.group, piece.kind
        found[*key, counts[key]] = piece
        counts[key] += 1
    return found


def _one_clock(ranks: list[Rank]) -> tuple[list[Rank], bool]:
    """`ranks` on the clock of the first, and whether any was shifted.

    A rank is shifted, as little as possible, if it would leave a collective before another rank has
    entered it.
    """
    first, shifted = _numbered(ranks[0]), False
    moved = [ranks[0]]
    for rank in ranks[1:]:
        least_s, most_s = float("-inf"), float("inf")
        for key, piece in _numbered(rank).items():
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
    return rank._replace(own=moved(rank.own), collectives=moved(rank.collectives), window=window)


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
        ends = sorted(piece.end_s for piece in rank.collectives)
        free_s = rank.window[0]
        pieces = [*rank.own, Piece(HOST, "end", rank.window[1], rank.window[1])]
        for piece in pieces:
            # A collective that ends in the pause was waited for: the host goes on after it.
            last = bisect_right(ends, piece.start_s + ROUNDING_S) - 1
            since_s = max(free_s, ends[last]) if last >= 0 else free_s
            if piece.start_s > since_s:
                idle = Piece(HOST, "host", since_s, piece.start_s)
                self.ended[at].append((idle.end_s, self._add(at, idle, idle.end_s - since_s)))
            number = self._add(at, piece, piece.end_s - piece.start_s)
            self.ended[at].append((piece.end_s, number))
            free_s = max(free_s, piece.end_s)

    def _follow(self, number: int) -> None:
        """An own work follows the one before it on its rank, which has the number before its."""
        work = self.made[number]
        self.made[number] = work._replace(needs=(*work.needs, Need(number - 1)))

    def _collectives(self, *, matched: bool) -> None:
        """Add the collectives: all members enter, and then it takes its time on each."""
        found: dict[tuple[str, str, int, int], list[tuple[int, Piece]]] = defaultdict(list)
        for at, rank in enumerate(self.ranks):
            for key, piece in _numbered(rank).items():
                found[*key, -1 if matched else at].append((at, piece))
        for members in sorted(
            found.values(), key=lambda its: min(piece.start_s for _, piece in its)
        ):
            entries = []
            for at, piece in members:
                before = self._ended_by(at, piece.start_s)
                needs = [] if before is None else [Need(before)]
                entered = Piece(ENTRY, piece.name, piece.start_s, piece.start_s, piece.kind)
                entries.append(Need(self._add(at, entered, 0.0, needs)))
            last_s = max(piece.start_s for _, piece in members)
            for at, piece in members:
                number = self._add(at, piece, max(0.0, piece.end_s - last_s), entries)
                self._awaited(at, number)

    def _ended_by(self, at: int, time_s: float) -> int | None:
        """The number of the last own work of a rank that ended by `time_s`."""
        index = bisect_right(self.ended[at], (time_s, len(self.made))) - 1
        return self.ended[at][index][1] if index >= 0 else None

    def _awaited(self, at: int, number: int) -> None:
        """The next own work waited for a collective that ended while the rank did nothing."""
        end_s = self.made[number].end_s
        index = bisect_right(self.ended[at], (end_s + ROUNDING_S, -1))
        if index < len(self.ended[at]):
            user = self.ended[at][index][1]
            work = self.made[user]
            if work.start_s >= end_s - ROUNDING_S:
                self.made[user] = work._replace(needs=(*work.needs, Need(number)))

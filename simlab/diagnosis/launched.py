"""What a rank launched: how many operators of each name, in which annotation, and how much went in."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

from simlab.diagnosis.events import (
    ANNOTATION,
    GPU,
    GPU_ANNOTATION,
    LAUNCH,
    OPERATOR,
    STEP,
    Event,
)
from simlab.errors import whole


class Sum(NamedTuple):
    """How many operators or kernels, and how many seconds all of them took."""

    launches: int
    seconds: float


Table = dict[tuple[str, str], Sum]
"""{(annotation, '' if none; name of an operator or a kernel): their `Sum`}."""


class Launched(NamedTuple):
    """What one rank launched in its steps.

    operators: those of the CPU that are in no other. kernels: those of the GPU.
    numbers: {name: how many numbers went into the operators with that name}; empty if the profile has
             no shapes.
    """

    operators: Table
    kernels: Table
    numbers: Mapping[str, int]


class Difference(NamedTuple):
    """What a rank has more of than its peers: 'more' operators or 'larger' ones, for people."""

    kind: str
    text: str


WRAPPERS = ("autograd::", "c10d::", "record_param_comms")
"""How names of operators begin that only wrap others, or only begin a communication."""
MORE, LARGER = "more", "larger"
SHARE = 0.5
"""What a rank launches more explains why it is slower if it takes at least this part of the difference."""


def launched(events: Sequence[Event]) -> Launched:
    """What the `events` of one rank, which are by start, launched."""
    annotations = _Annotations(events)
    launches = {
        event.arguments["correlation"]: event
        for event in events
        if event.what == LAUNCH and isinstance(event.arguments.get("correlation"), int)
    }
    operators: Table = {}
    kernels: Table = {}
    numbers: dict[str, int] = defaultdict(int)
    ends: dict[Any, float] = defaultdict(float)
    for event in events:
        if event.what in GPU:
            number = event.arguments.get("correlation")
            begun = launches.get(number) if isinstance(number, int) else None
            _add(kernels, annotations.at(begun or event) or annotations.at(event), event)
        elif event.what == OPERATOR and "::" in event.name:
            dims = event.arguments.get("Input Dims")
            if isinstance(dims, list):
                numbers[event.name] += sum(_product(size) for size in dims)
            if event.start_s >= ends[event.thread] and not event.name.startswith(WRAPPERS):
                ends[event.thread] = event.end_s
                _add(operators, annotations.at(event), event)
    return Launched(operators, kernels, dict(numbers))


def _add(table: Table, place: str, event: Event) -> None:
    before = table.get((place, event.name), Sum(0, 0.0))
    table[place, event.name] = Sum(before.launches + 1, before.seconds + event.seconds)


def _product(size: Any) -> int:
    known = isinstance(size, list) and all(whole(one) and one < 2**40 for one in size[:8])
    return prod(size[:8]) if known and size else 0


class _Annotations:
    """Finds the innermost annotation of a thread at a time."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.starts: dict[Any, list[float]] = defaultdict(list)
        self.names: dict[Any, list[str]] = defaultdict(list)
        open_: dict[Any, list[Event]] = defaultdict(list)
        for event in events:  # by start
            if event.what in (ANNOTATION, GPU_ANNOTATION) and not event.name.startswith(STEP):
                self._close(event.thread, open_[event.thread], event.start_s)
                open_[event.thread].append(event)
                self._from(event.thread, event.start_s, event.name)
        for thread, left in open_.items():
            self._close(thread, left, float("inf"))

    def _close(self, thread: Any, open_: list[Event], time_s: float) -> None:
        while open_ and open_[-1].end_s <= time_s:
            ended = open_.pop()
            self._from(thread, ended.end_s, open_[-1].name if open_ else "")

    def _from(self, thread: Any, time_s: float, name: str) -> None:
        self.starts[thread].append(time_s)
        self.names[thread].append(name)

    def at(self, event: Event) -> str:
        """The annotation that `event` starts in; '' if it starts in none."""
        index = bisect_right(self.starts.get(event.thread, []), event.start_s) - 1
        return self.names[event.thread][index] if index >= 0 else ""


def difference(
    each: Sequence[Launched], rank: int, slower: float, lost_s: float
) -> Difference | None:
    """What `rank` launched more of than its peers, if that explains why it is `slower` times as slow,
    and the `lost_s` seconds by which it is."""
    if len(each) < 2:
        return None
    own, peers = each[rank], [one for at, one in enumerate(each) if at != rank]
    tables = [(own.kernels, [one.kernels for one in peers])]
    tables.append((own.operators, [one.operators for one in peers]))
    for table, others in tables:
        more = {key: _more(key, table, others) for key in table}
        if sum(one.seconds for one in more.values()) >= SHARE * lost_s:
            return Difference(MORE, _said(more))
    for name, count in sorted(own.numbers.items(), key=lambda item: -item[1]):
        theirs = _middle([one.numbers.get(name, 0) for one in peers])
        if theirs and count > (1 + SHARE * (slower - 1)) * theirs:
            times = f"{count / theirs:.2f}"
            return Difference(LARGER, f"{times} times as many numbers go into {name}")
    return None


def _more(key: tuple[str, str], own: Table, others: Sequence[Table]) -> Sum:
    """What a rank has more of `key` than its peers."""
    count, seconds = own[key]
    usual = _middle([table[key].launches if key in table else 0 for table in others])
    excess = max(0, count - usual)
    return Sum(excess, seconds * excess / count)


def _said(more: Table) -> str:
    """Where most of it is, for people."""
    by_place: dict[str, float] = defaultdict(float)
    for (place, _), one in more.items():
        by_place[place] += one.seconds
    place = max(by_place, key=by_place.__getitem__)
    inside = {name: one for (where, name), one in more.items() if where == place}
    name = max(inside, key=lambda one: inside[one].seconds)
    count = sum(one.launches for one in more.values())
    where = f", most of their time in {place!r}" if place else ""
    return f"it launches {count} more operators than others, such as {name}{where}"


def _middle(values: Sequence[int]) -> int:
    """The lower median."""
    return sorted(values)[(len(values) - 1) // 2]

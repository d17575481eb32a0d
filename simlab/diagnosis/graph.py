"""The work of a step and what each piece of it needed: a graph that can be replayed with other times.

A replay keeps what needs what, and the order on each stream. It keeps, too, the time that passed
between the last thing that a piece of work needed and its start, which no trace explains. So it says
what a step would take if some of its work took another time, unless that work also slows others: by a
processor or a link that they share, or by computing beside a communication. What-if analyses of
measured traces do the same (arXiv 2505.05713, section 3).
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simlab.diagnosis.launched import Launched
from simlab.errors import InputError

COMPUTE, OPTIMIZER, DATA, HOST = "compute", "optimizer", "data", "host"
"""Parts of a step that a rank spends on its own. Every other part is a dimension that communicates."""
OWN_PARTS = (COMPUTE, OPTIMIZER, DATA, HOST)
ENTRY = ""
"""The part of a work that takes no time: a rank enters a collective, or all its ranks have."""


class Need(NamedTuple):
    """What must have ended before a work starts: the number of a work, and how many seconds after
    its end the work can start (negative if it can start before that end)."""

    number: int
    delay_s: float = 0.0


class Work(NamedTuple):
    """One piece of work of a step.

    rank:    the rank that does it; the sender of a message.
    part:    'compute', 'optimizer', 'data', 'host', or the dimension that communicates, such as
             'dp'; '' where a rank enters a collective.
    name:    a label for people.
    kind:    'F', 'B', 'I' or 'W' of compute, the kind of a collective, 'message'; '' if unknown.
    start_s: when it started, in seconds on the trace's clock.
    end_s:   when it ended.
    own_s:   how long it takes once all that it needs is there.
    needs:   what it needs.
    stage:   the pipeline stage; -1 if it belongs to none.
    unit:    the unit of the model; '' if it is a whole op, or unknown.
    peer:    the receiver of a message; -1 of others.
    """

    rank: int
    part: str
    name: str
    kind: str
    start_s: float
    end_s: float
    own_s: float
    needs: tuple[Need, ...] = ()
    stage: int = -1
    unit: str = ""
    peer: int = -1

    @property
    def communicates(self) -> bool:
        """Whether the work is communication."""
        return self.part not in (*OWN_PARTS, ENTRY)


class Replay(NamedTuple):
    """When each work of a graph starts and ends in a replay, in seconds, by number."""

    starts_s: list[float]
    ends_s: list[float]

    @property
    def step_s(self) -> float:
        """From the first start to the last end."""
        return max(self.ends_s, default=0.0) - min(self.starts_s, default=0.0)


class Link(NamedTuple):
    """One piece of the critical path: the number of a work, and the seconds of the step that it
    accounts for. lag_s are those that passed before it although nothing that it needed was missing."""

    number: int
    seconds: float
    lag_s: float


@dataclass(frozen=True)
class Graph:
    """The works of a step, in an order in which each comes after all that it needs.

    works: the works. ranks: the number of ranks. steps: how many training steps they are. source:
    what the graph was read from, for people.
    """

    works: tuple[Work, ...]
    ranks: int
    steps: int = 1
    source: str = ""
    notes: tuple[str, ...] = ()
    launched: tuple[Launched, ...] = ()
    within: tuple[dict[str, float], ...] = ()
    """[of each rank, {dimension: seconds of communication that its compute holds}]; () if none does."""

    @classmethod
    def of(
        cls,
        works: Sequence[Work],
        ranks: int,
        *,
        steps: int = 1,
        source: str = "",
        notes: Iterable[str] = (),
    ) -> "Graph":
        """The graph of `works` in any order, whose needs are positions in that order.

        Raises `InputError` if works need each other in a circle.
        """
        order = _sorted(works)
        place = {number: at for at, number in enumerate(order)}
        moved = [
            works[number]._replace(
                needs=tuple(
                    need._replace(number=place[need.number]) for need in works[number].needs
                )
            )
            for number in order
        ]
        return cls(tuple(moved), ranks, steps, source, tuple(notes))

    @property
    def step_s(self) -> float:
        """Seconds from the first start to the last end of a work, as they were."""
        return self.end_s - self.start_s

    @cached_property
    def start_s(self) -> float:
        """When the first work started, in seconds."""
        return min((work.start_s for work in self.works), default=0.0)

    @cached_property
    def end_s(self) -> float:
        """When the last work ended, in seconds."""
        return max((work.end_s for work in self.works), default=0.0)

    def ready_s(self, number: int) -> float:
        """When all that a work needs was there, in seconds."""
        return max(
            (self.works[need].end_s + delay_s for need, delay_s in self.works[number].needs),
            default=self.start_s,
        )

    def binding(self, number: int) -> int | None:
        """The number of the work that a work needed last; None if it needs none."""
        needs = self.works[number].needs
        last = max(
            needs, key=lambda need: self.works[need.number].end_s + need.delay_s, default=None
        )
        return None if last is None else last.number

    @cached_property
    def _lags_s(self) -> list[float]:
        """[of each work, seconds between the moment at which nothing was missing and its start]"""
        return [
            max(0.0, work.end_s - work.own_s - self.ready_s(number))
            for number, work in enumerate(self.works)
        ]

    def replay(self, own_s: Mapping[int, float] | None = None) -> Replay:
        """The step again, where the works whose numbers are in `own_s` take those seconds."""
        changed = own_s or {}
        starts: list[float] = []
        ends: list[float] = []
        for number, work in enumerate(self.works):
            ready_s = self.start_s
            for need, delay_s in work.needs:
                ready_s = max(ready_s, ends[need] + delay_s)
            start_s = ready_s + self._lags_s[number]
            starts.append(start_s)
            ends.append(start_s + changed.get(number, work.own_s))
        return Replay(starts, ends)

    @cached_property
    def replayed_s(self) -> float:
        """The step of a replay in which nothing is changed, in seconds."""
        return self.replay().step_s

    def saved_s(self, chosen: Callable[[Work], bool], scale: float = 0.5) -> float:
        """By how many seconds the step is shorter if the `chosen` works take `scale` times as long;
        negative if it is longer."""
        changed = {
            number: scale * work.own_s for number, work in enumerate(self.works) if chosen(work)
        }
        return self.replayed_s - self.replay(changed).step_s

    def critical_path(self) -> list[Link]:
        """The chain of works, first to last, that determined when the step ended.

        It is found backward from the work that ended last: before a work comes what it needed last.
        The seconds and lags of the chain add up to the step.
        """
        number = max(range(len(self.works)), key=lambda at: self.works[at].end_s, default=None)
        path, upto_s = [], self.end_s
        while number is not None:
            since_s = min(upto_s, self.works[number].end_s - self.works[number].own_s)
            before = self.binding(number)
            ready_s = min(since_s, self.ready_s(number))
            path.append(Link(number, upto_s - since_s, since_s - ready_s))
            number, upto_s = before, ready_s
        return path[::-1]


def _sorted(works: Sequence[Work]) -> list[int]:
    """The numbers of `works`, each after all that it needs."""
    users: list[list[int]] = [[] for _ in works]
    missing = [len(work.needs) for work in works]
    for number, work in enumerate(works):
        for need in work.needs:
            users[need.number].append(number)
    order = [number for number, count in enumerate(missing) if not count]
    for number in order:  # It grows while it is read.
        for user in users[number]:
            missing[user] -= 1
            if not missing[user]:
                order.append(user)
    if len(order) < len(works):
        stuck = next(works[number].name for number, count in enumerate(missing) if count)
        raise InputError(
            f"not the trace of a step: works need each other in a circle, at {stuck!r}"
        )
    return order

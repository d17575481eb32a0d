"""Two ops of one rank that take turns: a forward and a backward, layer by layer, each of which computes
while the other one's tokens travel (`simlab.lowering.expansion`).

A backward is one call of autograd, which cannot be left half-way. So each op has a thread, and one of
the two runs at a time: where it would wait for an all-to-all of expert parallelism it hands over to the
other one, and when a layer of both is over the backward goes first. Which of them runs is known by whose
turn it is, not by the thread: on a GPU autograd calls the functions of a backward in a thread of its own.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

from realrun.comm.group import Mark, Observer
from simlab.errors import SimlabError
from simlab.lowering.expansion import in_turns

FORWARD, BACKWARD = range(2)
T = TypeVar("T")


def turns_of(
    forward: Sequence[T], backward: Sequence[T], is_layer: Callable[[T], bool]
) -> list[set[int]]:
    """[the ops that take part in each turn] of a forward and a backward with these units, each in its own
    order: see `in_turns`."""
    return [
        {which for which, unit in ((FORWARD, ahead), (BACKWARD, back)) if unit is not None}
        for ahead, back in in_turns(forward, backward, is_layer)
    ]


class Abandoned(SimlabError):
    """The other op of a pair has failed."""


class SideBySide:
    """Two ops and their turns.

    turns: [the ops that take part in each], of which the backward goes first. An op says for each of its
    turns that it `begins` and that it `ends`, and in it where it would wait for an all-to-all (`waits`).
    What it does between two turns, it does before the other one goes on.
    """

    def __init__(self, turns: Sequence[set[int]]) -> None:
        self._turns, self._at = turns, 0
        self._begun: set[int] = set()  # of the ops of this turn
        self._over: set[int] = set()
        self._running = max(turns[0])
        self._failed = False
        self._handed_over = threading.Condition()

    def results(
        self, forward: Callable[[], T], backward: Callable[[], T], set_device: Callable[[], None]
    ) -> tuple[T, T]:
        """What both return, each run in its turns. set_device: makes a thread use this rank's device."""
        found: list[T] = []
        errors: list[BaseException] = []

        def beside() -> None:
            try:
                with self._started(BACKWARD):
                    set_device()
                    found.append(backward())
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=beside, name="backward of a pair", daemon=True)
        thread.start()
        try:
            with self._started(FORWARD):
                own = forward()
        except Abandoned:
            thread.join()
            raise errors[0] from None
        except Exception:
            thread.join()
            raise
        thread.join()
        if errors:
            raise errors[0]
        return own, found[0]

    @contextmanager
    def _started(self, which: int) -> Iterator[None]:
        """Inside, the op has its turns; afterwards the other one has all that are left."""
        try:
            self._await(which)
            yield
        except BaseException:
            with self._handed_over:
                self._failed = True
                self._handed_over.notify_all()
            raise
        self._give(1 - which)

    def begins(self) -> None:
        """The op that runs is before its next turn. Returns when that has come."""
        own = self._running
        while own not in (turn := self._turns[self._at]) or (
            own == FORWARD and BACKWARD in turn - self._begun
        ):
            self._hand_over(own)
        self._begun.add(own)

    def waits(self) -> None:
        """The op that runs would wait for an all-to-all: the other one goes on, if it has a part in this
        turn that is not over."""
        own = self._running
        if 1 - own in self._turns[self._at] - self._over:
            self._hand_over(own)

    def ends(self) -> None:
        """The turn is over for the op that runs. Returns when it is over for both; then the backward
        goes on first."""
        own, turn = self._running, self._turns[self._at]
        self._over.add(own)
        if self._over != turn:
            self._hand_over(own)
            return
        self._at, self._begun, self._over = self._at + 1, set(), set()
        if own == FORWARD and BACKWARD in turn:
            self._hand_over(own)

    def _hand_over(self, own: int) -> None:
        """Let the other op go on, and wait until that one lets this one."""
        self._give(1 - own)
        self._await(own)

    def _give(self, which: int) -> None:
        with self._handed_over:
            self._running = which
            self._handed_over.notify_all()

    def _await(self, which: int) -> None:
        with self._handed_over:
            self._handed_over.wait_for(lambda: self._running == which or self._failed)
        if self._failed:
            raise Abandoned("the other op of a pair has failed")


class HandsOver(Observer):
    """What an expert-parallel group tells while two ops take turns: the same `observer`, after the other op
    has gone on."""

    def __init__(self, observer: Observer, pair: SideBySide) -> None:
        self._observer, self._pair = observer, pair

    def begins(self, dimension: str, kind: str, size_bytes: int) -> Mark:
        """See `Observer`."""
        return self._observer.begins(dimension, kind, size_bytes)

    def seconds(self, begun: Mark) -> float | None:
        """See `Observer`."""
        return self._observer.seconds(begun)

    def waits(self, begun: Mark) -> None:
        """See `Observer`."""
        self._pair.waits()
        self._observer.waits(begun)

    def ended(self, begun: Mark, done_s: float | None = None) -> None:
        """See `Observer`."""
        self._observer.ended(begun, done_s)

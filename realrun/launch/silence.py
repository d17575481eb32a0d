"""Which rank has not answered for too long."""

from collections.abc import Container, Iterable
from typing import Any

from realrun.launch.worker import SILENCE_S
from realrun.run.life import OwnTime


class Silence:
    """Which rank has not answered for too long. A thread of each answers at once, whatever the rank
    does: one that does not is stopped, or its machine is.

    ranks: those to listen to. limit_s: of silence; at least `SILENCE_S`. first_s: of silence before
    the first answer of any, while they are being started; None: `limit_s`.
    """

    def __init__(self, ranks: Iterable[int], limit_s: float, first_s: float | None = None) -> None:
        self.limit_s, self._time = max(limit_s, SILENCE_S), OwnTime()
        self._asked_s = self._time.now_s()
        # as if it had been heard later: the limit counts from then
        later_s = max(0.0, (first_s or self.limit_s) - self.limit_s)
        self._heard_s = dict.fromkeys(ranks, self._asked_s + later_s)
        self.doing = dict.fromkeys(self._heard_s, "starting")

    def asks_now(self) -> bool:
        """Whether it is time to ask all ranks again."""
        now_s = self._time.now_s()
        due = now_s - self._asked_s > self.limit_s / 4
        self._asked_s = now_s if due else self._asked_s
        return due

    def longest(
        self, messages: Iterable[tuple[int, dict[str, Any]]], done: Container[int]
    ) -> int | None:
        """The rank that was silent too long, with what came in now; None: none was. done: ranks
        that need not answer any more."""
        now_s = self._time.now_s()
        for rank, message in messages:
            self._heard_s[rank] = now_s
            self.doing[rank] = message.get("doing", self.doing[rank])
            # one has begun, and they were started in the same moment
            self._heard_s = {other: min(heard, now_s) for other, heard in self._heard_s.items()}
        late = {rank: heard for rank, heard in self._heard_s.items() if rank not in done}
        first = min(late, key=lambda rank: late[rank], default=None)
        return first if first is not None and now_s - late[first] > self.limit_s else None

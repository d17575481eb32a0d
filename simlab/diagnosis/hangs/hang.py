"""Where a training stopped, and why, as it is told."""

from collections.abc import Sequence
from typing import Annotated, NamedTuple

from simlab.diagnosis.hangs.calls import RECV, SEND
from simlab.diagnosis.hangs.waits import BEHIND, DIFFERENT, MISSING, SIZE, STUCK

CIRCLE, IDLE, NONE = "circle", "idle", "none"
REASONS = (MISSING, DIFFERENT, SIZE, CIRCLE, BEHIND, STUCK, IDLE, NONE)
MOST_SHOWN = 64
"""Ranks that a line names."""
MOST_WAITS = 12
"""Lines about ranks that wait."""


class Cause(NamedTuple):
    """One thing that does not go on, and what waits for it directly.

    group:   the name of the group, for people. ranks: its ranks.
    number:  the number of the call, from 1: of a collective in its group, of a send or a receive
             among the messages of its pair.
    name:    what the waiting ranks called, such as 'all_reduce' or 'recv'.
    culprit: the ranks to blame; empty if all are in it.
    waiting: the ranks that have called it and wait.
    reason:  'missing' (culprits have not called it, or have not sent or received), 'different' (they
             called something else), 'size' (they gave another size), 'circle' (ranks wait for each
             other), 'behind' (they called it, but their GPU has not begun or not ended it), 'stuck' (all
             ranks are in it, but it does not end) or 'idle' (they are amid a step, in no call, and
             nobody has come to wait for them yet).
    detail:  what the culprits did instead, or the last that they called, for people.
    """

    group: str
    ranks: tuple[int, ...]
    number: int
    name: str
    culprit: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: Annotated[str, REASONS]
    detail: str

    def __str__(self) -> str:
        return f"{self._what()}\n{self.detail}" if self.detail else self._what()

    def _what(self) -> str:
        what = f"{self.name} number {self.number} of group {self.group} (ranks {_list(self.ranks)})"
        waiting = f"{ranks_text(self.waiting)} in it"
        who = ranks_text(self.culprit)
        has = "has" if len(self.culprit) == 1 else "have"
        if self.reason == MISSING and self.name in (SEND, RECV):
            done = "sent" if self.name == RECV else "received"
            wait = "wait" if len(self.waiting) > 1 else "waits"
            return f"{who} {has} not {done}: {ranks_text(self.waiting)} {wait} in {what}."
        return {
            MISSING: f"{who} {has} not called {what}; {waiting}.",
            DIFFERENT: f"{who} called something else instead of {what}; {waiting}.",
            SIZE: f"{who} gave another size to {what}; {waiting}.",
            CIRCLE: f"{who} {has} not gone on after a send; {ranks_text(self.waiting)} wait for what follows "
            "it, and the send for them."
            if self.waiting
            else f"{who} wait for each other in a circle: none of them can go on.",
            BEHIND: f"{who} {has} called {what}, but the GPU there does not come to its end: look at "
            f"what it computes before; {waiting}.",
            STUCK: f"All ranks are in {what}, and it does not end: look at the network, or at a rank "
            "that died in it.",
            IDLE: f"{who} {has} not received as much as sent, and waits in no call: nobody waits for it "
            "yet, but it does not go on either.",
        }[self.reason]


class Hang(NamedTuple):
    """Where a training stopped. Its first fields are those of the first cause (see `Cause`); the reason
    is 'none', and they are empty, if nothing hangs.

    culprit: the ranks to blame, of all causes.
    no_dump: ranks of the training that left no dump.
    causes:  all causes: the one that most ranks wait for is the first.
    logs:    what the logs say besides, if it was read from logs.
    waits:   for each rank that waits, its call and the ranks that it waits for, for people.
    """

    group: str
    ranks: tuple[int, ...]
    number: int
    name: str
    culprit: tuple[int, ...]
    waiting: tuple[int, ...]
    reason: Annotated[str, REASONS]
    detail: str
    no_dump: tuple[int, ...]
    causes: tuple[Cause, ...] = ()
    waits: tuple[str, ...] = ()
    logs: tuple[str, ...] = ()

    def __str__(self) -> str:
        lines = [str(cause) for cause in self.causes]
        if self.reason == NONE:
            lines = ["Every call that a rank has begun was completed: no hang in these dumps."]
            lines += [self.detail] if self.detail else []
        lines += self.logs
        lines += self.waits[:MOST_WAITS]
        if len(self.waits) > MOST_WAITS:
            lines.append(
                f"{len(self.waits) - MOST_WAITS} more lines of ranks that wait: see --json."
            )
        if self.no_dump:
            lines.append(
                f"No dump of {ranks_text(self.no_dump)}: ended before, or could not write it."
            )
        return "\n".join(lines)


def _list(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MOST_SHOWN]))
    return shown if len(ranks) <= MOST_SHOWN else f"{shown}, and {len(ranks) - MOST_SHOWN} more"


def ranks_text(ranks: Sequence[int]) -> str:
    """'rank 1' or 'ranks 1, 2', cut where there are too many."""
    if not ranks:
        return "nobody"
    return f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {_list(ranks)}"

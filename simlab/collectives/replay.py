"""What every rank holds after each round of a collective: worked out from the rounds' transfers,
and from nothing else."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from simlab.collectives.transfer import Part, Rounds, Transfer
from simlab.errors import InputError

Held = dict[int, dict[Part, frozenset[int]]]


class RoundState(NamedTuple):
    """What was sent in a round, and what every rank holds after it."""

    number: int
    """0: before the first round."""
    transfers: tuple[Transfer, ...]
    held: Held
    """{rank: {part of the buffer: the ranks (frozenset) whose contributions are summed in what it
    has of it}}"""

    @property
    def ranks(self) -> list[int]:
        """All of them, in order."""
        return list(self.held)

    @property
    def parts(self) -> list[Part]:
        """Those that the buffer is cut into, in order."""
        return list(next(iter(self.held.values())))

    @property
    def complete(self) -> dict[int, int]:
        """{rank: how many parts it holds the full sum of}"""
        return {
            rank: sum(len(ranks) == len(self.held) for ranks in parts.values())
            for rank, parts in self.held.items()
        }

    @property
    def done(self) -> bool:
        """Whether every rank holds the full sum of everything."""
        return all(count == len(self.parts) for count in self.complete.values())

    def sent_bytes(self, rank: int) -> float:
        """What `rank` sends in the round."""
        return sum(t.size_bytes for t in self.transfers if t.source == rank)


def replay(rounds: Rounds, ranks: Sequence[int], held: Held | None = None) -> list[RoundState]:
    """[`RoundState`]: the start, and what each round makes of it.

    held: what each of `ranks` has at the start, see `scattered`; None: its own contribution to every
          part.

    All transfers of a round read what was held before it. A transfer that adds sums the sets up,
    one that does not puts its own in place; `InputError` where a contribution would be in a sum
    twice, for then the sum is wrong.
    """
    named: set[Any] = {part for transfers in rounds for t in transfers for part in t.parts}
    parts = sorted(named) or [0]
    held = held or {rank: {part: frozenset({rank}) for part in parts} for rank in ranks}
    steps = [RoundState(0, (), held)]
    for number, transfers in enumerate(rounds, 1):
        after = {rank: dict(its) for rank, its in held.items()}
        for t in transfers:
            for part in t.parts:
                there, comes = after[t.destination][part], held[t.source][part]
                if t.adds and there & comes:
                    twice = ", ".join(map(str, sorted(there & comes)))
                    raise InputError(
                        f"round {number}: {t.source} → {t.destination} adds part {part}: rank {twice} is in it already"
                    )
                after[t.destination][part] = there | comes if t.adds else comes
        held = after
        steps.append(RoundState(number, tuple(transfers), held))
    return steps


def scattered(ranks: Sequence[int]) -> Held:
    """What each of `ranks` has before a gather: the part of its own number, whole, and no other."""
    whole, nothing = frozenset(ranks), frozenset[int]()
    return {
        rank: {part: whole if part == at else nothing for part in range(len(ranks))}
        for at, rank in enumerate(ranks)
    }


def most_sent_bytes(rounds: Rounds) -> float:
    """What the rank sends, over all rounds, that sends most; 0.0 if nobody does."""
    sent: dict[int, float] = {}
    for transfers in rounds:
        for t in transfers:
            sent[t.source] = sent.get(t.source, 0.0) + t.size_bytes
    return max(sent.values(), default=0.0)

"""It searches a zero-bubble schedule for given op times and a cap on activation memory.

Source: Qi, Wan, Huang and Lin 2023, arXiv 2401.10241, section 3.1, which calls our I "B". A cap of
p is its ZB-1p, and a cap of 2p its ZB-2p.

A policy builds a schedule in the order of time. A rank runs whichever of its next F and its next I
can start first, except an F that would exceed the cap or get too far ahead of the backwards. W
waits for no other rank and no other rank waits for W. So W fills gaps, in which the rank would wait
for a message or for memory. Every combination of a few choices is tried (`_candidates`), and so are
zb-h1 and zb-h2 if the cap permits them. The cheapest schedule is taken.

There are two differences from the paper: other choices are tried, and no integer linear program
refines the result. Unequal stages, several stages on a rank, and microbatches that overtake each
other are left out.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import NamedTuple

from simlab.errors import InputError, shortened
from simlab.program import WEIGHT_GRAD_MEMORY, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.schedule import Schedule
from simlab.schedules.zero_bubble import zb_h1, zb_h2

MOST_SEARCHED = 2**18
"""The most ranks^2 x microbatches, to which the search's time is proportional: about five seconds."""


def zb_auto(
    ranks: int,
    microbatches: int,
    forward_s: float = 1.0,
    input_grad_s: float = 1.0,
    weight_grad_s: float = 1.0,
    p2p_s: float = 0.0,
    cap: float | None = None,
    weight_grad_memory: float = WEIGHT_GRAD_MEMORY,
) -> Program:
    """The cheapest program that is found, with one stage per rank.

    It is never more expensive than zb-h1 or zb-h2 if the cap permits them. The cost is the paper's:
    the longest span of a rank, from its first start to its last end, as if the optimizer's step did
    not wait for all ranks. Of programs that cost the same, the one with the shorter makespan is
    taken.

    forward_s, input_grad_s, weight_grad_s: the times F, I and W of one microbatch on any rank, all
                        in seconds (or all in another unit).
    p2p_s:              the time from the end of an op until the neighbouring rank can use its
                        result, in the same unit.
    cap:                the most activations that a rank may hold, at least 1. The unit is M_B, the
                        activations of one microbatch on one rank, which are held from the start of
                        its F to the end of its I. None means p, which is what 1F1B holds.
    weight_grad_memory: M_W / M_B, from 0 to 1: the fraction of a microbatch's activations that is
                        still held from the end of its I to the end of its W. The bubble rates that
                        the paper gives for ZB-2p need less than about 0.65. With 1, where I frees
                        nothing, no schedule reaches them.

    Raises `InputError` for a value out of range.
    """
    cap = ranks if cap is None else cap
    job = _Job(
        ranks,
        microbatches,
        {"F": forward_s, "I": input_grad_s, "W": weight_grad_s},
        p2p_s,
        cap,
        weight_grad_memory,
    )
    runs = filter(None, (_run(job, policies) for policies in _candidates(job)))
    best = min(runs, key=lambda run: (run.idle_s, run.makespan_s))
    return Program(
        [
            numbered([(rank, kind) for kind in best.kinds[rank]], microbatches)
            for rank in range(ranks)
        ],
        name="zb-auto",
    )


@dataclass(frozen=True)
class _Job:
    """The arguments of `zb_auto`, which are checked here."""

    ranks: int
    microbatches: int
    seconds: dict[str, float]  # {op kind: seconds}
    p2p_s: float
    cap: float
    weight_grad_memory: float

    def __post_init__(self) -> None:
        for count, what in [(self.ranks, "ranks"), (self.microbatches, "microbatches")]:
            if not isinstance(count, int) or count < 1:
                raise InputError(f"{count!r} {what}: give a whole number of at least 1")
        work = self.ranks**2 * self.microbatches
        if work > MOST_SEARCHED:
            raise InputError(
                f"{shortened(self.ranks)} ranks and {shortened(self.microbatches)} microbatches: the search "
                f"would take too long, give ranks^2 x microbatches of at most {MOST_SEARCHED:,}"
            )
        for seconds, what in [
            *((value, kind) for kind, value in self.seconds.items()),
            (self.p2p_s, "a message"),
        ]:
            if not 0 <= seconds < inf:
                raise InputError(
                    f"{seconds!r} s for {what}: give a finite number of seconds, 0 or more"
                )
        if not self.cap >= 1:
            raise InputError(
                f"a cap of {self.cap!r}: give 1 or more, for a rank must hold the microbatch that it works on"
            )
        if not 0 <= self.weight_grad_memory <= 1:
            raise InputError(
                f"weight_grad_memory {self.weight_grad_memory!r}: give a part of the activations, 0 to 1"
            )


# a schedule as it grows
# -----------------------------------------------------------------------------------


class _Rank:
    """What one rank has run so far, and which inputs have arrived or are on their way."""

    def __init__(self, job: _Job, rank: int) -> None:
        self.job = job
        self.later = job.ranks - 1 - rank  # the number of ranks after this one
        self.kinds: list[str] = []  # The k-th op of a kind is on microbatch k.
        self.done = {"F": 0, "I": 0, "W": 0}
        # {kind: [per microbatch, when the input of the op has arrived]}
        self.inputs_s: dict[str, list[float]] = {"F": [], "I": [], "W": []}
        self.free_s = 0.0
        self.idle_s = 0.0  # the idle time since the first op began

    def earliest_s(self, kind: str) -> float:
        """When the next op of `kind` can start; inf if its input is not yet on its way, or if the
        rank has no memory for it."""
        inputs_s, microbatch = self.inputs_s[kind], self.done[kind]
        if microbatch == len(inputs_s) or (kind == "F" and self.held() + 1 > self.job.cap):
            return inf
        return max(self.free_s, inputs_s[microbatch])

    def held(self) -> float:
        """The activations that the rank holds, in M_B."""
        forwards, input_grads, weight_grads = self.done.values()
        return forwards - input_grads + self.job.weight_grad_memory * (input_grads - weight_grads)

    def run(self, kind: str, start_s: float) -> float:
        """Run the next op of `kind` from `start_s` on, and return when it ends."""
        if self.kinds:
            self.idle_s += start_s - self.free_s
        self.kinds.append(kind)
        self.done[kind] += 1
        self.free_s = start_s + self.job.seconds[kind]
        return self.free_s


class _Run(NamedTuple):
    """A complete schedule. Its cost is m (F + I + W) + `idle_s`."""

    idle_s: float  # between the first and the last op of the rank that idles most
    makespan_s: float
    kinds: list[list[str]]  # [per rank] the kinds of its ops in order


def _run(job: _Job, policies: "Sequence[_Given | _Greedy]") -> _Run | None:
    """The schedule in which rank r runs what `policies[r]` chooses; None if the ranks get stuck.

    Of the ops that the ranks have chosen, the one that starts first is run first. So no input can
    arrive later that would have changed a choice, and each op starts as soon as its rank and its
    input permit, as in the simulator.
    """
    ranks = [_Rank(job, rank) for rank in range(job.ranks)]
    ranks[0].inputs_s["F"] = [0.0] * job.microbatches

    def choice(at: int) -> tuple[float, str, int]:
        return (*policies[at].choose(ranks[at]), at)

    choices = [choice(at) for at in range(job.ranks)]
    for _ in range(3 * job.ranks * job.microbatches):
        start_s, kind, at = min(choices)
        if start_s == inf:
            return None
        end_s = ranks[at].run(kind, start_s)
        for user, user_kind in _users(job, at, kind):
            ranks[user].inputs_s[user_kind].append(end_s if user == at else end_s + job.p2p_s)
            if user != at:
                choices[user] = choice(user)
        choices[at] = choice(at)
    return _Run(
        max(rank.idle_s for rank in ranks),
        max(rank.free_s for rank in ranks),
        [rank.kinds for rank in ranks],
    )


def _users(job: _Job, at: int, kind: str) -> list[tuple[int, str]]:
    """The (rank, kind) of each op that waits for the result of an op of `kind` on rank `at`."""
    if kind == "F":
        # The last rank computes the loss, after which its I can run.
        return [(at + 1, "F") if at < job.ranks - 1 else (at, "I")]
    if kind == "I":
        return [(at, "W"), (at - 1, "I")] if at > 0 else [(at, "W")]
    return []


# How a rank chooses its next op. A choice is (when the op can start, its kind).
# ---------------------------------------------


class _Given(NamedTuple):
    """A policy that follows a given order. It gets stuck if the cap does not permit the order."""

    kinds: list[str]

    def choose(self, rank: _Rank) -> tuple[float, str]:
        if len(rank.kinds) == len(self.kinds):
            return inf, ""
        kind = self.kinds[len(rank.kinds)]
        return rank.earliest_s(kind), kind


class _Greedy(NamedTuple):
    """A policy that runs F or I, whichever can start first, and W in the gaps before it.

    It never deadlocks. A rank that can do nothing else runs its W, and then it holds only
    microbatches whose I has not run. Consider the last rank that holds such a microbatch: either
    the input gradient is on its way, or the next rank, which holds nothing, can run the F. If no
    rank holds a microbatch, the first F that is left can run.
    """

    lead: float
    """How many forwards a rank may be ahead of its backwards, for each rank after it."""
    spare: int
    """How many more forwards it may be ahead."""
    least_gap_s: float
    """A gap that is shorter stays idle, because a W in it would delay the next F or I too long."""
    forward_first: bool
    """Whether F runs before I if both can start at the same time."""

    def choose(self, rank: _Rank) -> tuple[float, str]:
        done = rank.done
        may_lead = done["F"] - done["I"] <= self.lead * rank.later + self.spare
        forward_s = rank.earliest_s("F") if may_lead else inf
        input_grad_s = rank.earliest_s("I")
        forward = forward_s <= input_grad_s if self.forward_first else forward_s < input_grad_s
        start_s, kind = (forward_s, "F") if forward else (input_grad_s, "I")
        gap_s = start_s - rank.free_s
        if done["W"] < done["I"] and gap_s > 0 and gap_s >= self.least_gap_s:
            return rank.free_s, "W"
        return start_s, kind


def _candidates(job: _Job) -> "Iterator[Sequence[_Given | _Greedy]]":
    """For each schedule to try, the policy of each rank: the orders of zb-h1 and zb-h2, and the
    greedy policies.

    Between a rank's first F and its first I, the microbatch takes F, I and two messages for each
    rank after it. A lead of 1 is that of 1F1B and ZB-H1. A lead of `filling` fills this time with
    forwards, as ZB-H2 does if F = I.
    """
    for handcrafted in (zb_h1(job.ranks, job.microbatches), zb_h2(job.ranks, job.microbatches)):
        yield [_Given([op.kind for op in ops]) for ops in handcrafted.ranks]
    forward_s, input_grad_s, weight_grad_s = job.seconds.values()
    there_and_back_s = forward_s + input_grad_s + 2 * job.p2p_s
    filling = (
        there_and_back_s / forward_s
        if there_and_back_s < forward_s * job.microbatches
        else job.microbatches
    )
    leads = [1 + share * (filling - 1) for share in (0, 0.5, 1, 1.25)]
    least_gaps_s = [share * weight_grad_s for share in (0, 0.5, 1)]
    for choices in product(leads, (0, 1), least_gaps_s, (False, True)):
        yield [_Greedy(*choices)] * job.ranks


ZB_AUTO = Schedule("zb-auto", zb_auto)

"""ZB-auto: the best zero-bubble schedule that a greedy search finds for given op times and a cap on activation memory.

Qi, Wan, Huang and Lin 2023, arXiv 2401.10241, section 3.1 (the paper calls our I "B"). A cap of p is its ZB-1p, 2p its ZB-2p.

A policy builds a schedule in the order of time. A rank runs whichever of its next F and its next I can start first, but
no F that would exceed the cap or go too far ahead of the backwards. W waits for no other rank and no other rank waits
for W, so it fills gaps: times in which the rank would stand idle, waiting for a message or for memory. Every
combination of a few choices is tried (`_candidates`), zb-h1 and zb-h2 too where the cap admits them; the cheapest wins.

What differs from the paper: which choices are tried, and that no integer linear program refines the result. What is left
out: unequal stages, several stages on a rank, and microbatches that overtake each other.
"""

from dataclasses import dataclass
from itertools import product
from math import inf
from typing import NamedTuple

from simlab.errors import InputError
from simlab.program import WEIGHT_GRAD_MEMORY, Program
from simlab.schedules.ordering import numbered
from simlab.schedules.zero_bubble import zb_h1, zb_h2


def zb_auto(
    ranks, microbatches, forward_s=1.0, input_grad_s=1.0, weight_grad_s=1.0, p2p_s=0.0, cap=None, weight_grad_memory=WEIGHT_GRAD_MEMORY
):
    """The cheapest program found, one stage per rank; never dearer than zb-h1 or zb-h2 where the cap admits them.

    The cost is the paper's: the longest, over ranks, of (last op's end - first op's start), as if the optimizer step need
    not wait for all ranks. Of equals the one with the shorter makespan.

    forward_s, input_grad_s, weight_grad_s: F, I and W of one microbatch on any rank, s (or in any unit).
    p2p_s:              from the end of an op until the neighbouring rank can use its result, s.
    cap:                the most activations that a rank may hold, in M_B, those of one microbatch on one rank: 1 or
                        more; None: p, what 1F1B holds. A microbatch is held from the start of its F to the end of its I.
    weight_grad_memory: M_W / M_B: the part of it that is still held from then to the end of its W, 0 to 1. The paper's rates for
                        ZB-2p need less than about 0.65: with 1, as if I freed nothing, no schedule has them.

    Raises `InputError` for a value out of range.
    """
    cap = ranks if cap is None else cap
    job = _Job(ranks, microbatches, {"F": forward_s, "I": input_grad_s, "W": weight_grad_s}, p2p_s, cap, weight_grad_memory)
    runs = filter(None, (_run(job, policies) for policies in _candidates(job)))
    best = min(runs, key=lambda run: (run.idle_s, run.makespan_s))
    return Program([numbered([(rank, kind) for kind in best.kinds[rank]], microbatches) for rank in range(ranks)], name="zb-auto")


@dataclass(frozen=True)
class _Job:
    """What is to be scheduled: the arguments of `zb_auto`, checked."""

    ranks: int
    microbatches: int
    seconds: dict[str, float]  # by op kind
    p2p_s: float
    cap: float
    weight_grad_memory: float

    def __post_init__(self):
        for count, what in [(self.ranks, "ranks"), (self.microbatches, "microbatches")]:
            if not isinstance(count, int) or count < 1:
                raise InputError(f"{count!r} {what}: give a whole number of at least 1")
        for seconds, what in [*((value, kind) for kind, value in self.seconds.items()), (self.p2p_s, "a message")]:
            if not 0 <= seconds < inf:
                raise InputError(f"{seconds!r} s for {what}: give a finite number of seconds, 0 or more")
        if not self.cap >= 1:
            raise InputError(f"a cap of {self.cap!r}: give 1 or more, for a rank must hold the microbatch that it works on")
        if not 0 <= self.weight_grad_memory <= 1:
            raise InputError(f"weight_grad_memory {self.weight_grad_memory!r}: give a part of the activations, 0 to 1")


# a schedule as it grows -----------------------------------------------------------------------------------


class _Rank:
    """What one rank has run so far, and what it knows to have arrived or to be on its way."""

    def __init__(self, job, rank):
        self.job = job
        self.later = job.ranks - 1 - rank  # ranks below this one
        self.kinds = []  # of its ops, in order; the k-th of a kind is microbatch k's
        self.done = {"F": 0, "I": 0, "W": 0}
        self.inputs_s = {"F": [], "I": [], "W": []}  # by kind and microbatch: when the op's input is there
        self.free_s = 0.0
        self.idle_s = 0.0  # since its first op began

    def earliest_s(self, kind):
        """When its next op of `kind` can start; inf if the input is not even on its way, or there is no room for it."""
        inputs_s, microbatch = self.inputs_s[kind], self.done[kind]
        if microbatch == len(inputs_s) or (kind == "F" and self.held() + 1 > self.job.cap):
            return inf
        return max(self.free_s, inputs_s[microbatch])

    def held(self):
        """The activations that it holds, M_B."""
        forwards, input_grads, weight_grads = self.done.values()
        return forwards - input_grads + self.job.weight_grad_memory * (input_grads - weight_grads)

    def run(self, kind, start_s):
        """Run the next op of `kind`; its end."""
        if self.kinds:
            self.idle_s += start_s - self.free_s
        self.kinds.append(kind)
        self.done[kind] += 1
        self.free_s = start_s + self.job.seconds[kind]
        return self.free_s


class _Run(NamedTuple):
    """A complete schedule. Its cost is m (F + I + W) + `idle_s`."""

    idle_s: float  # between its first and its last op, of the rank that idles most
    makespan_s: float
    kinds: list[list[str]]  # per rank: those of its ops, in order


def _run(job, policies):
    """The schedule in which rank r runs what `policies[r]` chooses, op after op; None if the ranks get stuck.

    Of the ops that the ranks have chosen, the one that starts first is run first. So nothing that is still to be announced to
    a rank can arrive before its choice starts, and the times are the simulator's: each op starts as soon as its rank
    and its input allow.
    """
    ranks = [_Rank(job, rank) for rank in range(job.ranks)]
    ranks[0].inputs_s["F"] = [0.0] * job.microbatches

    def choice(at):
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
    return _Run(max(rank.idle_s for rank in ranks), max(rank.free_s for rank in ranks), [rank.kinds for rank in ranks])


def _users(job, at, kind):
    """[(rank, kind)] of the ops that wait for the result of one of rank `at`."""
    if kind == "F":
        return [(at + 1, "F") if at < job.ranks - 1 else (at, "I")]  # behind the last rank is the loss
    if kind == "I":
        return [(at, "W"), (at - 1, "I")] if at > 0 else [(at, "W")]
    return []


# how a rank chooses its next op: (when it can start, its kind) ---------------------------------------------


class _Given(NamedTuple):
    """The order of a handcrafted schedule. If the cap does not admit it, it gets stuck."""

    kinds: list[str]

    def choose(self, rank):
        if len(rank.kinds) == len(self.kinds):
            return inf, ""
        kind = self.kinds[len(rank.kinds)]
        return rank.earliest_s(kind), kind


class _Greedy(NamedTuple):
    """F or I, whichever can start first, and W in the gaps before it.

    It never deadlocks. A rank that can do nothing else runs its Ws, and then holds only microbatches whose I is to come.
    Take the last rank that holds such a one: either its input gradient is on its way, or the next rank, which
    holds nothing, is free to run the F that comes first. If no rank holds any, the first F that is left can run.
    """

    lead: float
    """Forwards that a rank may be ahead of its backwards, for each rank below it."""
    spare: int
    """Forwards that it may be ahead besides."""
    least_gap_s: float
    """Gaps shorter than that stay idle: a W in them would hold up the next F or I for too long."""
    forward_first: bool
    """Whether F or I goes first if both could start at the same time."""

    def choose(self, rank):
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


def _candidates(job):
    """Per schedule to try, the policy of each rank: the two handcrafted orders, and the greedy policies.

    Between a rank's first F and its first I lies, for each rank below it, the way there and back: F, I and two
    messages. A lead of 1 is 1F1B's and ZB-H1's; one of `filling` fills that time with forwards, as ZB-H2 does if F = I.
    """
    for handcrafted in (zb_h1(job.ranks, job.microbatches), zb_h2(job.ranks, job.microbatches)):
        yield [_Given([op.kind for op in ops]) for ops in handcrafted.ranks]
    forward_s, input_grad_s, weight_grad_s = job.seconds.values()
    there_and_back_s = forward_s + input_grad_s + 2 * job.p2p_s
    filling = there_and_back_s / forward_s if there_and_back_s < forward_s * job.microbatches else job.microbatches
    leads = [1 + share * (filling - 1) for share in (0, 0.5, 1, 1.25)]
    least_gaps_s = [share * weight_grad_s for share in (0, 0.5, 1)]
    for choices in product(leads, (0, 1), least_gaps_s, (False, True)):
        yield [_Greedy(*choices)] * job.ranks

"""Why a step took as long as it did: what every idle interval waited for, and the chain of work that set the makespan.

Both read only what a trace holds. One thing is missing from a measured trace: when a message *came*. Its span ends when
the receiver took it, which may have been busy until then. Such a message is taken to have come as fast as the fastest one
between the same two ranks, and at the latest when it was taken.
"""

from itertools import pairwise
from typing import NamedTuple

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.trace import Span
from simlab.units import seconds_text

ROUNDING = 1e-9  # of the step: times closer than that are the same, added up in another order

COMPUTING, MESSAGE, OVERHEAD, DONE = "computing", "message", "overhead", "done"


class Gap(NamedTuple):
    """One idle interval of one rank's compute stream. `str` of it is a sentence.

    rank:       who is idle.
    start_s:    when its last op ended (or the step began), seconds on the trace's clock.
    end_s:      when its next op began (or the step ended), s.
    op:         text of the op that runs next; None if there is none.
    waited_for: text of the op whose result came last of all that `op` needs; None where nothing was missing.
    holder:     the rank that ran it; None likewise.
    reason:     what filled the largest part of the interval (of equal parts, the first here):
                'computing'  `waited_for` had not ended yet: `holder` was running it, or not even so far;
                'message'    it had ended, and its message was on the way;
                'overhead'   nothing that `op` needs was missing: the sender's overhead; in a measured trace also
                             Python, the operating system, and what slowed a message beyond the fastest one;
                'done'       the rank has no more ops in this step.
    """

    rank: int
    start_s: float
    end_s: float
    op: str | None
    waited_for: str | None
    holder: int | None
    reason: str

    def __str__(self):
        why = {
            COMPUTING: f"{self.op} waited for {self.waited_for} on rank {self.holder} (computing)",
            MESSAGE: f"{self.op} waited for {self.waited_for} from rank {self.holder} (message)",
            OVERHEAD: f"nothing that {self.op} needs was missing (overhead)",
            DONE: "no more ops (done)",
        }[self.reason]
        return f"rank {self.rank} idle {seconds_text(self.end_s - self.start_s)} from {seconds_text(self.start_s)}: {why}"


def gaps(trace, *, least_s=0.0):
    """[`Gap`]: every idle interval of every rank between the trace's start and end, in rank, then time order.

    Intervals no longer than `least_s` seconds are left out, and so are those of a billionth of the step: rounding.
    Without `least_s` they add up to `idle_s`.
    """
    run, start_s, end_s = _Run(trace), trace.start_s, trace.end_s
    least_s = max(least_s, ROUNDING * (end_s - start_s))
    found = []
    for rank, ops in enumerate(run.program.ranks):
        free_s = start_s
        for op in ops:
            span = run.made[op]
            if span.start_s - free_s > least_s:
                found.append(_gap(free_s, span, run.last_need(op)))
            free_s = span.end_s
        if end_s - free_s > least_s:
            found.append(Gap(rank, free_s, end_s, None, None, None, DONE))
    return found


def critical_path(trace):
    """[`Span`]: the chain of compute and message spans, first to last, that determined when the step ended.

    From the op that ended last, back: before an op comes whichever ended last, the op before it on its rank or the last
    message that it needs, and before the message the op that sent it. The same rank's op where both ended together.

    In a simulation each span begins where the one before ended, so their durations add up to the makespan; where a
    sender's overhead held an op back, that part is missing between two of them. In a measured trace the small times between
    them are those that `gaps` calls overhead. An op of the path that takes longer by d lengthens the step by d, unless ranks
    share a processor or messages a link. [] if nothing ran; `InputError` if the ops need each other in a circle.
    """
    run, rounding_s = _Run(trace), ROUNDING * trace.step_s
    before = {after: op for ops in run.program.ranks for op, after in pairwise(ops)}
    path, op = [], max(run.made, key=lambda op: run.made[op].end_s, default=None)
    while op:
        path.append(run.made[op])
        need, op = run.last_need(op), before.get(op)
        if need and (op is None or need.came_s > run.made[op].end_s + rounding_s):
            path.extend(need.message)
            op = need.op
        if len(path) > len(trace.spans):
            raise InputError("not the trace of a step: ops need each other in a circle")
    return path[::-1]


class _Need(NamedTuple):
    """A result: the op that made it, that op's span and its message's (none from the same rank), and when it came."""

    op: Op
    made: Span
    message: tuple[Span, ...]
    came_s: float


class _Run:
    """What ran, by op, and what each op needed."""

    def __init__(self, trace):
        self.program = Program.from_trace(trace)
        self.made = {Op.parse(span.op): span for span in trace.compute()}
        self._messages = {(span.op, span.peer): (span, came_s) for span, came_s in _arrivals(trace)}

    def last_need(self, op):
        """Of the results that `op` needs the one that came last, a `_Need`; None if it needs none."""
        rank, found = self.made[op].rank, []
        for need in self.program.needs(op):
            if need in self.made:  # not so in the trace of a broken run
                made = self.made[need]
                *message, came_s = self._messages.get((made.op, rank), (made.end_s,))
                found.append(_Need(need, made, tuple(message), came_s))
        return max(found, key=lambda need: need.came_s, default=None)


def _arrivals(trace):
    """Each message with when its receiver could use it, s. A measured trace does not say: see the module's text."""
    messages, fastest_s = trace.messages(), {}
    if trace.metadata.get("source") != "measured":
        return [(span, span.end_s) for span in messages]
    for span in messages:
        ranks, taken_s = (span.rank, span.peer), span.end_s - span.start_s
        fastest_s[ranks] = min(taken_s, fastest_s.get(ranks, taken_s))
    return [(span, span.start_s + fastest_s[span.rank, span.peer]) for span in messages]


def _gap(free_s, span, need):
    """The `Gap` from `free_s` to the start of `span`, whose last need was `need`."""
    nothing = Gap(span.rank, free_s, span.start_s, span.op, None, None, OVERHEAD)
    if need is None:
        return nothing
    made_s = min(max(free_s, need.made.end_s), span.start_s)
    came_s = min(max(made_s, need.came_s), span.start_s)
    parts = {COMPUTING: made_s - free_s, MESSAGE: came_s - made_s, OVERHEAD: span.start_s - came_s}
    reason = max(parts, key=parts.get)
    return nothing if reason == OVERHEAD else nothing._replace(waited_for=need.made.op, holder=need.made.rank, reason=reason)

"""It explains the time of a step: what each idle interval waited for, and the critical path.

Both need only a trace. A measured trace does not say when a message *arrived*: its span ends when
the receiver took the message, and the receiver may have been busy until then. So such a message is
assumed to have travelled as fast as the fastest message between the same two ranks, and to have
arrived at the latest when it was taken.
"""

from itertools import pairwise
from typing import NamedTuple

from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.trace import Span, Trace
from simlab.units import seconds_text

ROUNDING = 1e-9
"""Times that are closer than this fraction of the step are equal but for rounding."""

COMPUTING, MESSAGE, OVERHEAD, DONE = "computing", "message", "overhead", "done"


class Gap(NamedTuple):
    """One idle interval of one rank's compute stream. Its `str` is a sentence.

    rank:       the rank that is idle.
    start_s:    when its last op ended (or the step began), in seconds on the trace's clock.
    end_s:      when its next op began (or the step ended), in seconds.
    op:         the text of the op that runs next; None if there is none.
    waited_for: the text of the op whose result arrived last of all that `op` needs; None if nothing
                was missing.
    holder:     the rank that ran `waited_for`; None if nothing was missing.
    reason:     what filled the largest part of the interval; of equal parts, the first of these:
                'computing'  `waited_for` had not ended yet;
                'message'    it had ended, and its message was on its way;
                'overhead'   nothing that `op` needs was missing. In a simulated trace this is the
                             sender's overhead. In a measured trace it is also the time of Python
                             and the operating system, and what made a message slower than the
                             fastest one;
                'done'       the rank has no more ops in this step.
    """

    rank: int
    start_s: float
    end_s: float
    op: str | None
    waited_for: str | None
    holder: int | None
    reason: str

    def __str__(self) -> str:
        why = {
            COMPUTING: f"{self.op} waited for {self.waited_for} on rank {self.holder} (computing)",
            MESSAGE: f"{self.op} waited for {self.waited_for} from rank {self.holder} (message)",
            OVERHEAD: f"nothing that {self.op} needs was missing (overhead)",
            DONE: "no more ops (done)",
        }[self.reason]
        return f"rank {self.rank} idle {seconds_text(self.end_s - self.start_s)} from {seconds_text(self.start_s)}: {why}"


def gaps(trace: Trace, *, least_s: float = 0.0) -> list[Gap]:
    """Every idle interval of every rank between the trace's start and end, by rank and then by
    time.

    least_s: intervals that are no longer than this number of seconds are left out. Intervals of a
             billionth of the step are always left out, because they come from rounding.

    Without `least_s` the intervals of a rank add up to its `idle_s`.
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


def critical_path(trace: Trace) -> list[Span]:
    """The chain of compute and message spans, first to last, that determined when the step ended.

    The chain is found backward from the op that ended last. Before an op comes whichever ended
    last: the op before it on its rank, or the last message that it needs. Before a message comes
    the op that sent it. If both ended together, the op of the same rank is taken.

    In a simulation each span of the chain begins where the one before it ended, so their durations
    add up to the makespan, unless a sender's overhead held an op back. In a measured trace there are
    short times between the spans, which `gaps` calls overhead. If an op of the path takes longer by
    d, the step takes longer by d, unless ranks share a processor or messages share a link.

    The chain is empty if nothing ran. Raises `InputError` if the ops need each other in a circle.
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
    """A result that an op needs: the op that made it, the span of that op, the span of the message
    (if it came from another rank), and when it arrived."""

    op: Op
    made: Span
    message: tuple[Span, ...]
    came_s: float


class _Run:
    """The spans of a trace by op, and the results that each op needed."""

    def __init__(self, trace: Trace) -> None:
        self.program = Program.from_trace(trace)
        self.made = {Op.of_span(span): span for span in trace.compute()}
        self._messages = {
            (span.op_text, span.peer): (span, came_s) for span, came_s in arrivals(trace)
        }

    def last_need(self, op: Op) -> _Need | None:
        """The `_Need` of `op` that arrived last; None if `op` needs no result."""
        rank, found = self.made[op].rank, []
        for need in self.program.needs(op):
            if need in self.made:  # In the trace of a run that failed it may be missing.
                made = self.made[need]
                *message, came_s = self._messages.get((str(need), rank), (made.end_s,))
                found.append(_Need(need, made, tuple(message), came_s))
        return max(found, key=lambda need: need.came_s, default=None)


def arrivals(trace: Trace) -> list[tuple[Span, float]]:
    """Each message of `trace`, and when its receiver could use it, in seconds. For a measured trace this is an
    assumption, see the text of the module."""
    messages = trace.messages()
    fastest_s: dict[tuple[int, int], float] = {}
    if trace.metadata.get("source") != "measured":
        return [(span, span.end_s) for span in messages]
    for span in messages:
        ranks, taken_s = (span.rank, span.peer), span.end_s - span.start_s
        fastest_s[ranks] = min(taken_s, fastest_s.get(ranks, taken_s))
    return [(span, span.start_s + fastest_s[span.rank, span.peer]) for span in messages]


def _gap(free_s: float, span: Span, need: _Need | None) -> Gap:
    """The `Gap` from `free_s` to the start of `span`, whose last need was `need`."""
    nothing = Gap(span.rank, free_s, span.start_s, span.op, None, None, OVERHEAD)
    if need is None:
        return nothing
    made_s = min(max(free_s, need.made.end_s), span.start_s)
    came_s = min(max(made_s, need.came_s), span.start_s)
    parts = {COMPUTING: made_s - free_s, MESSAGE: came_s - made_s, OVERHEAD: span.start_s - came_s}
    reason = max(parts, key=parts.__getitem__)
    return (
        nothing
        if reason == OVERHEAD
        else nothing._replace(waited_for=need.made.op, holder=need.made.rank, reason=reason)
    )

"""Prediction against measurement: how far off, and where."""

from dataclasses import dataclass
from statistics import mean, median

from simlab.analysis import Bubble, bubble, busy_s, idle_s, peak_memory
from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.units import percent_text, seconds_text


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One quantity, predicted and measured."""

    predicted: float
    measured: float

    @property
    def error(self):
        """(predicted - measured) / measured: above 0 the prediction is too long. None if nothing was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """What `compare` finds. Each field is a `Pair`, or a dict or list of them."""

    step_s: Pair
    bubble: dict[str, Pair]
    """by figure, see `simlab.bubble`"""
    op_s: dict[str, Pair]
    """by op kind: mean seconds of one op"""
    busy_s: list[Pair]
    """per rank"""
    idle_s: list[Pair]
    """per rank: makespan - busy"""
    peak_live_microbatches: list[Pair]
    """per rank"""

    def __str__(self):
        rows = [("", "predicted", "measured", "error"), _row("step", self.step_s)]
        rows += [_row(f"one {kind}", pair) for kind, pair in self.op_s.items()]
        rows += [_row(f"idle of rank {rank}", pair) for rank, pair in enumerate(self.idle_s)]
        for name, pair in self.bubble.items():
            rows.append((f"bubble {name}", f"{pair.predicted:.4f}", f"{pair.measured:.4f}", f"{pair.predicted - pair.measured:+.4f}"))
        peaks = [
            (str([pair.predicted for pair in self.peak_live_microbatches])),
            str([pair.measured for pair in self.peak_live_microbatches]),
        ]
        rows.append(("peak live microbatches", *peaks, "equal" if peaks[0] == peaks[1] else "differ"))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(f"{row[0]:<{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3)) for row in rows)


def compare(predicted, measured):
    """`Comparison` of two traces of the same program; `InputError` if they are not."""
    if predicted.ranks != measured.ranks:
        raise InputError(f"the prediction has {predicted.ranks} ranks, the measurement {measured.ranks}")
    ops = [{span.op for span in trace.compute()} for trace in (predicted, measured)]
    if ops[0] != ops[1]:
        odd = sorted(ops[0] ^ ops[1])[:3]
        raise InputError(f"the traces do not hold the same ops: {', '.join(odd)} is only in one of them")
    for rank, (a, b) in enumerate(zip(Program.from_trace(predicted).ranks, Program.from_trace(measured).ranks)):
        if a != b:
            raise InputError(f"the traces are of different programs: rank {rank} does not run the same ops in the same order")
    both = (predicted, measured)
    kinds = [_mean_op_s(trace) for trace in both]
    return Comparison(
        step_s=Pair(predicted=predicted.step_s, measured=measured.step_s),
        bubble=dict(zip(Bubble._fields, _pairs(*map(bubble, both)))),
        op_s={kind: Pair(predicted=kinds[0][kind], measured=kinds[1][kind]) for kind in sorted(kinds[0])},
        busy_s=_pairs(*map(busy_s, both)),
        idle_s=_pairs(*map(idle_s, both)),
        peak_live_microbatches=_pairs(*map(peak_memory, both)),
    )


def median_trace(traces):
    """The trace whose step time is the (lower) median of `traces`: one that happened, not an average."""
    return sorted(traces, key=lambda trace: trace.step_s)[(len(traces) - 1) // 2]


def step_summary(traces):
    """{"median", "min", "max"} of the step times, s."""
    steps = [trace.step_s for trace in traces]
    return {"median": median(steps), "min": min(steps), "max": max(steps)}


def _mean_op_s(trace):
    seconds = {}
    for span in trace.compute():
        seconds.setdefault(Op.parse(span.op).kind, []).append(span.end_s - span.start_s)
    return {kind: mean(values) for kind, values in seconds.items()}


def _pairs(predicted, measured):
    return [Pair(predicted=a, measured=b) for a, b in zip(predicted, measured)]


def _row(name, pair):
    error = "-" if pair.error is None else percent_text(pair.error)
    return name, seconds_text(pair.predicted), seconds_text(pair.measured), error

"""It compares a predicted trace with a measured one: step, ops, idle time and memory."""

import html
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import mean
from typing import Any

from simlab.analysis import Bubble, bubble, busy_s, idle_s, peak_memory
from simlab.display import data_frame, plain
from simlab.errors import InputError
from simlab.program import Op, Program
from simlab.trace import Trace
from simlab.units import percent_text, seconds_text


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One quantity as it was predicted and as it was measured."""

    predicted: float
    measured: float

    @property
    def error(self) -> float | None:
        """(predicted - measured) / measured, which is above 0 if too much was predicted; None if 0
        was measured."""
        return (self.predicted - self.measured) / self.measured if self.measured else None


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The differences of two traces. Each field is a `Pair`, or a dict or a list of them."""

    step_s: Pair
    """The makespan of the step, in seconds."""
    bubble: dict[str, Pair]
    """{figure: fraction of idle time}, see `simlab.bubble`."""
    op_s: dict[str, Pair]
    """{op kind: mean seconds of one op}."""
    busy_s: list[Pair]
    """[per rank] the seconds in which its compute stream runs an op."""
    idle_s: list[Pair]
    """[per rank] the makespan minus the busy time, in seconds."""
    peak_live_microbatches: list[Pair]
    """[per rank] the most microbatches whose activations it holds."""

    def __repr__(self) -> str:
        step = self.step_s
        predicted, measured = seconds_text(step.predicted), seconds_text(step.measured)
        error = "" if step.error is None else f", {percent_text(step.error)}"
        return f"<Comparison: step {predicted} predicted, {measured} measured{error}>"

    def _repr_html_(self) -> str:
        """The table as notebooks show it, in the colours of their theme."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict[str, Any]:
        """The comparison as plain values that JSON knows; a pair has the keys predicted and
        measured."""
        return plain(self)

    def to_frame(self) -> Any:
        """A pandas data frame with a row for each quantity that has one value: the quantity, both
        values and the relative error.

        Raises `InputError` if pandas is not installed.
        """
        pairs = {"step_s": self.step_s, **{f"one {k} s": pair for k, pair in self.op_s.items()}}
        pairs |= {f"bubble {name}": pair for name, pair in self.bubble.items()}
        rows = [(name, pair.predicted, pair.measured, pair.error) for name, pair in pairs.items()]
        return data_frame(rows, ("quantity", "predicted", "measured", "error"))

    def __str__(self) -> str:
        rows = [("", "predicted", "measured", "error"), _row("step", self.step_s)]
        rows += [_row(f"one {kind}", pair) for kind, pair in self.op_s.items()]
        rows += [_row(f"idle of rank {rank}", pair) for rank, pair in enumerate(self.idle_s)]
        for name, pair in self.bubble.items():
            rows.append(
                (
                    f"bubble {name}",
                    f"{pair.predicted:.4f}",
                    f"{pair.measured:.4f}",
                    f"{pair.predicted - pair.measured:+.4f}",
                )
            )
        predicted = str([pair.predicted for pair in self.peak_live_microbatches])
        measured = str([pair.measured for pair in self.peak_live_microbatches])
        verdict = "equal" if predicted == measured else "differ"
        rows.append(("peak live microbatches", predicted, measured, verdict))
        widths = [max(len(row[column]) for row in rows) for column in range(4)]
        return "\n".join(
            f"{row[0]:<{widths[0]}}  " + "  ".join(f"{row[i]:>{widths[i]}}" for i in (1, 2, 3))
            for row in rows
        )


def compare(predicted: Trace, measured: Trace) -> Comparison:
    """The `Comparison` of two traces of the same program.

    Raises `InputError` if the traces differ in their ranks, their ops or the order of the ops.
    """
    if predicted.ranks != measured.ranks:
        raise InputError(
            f"the prediction has {predicted.ranks} ranks, the measurement {measured.ranks}"
        )
    ops = [{span.op_text for span in trace.compute()} for trace in (predicted, measured)]
    if ops[0] != ops[1]:
        odd = sorted(ops[0] ^ ops[1])[:3]
        raise InputError(
            f"the traces do not hold the same ops: {', '.join(odd)} is only in one of them"
        )
    for rank, (a, b) in enumerate(
        zip(Program.from_trace(predicted).ranks, Program.from_trace(measured).ranks)
    ):
        if a != b:
            raise InputError(
                f"the traces are of different programs: rank {rank} does not run the same ops in the same order"
            )
    both = (predicted, measured)
    kinds = [_mean_op_s(trace) for trace in both]
    return Comparison(
        step_s=Pair(predicted=predicted.step_s, measured=measured.step_s),
        bubble=dict(zip(Bubble._fields, _pairs(*map(bubble, both)))),
        op_s={
            kind: Pair(predicted=kinds[0][kind], measured=kinds[1][kind])
            for kind in sorted(kinds[0])
        },
        busy_s=_pairs(*map(busy_s, both)),
        idle_s=_pairs(*map(idle_s, both)),
        peak_live_microbatches=_pairs(*map(peak_memory, both)),
    )


def _mean_op_s(trace: Trace) -> dict[str, float]:
    seconds: dict[str, list[float]] = {}
    for span in trace.compute():
        seconds.setdefault(Op.of_span(span).kind, []).append(span.end_s - span.start_s)
    return {kind: mean(values) for kind, values in seconds.items()}


def _pairs(predicted: Iterable[float], measured: Iterable[float]) -> list[Pair]:
    return [Pair(predicted=a, measured=b) for a, b in zip(predicted, measured)]


def _row(name: str, pair: Pair) -> tuple[str, str, str, str]:
    error = "-" if pair.error is None else percent_text(pair.error)
    return name, seconds_text(pair.predicted), seconds_text(pair.measured), error

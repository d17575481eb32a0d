"""It poses a puzzle: order the ops of a small pipeline within a cap on memory.

The answer is judged: it is told what is wrong, or how far it is from the best known order.
"""

from dataclasses import dataclass
from functools import cached_property

from simlab.analysis import breaches
from simlab.cost import OpTimes
from simlab.cost.op_times import FIELD_OF_KIND
from simlab.engine import simulate
from simlab.errors import InputError, ProgramError
from simlab.program import Program
from simlab.program.validation import validate
from simlab.studies.survey import Row, rank_shares, search_options, survey
from simlab.trace import Trace
from simlab.units import seconds_text


@dataclass(frozen=True)
class Verdict:
    """The judgement of an answer."""

    text: str
    """One sentence: what is wrong, or how good the answer is."""
    trace: Trace | None = None
    """The simulated trace; None if the program is not valid."""
    excess_s: float | None = None
    """By how many seconds the step is longer than the shortest known step within the cap; None if
    the program is not valid or exceeds the cap."""


class Puzzle:
    """Order the ops of every microbatch, with one stage per rank, so that the step is short.

    ranks:              the number of ranks, p.
    microbatches:       the number of microbatches, m.
    times:              the `OpTimes`, in seconds: of F, I and W, or of F and B where the backward
                        is one op.
    cap:                the most activations that a rank may hold, in microbatches, at least 1.
    weight_grad_memory: the fraction of a microbatch's activations that is held from I to W; 1 makes
                        it easy to count.

    Raises `InputError` for a cap below 1.
    """

    def __init__(
        self,
        ranks: int,
        microbatches: int,
        times: OpTimes,
        cap: float,
        weight_grad_memory: float = 1.0,
    ) -> None:
        if not cap >= 1:
            raise InputError(
                f"a cap of {cap!r}: give 1 or more, for a rank must hold the microbatch that it works on"
            )
        self.ranks, self.microbatches, self.times, self.cap = ranks, microbatches, times, cap
        self.weight_grad_memory = weight_grad_memory

    @property
    def kinds(self) -> str:
        """The kinds of ops that are ordered: "FIW", or "FB" where the backward is one op."""
        return "FB" if self.times.weight_grad_s is None else "FIW"

    @property
    def start(self) -> str:
        """A valid answer to begin with, as text, in which each rank runs one microbatch after the
        other."""
        return "\n".join(
            " ".join(f"{rank}{kind}{m}" for m in range(self.microbatches) for kind in self.kinds)
            for rank in range(self.ranks)
        )

    @cached_property
    def _known(self) -> list[Row]:
        """Of all schedules with one stage per rank, those within the cap with ops of these kinds."""
        options = search_options(self.times, None, self.weight_grad_memory) | {"cap": self.cap}
        rows = survey(
            self.ranks,
            self.microbatches,
            self.times,
            weight_grad_memory=self.weight_grad_memory,
            options=options,
        )
        # DualPipe has as many stages as ranks, but stores each of them twice.
        one_stage = [1.0] * self.ranks
        found = [
            row
            for row in rows
            if row.trace is not None
            and row.fits
            and row.stages == self.ranks
            and row.parameters == one_stage
            and {span.op_kind for span in row.trace.compute()} == set(self.kinds)
        ]
        if not found:
            raise InputError(
                f"no schedule of {', '.join(self.kinds)} is known that holds at most {self.cap:g} "
                f"microbatches on each of {self.ranks} ranks: give a larger cap"
            )
        return found

    @cached_property
    def shortest_s(self) -> float:
        """The shortest step within the cap, in seconds, of all schedules with one stage per rank."""
        return min(row.step_s for row in self._known if row.step_s is not None)

    @cached_property
    def least_held(self) -> float:
        """The most activations that a rank holds, in microbatches, in that one of the shortest
        schedules which holds the least."""
        best = self.shortest_s * (1 + 1e-9)
        return min(
            max(row.peak_activations)
            for row in self._known
            if row.step_s is not None and row.step_s <= best and row.peak_activations
        )

    @property
    def bound_s(self) -> float:
        """A lower bound of every step, in seconds: (p - 1) F + m (F + I + W), or
        (p - 1) (F + B) + m (F + B).

        The last rank starts after p - 1 forwards, and then it has to run m microbatches. Its last
        backward must still pass p - 1 stages; where W is apart, that may happen before its last W.
        """
        one = [getattr(self.times, FIELD_OF_KIND[kind]) for kind in self.kinds]
        passes = one[0] if self.kinds == "FIW" else sum(one)
        return (self.ranks - 1) * passes + self.microbatches * sum(one)

    def check(self, text: str) -> Verdict:
        """The `Verdict` on a program.

        text: the program, with one line per rank, see `Program.from_text`.
        """
        try:
            program = validate(Program.from_text(text, name="yours"))
        except (InputError, ProgramError) as error:
            return Verdict(f"Not yet: {error}.")
        stages = [program.stages_of(rank) for rank in range(len(program.ranks))]
        if (
            stages != [[rank] for rank in range(self.ranks)]
            or program.microbatches != self.microbatches
        ):
            asked = f"stage 0 on rank 0 and so on, {self.ranks} ranks and {self.microbatches} microbatches"
            return Verdict(
                f"Not yet: this has stages {stages} on its ranks and {program.microbatches} microbatches; asked for is {asked}."
            )
        if {op.kind for op in program.rank_of} != set(self.kinds):
            whole = "I and W, not as B" if self.kinds == "FIW" else "B, not as I and W"
            return Verdict(f"Not yet: write the backward as {whole}.")
        times, memory = rank_shares(program, self.times, self.weight_grad_memory)
        trace = simulate(program, times, memory=memory)
        trace.metadata["activation_cap"] = self.cap
        if over := breaches(trace, self.cap):
            return Verdict(f"Too much memory: {over[0]}; the cap is {self.cap:g}.", trace)
        return Verdict(self._praise(trace.step_s), trace, trace.step_s - self.shortest_s)

    def _praise(self, step_s: float) -> str:
        took = f"{seconds_text(step_s)}"
        if step_s <= self.bound_s * (1 + 1e-9):
            return f"{took}: optimal. Nothing can be shorter: the last rank has to wait for its first input, and then never stops."
        if step_s <= self.shortest_s * (1 + 1e-9):
            return f"{took}: as short as the best that is known here. Nothing can be below {seconds_text(self.bound_s)}."
        more = step_s - self.shortest_s
        return f"Valid, within the cap: {took}, {seconds_text(more)} ({more / self.shortest_s:.0%}) longer than the best known."

"""A puzzle: order the ops of a small pipeline yourself, within a cap on memory, and be told what is wrong, or how good it is."""

from dataclasses import dataclass
from functools import cached_property

from simlab.analysis import breaches
from simlab.engine import simulate
from simlab.errors import InputError, ProgramError
from simlab.program import Program
from simlab.survey import rank_shares, search_options, survey
from simlab.trace import Trace
from simlab.units import seconds_text
from simlab.validation import validate


@dataclass(frozen=True)
class Verdict:
    """What there is to say about an answer."""

    text: str
    trace: Trace | None = None
    """None where the program is not valid."""
    excess_s: float | None = None
    """How much longer than the shortest known step that keeps to the cap; None where the answer does not count."""


class Puzzle:
    """Split backwards, one stage per rank: place F, I and W of every microbatch so that the step is short.

    ranks, microbatches: p and m.
    times:               `OpTimes` with F, I and W.
    cap:                 the most activations that a rank may hold, in microbatches.
    weight_grad_memory:  the part of a microbatch's activations that stays from I to W; 1 makes the counting easy.
    """

    def __init__(self, ranks, microbatches, times, cap, weight_grad_memory=1.0):
        if not cap >= 1:
            raise InputError(f"a cap of {cap!r}: give 1 or more, for a rank must hold the microbatch that it works on")
        self.ranks, self.microbatches, self.times, self.cap = ranks, microbatches, times, cap
        self.weight_grad_memory = weight_grad_memory

    @property
    def start(self):
        """A valid answer to begin with, as text: one microbatch after the other, each rank doing all it can for it."""
        return "\n".join(" ".join(f"{rank}{kind}{m}" for m in range(self.microbatches) for kind in "FIW") for rank in range(self.ranks))

    @cached_property
    def shortest_s(self):
        """The step of the best program known that keeps to the cap, s: of all schedules here with one stage per rank."""
        options = search_options(self.times, None, self.weight_grad_memory) | {"cap": self.cap}
        rows = survey(self.ranks, self.microbatches, self.times, weight_grad_memory=self.weight_grad_memory, options=options)
        one_stage = [1.0] * self.ranks  # DualPipe has as many stages, but each of them twice
        return min(row.step_s for row in rows if row.fits and row.stages == self.ranks and row.parameters == one_stage)

    @property
    def bound_s(self):
        """No program is shorter, s: the last rank starts after p - 1 forwards and then has all of its m (F + I + W) to do."""
        f, i, w = self.times.forward_s, self.times.input_grad_s, self.times.weight_grad_s
        return (self.ranks - 1) * f + self.microbatches * (f + i + w)

    def check(self, text):
        """The `Verdict` on a program as text, one rank per line: the first thing that is wrong, or how far from the best it is."""
        try:
            program = validate(Program.from_text(text, name="yours"))
        except (InputError, ProgramError) as error:
            return Verdict(f"Not yet: {error}.")
        stages = [program.stages_of(rank) for rank in range(len(program.ranks))]
        if stages != [[rank] for rank in range(self.ranks)] or program.microbatches != self.microbatches:
            asked = f"stage 0 on rank 0 and so on, {self.ranks} ranks and {self.microbatches} microbatches"
            return Verdict(f"Not yet: this has stages {stages} on its ranks and {program.microbatches} microbatches; asked for is {asked}.")
        if any(op.kind == "B" for op in program.rank_of):
            return Verdict("Not yet: write the backward as I and W, not as B.")
        times, memory = rank_shares(program, self.times, self.weight_grad_memory)
        trace = simulate(program, times, memory=memory)
        trace.metadata["activation_cap"] = self.cap
        if over := breaches(trace, self.cap):
            return Verdict(f"Too much memory: {over[0]}; the cap is {self.cap:g}.", trace)
        return Verdict(self._praise(trace.step_s), trace, trace.step_s - self.shortest_s)

    def _praise(self, step_s):
        took = f"{seconds_text(step_s)}"
        if step_s <= self.bound_s * (1 + 1e-9):
            return f"{took}: optimal. Nothing can be shorter: the last rank has to wait for its first input, and then never stops."
        if step_s <= self.shortest_s * (1 + 1e-9):
            return f"{took}: as short as the best that is known here. Nothing can be below {seconds_text(self.bound_s)}."
        more = step_s - self.shortest_s
        return f"Valid, within the cap: {took}, {seconds_text(more)} ({more / self.shortest_s:.0%}) longer than the best known."

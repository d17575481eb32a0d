"""Discrete-event simulation of a program: a compute stream per GPU, a wire per pair of ranks that
talk.

A stream is a generator that SimPy's events resume, as a SimPy process is, but without the process
object around it: an op then costs one event, and a rank that stands waiting costs none. That is
what makes a program of 65,536 ops a matter of a fraction of a second (`make bench`).
"""

from collections.abc import Collection, Generator, Mapping, Sequence
from itertools import accumulate, compress, repeat
from operator import itemgetter
from typing import Any, Protocol

import simpy

from simlab.cost import OpMemory, OpTimes
from simlab.engine.sharing import FairShare, FairWire, SerialWire
from simlab.errors import InputError
from simlab.garbage import no_garbage_collection
from simlab.program import LIVE_CHANGE, Op, Program
from simlab.program.steps import Step
from simlab.program.validation import deadlock
from simlab.spec.hardware import Link
from simlab.trace import (
    ACTIVATIONS,
    COMPUTE,
    LIVE,
    MESSAGE,
    SEND,
    SHARE,
    MemoryPoint,
    Span,
    Trace,
    rows,
)


class OpClock(Protocol):
    """One rank's ops in time, where what an op takes depends on when it starts."""

    def op_s(self, op: Op, ready_s: float, start_s: float, /) -> float:
        """Seconds that the rank's next op takes. ready_s: when the rank was done with the op before
        it. start_s: when all that it needs is there."""


_WIRES: dict[str, type[SerialWire | FairWire]] = {"serial": SerialWire, "fair": FairWire}


def simulate(
    program: Program,
    times: OpTimes | Sequence[OpClock],
    *,
    link: Link | Mapping[tuple[int, int], Link] | None = None,
    message_bytes: float = 0,
    cores: float | None = None,
    memory: OpMemory | None = None,
    op_gap_s: float = 0.0,
) -> Trace:
    """What `program` does when its ops take `times`: a `Trace` that starts at 0 s.

    times:         `OpTimes`, or an `OpClock` for each rank, which is asked op by op: of a pair for
                   the part of each op in what both take.
    link:          the `Link` between any two ranks, or {(source, destination): Link}; None:
                   messages take no time.
    message_bytes: size of one microbatch's activation at a stage boundary (and of its gradient).
    cores:         None where every rank has a processor of its own. A number where the ranks share
                   that many
                   (processes on one machine): an op then runs at min(1, cores / running ops) of its
                   speed.

    op_gap_s:      what a rank needs between two ops (to note one and find out the next), s.
    memory:        `OpMemory`; by default a stage holds 1 / (stages per rank) for a microbatch:
                   activations are then counted
                   in what a microbatch takes on a rank that has its equal share of the model.

    A rank runs its ops in order, each as soon as what it needs is there. A result for another rank
    is handed to the link when the op ends; the sender goes on after the link's overhead. A pair
    (`Program.paired`) starts when both its ops could, and both results are there when it ends.
    Memory is taken when an op starts and given back when one ends. Leaves out: what computing and
    communicating cost each other.

    Raises `DeadlockError` that names the circle if the program cannot end.
    """
    with no_garbage_collection():
        return _Simulation(
            program, times, Link() if link is None else link, message_bytes, cores, memory, op_gap_s
        ).run()


class _Simulation:
    """All state of one run."""

    def __init__(
        self,
        program: Program,
        times: OpTimes | Sequence[OpClock],
        link: Link | Mapping[tuple[int, int], Link],
        message_bytes: float,
        cores: float | None,
        memory: OpMemory | None,
        op_gap_s: float,
    ) -> None:
        if cores is not None and not cores > 0:
            raise InputError(f"{cores!r} cores: give a number above 0")
        if not message_bytes >= 0:
            raise InputError(f"{message_bytes!r} bytes in a message: give 0 or more")
        if not 0 <= op_gap_s < float("inf"):
            raise InputError(
                f"{op_gap_s!r} s between ops: give a finite number of seconds, 0 or more"
            )
        self.program = program
        self.memory = memory or OpMemory(
            activations=len(program.ranks) / max(1, program.stages), unit=SHARE
        )
        self.link = link
        self.op_gap_s = op_gap_s
        self.message_bytes = message_bytes
        self.env = simpy.Environment()
        self.processor = FairShare(self.env, cores) if cores else None
        self.messages: list[Span] = []
        clocks: Sequence[OpClock | None] = [None] * len(program.ranks)
        if isinstance(times, OpTimes):
            durations = times.durations(program)
        else:
            clocks, durations = times, [[0.0] * len(ops) for ops in program.ranks]
        self.streams = [
            _ComputeStream(self, rank, *part, program.paired)
            for rank, part in enumerate(zip(program.lowered, durations, clocks))
        ]

    def run(self) -> Trace:
        for stream in self.streams:
            stream.start()
        self.env.run()
        done = [len(stream.ends) for stream in self.streams]
        if any(count < len(ops) for count, ops in zip(done, self.program.ranks)):
            raise deadlock(self.program, done)
        trace = self.trace()
        for stream in self.streams:
            stream.close()
        return trace

    def wire(self, source: int, destination: int) -> SerialWire | FairWire:
        """A new wire from `source` to `destination`."""
        link = self.link if isinstance(self.link, Link) else self.link.get((source, destination))
        if link is None:
            raise InputError(
                f"no link from rank {source} to rank {destination}, but the program sends along it"
            )
        receiver, messages, size = self.streams[destination], self.messages, self.message_bytes
        # as `rows` makes them, without a copy of them all
        texts, row = self.program.texts, tuple.__new__

        def deliver(step: Step, sent_s: float, arrival_s: float) -> None:
            (stage, kind, microbatch), slot, *_ = step
            messages.append(
                row(
                    Span,
                    (
                        *(source, SEND, texts[slot], sent_s, arrival_s, size, destination),
                        *(MESSAGE, stage, "", microbatch, kind, ""),
                    ),
                )
            )
            receiver.arrival_s[slot] = arrival_s
            if receiver.waiting_for == slot:
                receiver.waiting_for = None
                receiver.resume(None)

        return _WIRES[link.sharing](self.env, link, deliver)

    def trace(self) -> Trace:
        columns: dict[str, tuple[list[Any], ...]] = {
            COMPUTE: ([], [], [], [], []),
            LIVE: ([], [], []),
            ACTIVATIONS: ([], [], []),
        }
        for stream in self.streams:
            for name, part in stream.columns().items():
                for column, values in zip(columns[name], part):
                    column.extend(values)
        ranks, *labels_and_times, kinds = columns[COMPUTE]
        steps = [step.op for stream in self.streams for step in stream.steps]
        stages, microbatches = map(itemgetter(0), steps), map(itemgetter(2), steps)
        no_message = repeat(0), repeat(-1)
        fields = kinds, stages, repeat(""), microbatches, kinds, repeat("")
        spans = self.messages + rows(
            Span, zip(ranks, repeat(COMPUTE), *labels_and_times, *no_message, *fields)
        )
        memory = []
        for category in (LIVE, ACTIVATIONS):
            ranks, *others = columns[category]
            memory += rows(MemoryPoint, zip(ranks, repeat(category), *others))
        metadata = {
            "name": self.program.name,
            "source": "simulated",
            "ranks": len(self.program.ranks),
            "stages": self.program.stages,
            "microbatches": self.program.microbatches,
            "units": {LIVE: "microbatches", ACTIVATIONS: self.memory.unit},
            **self._limits(),
        }
        trace = Trace(spans, memory, metadata)
        trace.keep(columns)
        return trace

    def _limits(self) -> dict[str, Any]:
        """What a reader must know to simulate the trace again with other times of ops.

        'wires': [source, destination, latency, seconds that a message occupies the wire, overhead of
        the sender] of each wire that was used; 'op_gap_s', if it is not 0; 'shared', if ops share a
        processor, or messages the bandwidth of a link.
        """
        wires, shared = [], self.processor is not None
        for stream in self.streams:
            for destination in stream.wires:
                pair = stream.rank, destination
                link = self.link if isinstance(self.link, Link) else self.link[pair]
                wire_s = self.message_bytes / link.bandwidth_bytes_per_s
                wires.append([*pair, link.latency_s, wire_s, link.overhead_s])
                shared = shared or link.sharing != "serial"
        gap = {"op_gap_s": self.op_gap_s} if self.op_gap_s else {}
        return {"wires": wires, **gap, **({"shared": True} if shared else {})}


class _ComputeStream:
    """One rank's ops, one after the other."""

    def __init__(
        self,
        simulation: _Simulation,
        rank: int,
        steps: Sequence[Step],
        durations: Sequence[float],
        clock: OpClock | None,
        paired: Collection[Op],
    ) -> None:
        self.simulation = simulation
        self.rank = rank
        self.steps = list(steps)
        self.durations = durations
        self.clock = clock
        self.gaps_s = [simulation.op_gap_s] * len(steps)  # after each op
        # slot of the backward of a pair: the forward, whose result is sent with its own
        self.held_back = {}
        for at, step in enumerate(steps if paired else ()):
            if step.op in paired:  # start together, send together
                both = step.awaited_slots + steps[at + 1].awaited_slots
                self.steps[at] = step._replace(awaited_slots=both, destination=None)
                self.gaps_s[at] = 0.0
                if step.destination is not None:
                    self.held_back[steps[at + 1].slot] = step
        self.wires: dict[int, SerialWire | FairWire] = {}  # by destination
        self.starts: list[float] = []
        self.ends: list[float] = []
        # slot of an op of another rank: when its result can be used here
        self.arrival_s: dict[int, float] = {}
        self.waiting_for: int | None = (
            None  # slot of the op without whose result this rank stands still
        )

    def start(self) -> None:
        """Begin with the first op."""
        self.generator = self._ops()
        self.resume = self.generator.send  # what events call: it goes on from its `yield`
        self.resume(None)

    def close(self) -> None:
        """Let go of all that refers back here, so that a run's memory is free after it: the garbage
        collector would come far too late."""
        self.generator.close()
        self.wires.clear()
        del self.simulation

    def _ops(self) -> Generator[None, Any, None]:
        simulation, arrival_s, starts, ends, resume, send = (
            self.simulation,
            self.arrival_s,
            self.starts,
            self.ends,
            self.resume,
            self._send,
        )
        env, timeout, processor = simulation.env, simulation.env.timeout, simulation.processor
        held_back, clock = self.held_back, self.clock
        # the latter: when the rank has handed over its last message, and can go on
        now = ready_s = 0.0
        for step, work_s, gap_s in zip(self.steps, self.durations, self.gaps_s):
            op, own_slot, awaited_slots, destination = step
            start_s = free_s = ready_s if ready_s > now else now
            for slot in awaited_slots:
                if slot not in arrival_s:
                    self.waiting_for = slot
                    yield  # until its arrival time is known
                    now = env.now
                if arrival_s[slot] > start_s:
                    start_s = arrival_s[slot]
            starts.append(start_s)
            if clock is not None:
                work_s = clock.op_s(op, free_s, start_s)
            if processor is None:
                timeout(start_s - now + work_s).callbacks.append(resume)
            else:
                timeout(start_s - now).callbacks.append(resume)
                yield  # until its inputs are there
                processor.serve(work_s).callbacks.append(resume)
            yield  # until its work is done
            now = env.now
            if now < start_s:  # a rounding of `start_s - now`: no op ends before it starts
                now = start_s
            ends.append(now)
            ready_s = now + gap_s
            if destination is not None:
                ready_s += send(step, now)
            if own_slot in held_back:
                ready_s += send(held_back[own_slot], now)
        yield  # for good

    def _send(self, step: Step, now: float) -> float:
        """Hand `step`'s result to the wire; the seconds that this takes the rank."""
        assert step.destination is not None
        wire = self.wires.get(step.destination)
        if wire is None:
            wire = self.wires[step.destination] = self.simulation.wire(self.rank, step.destination)
        wire.send(step, self.simulation.message_bytes, now)
        return wire.overhead_s

    def columns(self) -> dict[str, tuple[list[Any], ...]]:
        """What `Trace.columns` gives, of this rank alone.

        Live microbatches are one more at each start of F, one fewer at each end of B or W;
        `OpMemory` says what they hold.
        """
        texts, kinds = self.simulation.program.texts, [step.op[:2] for step in self.steps]
        held = {kind: self.simulation.memory.change(*kind) for kind in set(kinds)}
        return {
            COMPUTE: (
                [self.rank] * len(kinds),
                [texts[step.slot] for step in self.steps],
                self.starts,
                self.ends,
                [kind for _, kind in kinds],
            ),
            LIVE: self._points([LIVE_CHANGE[kind] for _, kind in kinds]),
            ACTIVATIONS: self._points([held[kind] for kind in kinds]),
        }

    def _points(self, changes: Sequence[float]) -> tuple[list[Any], ...]:
        """(ranks, times, amounts): where an amount changes, and what it then is."""
        times = [
            start_s if change > 0 else end_s
            for change, start_s, end_s in zip(changes, self.starts, self.ends)
        ]
        times, amounts = (
            list(compress(times, changes)),
            list(compress(accumulate(changes), changes)),
        )
        return [self.rank] * len(times), times, amounts

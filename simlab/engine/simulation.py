"""Discrete-event simulation of a program: a compute stream per GPU, a wire per pair of ranks that talk.

A stream is a generator that SimPy's events resume, as a SimPy process is, but without the process object around it: an op
then costs one event, and a rank that stands waiting costs none. That is what makes a program of 65,536 ops a matter of a
fraction of a second (`make bench`).
"""

from itertools import accumulate, compress, repeat

import simpy

from simlab.cost import OpMemory
from simlab.engine.sharing import FairShare, FairWire, SerialWire
from simlab.errors import InputError
from simlab.garbage import no_garbage_collection
from simlab.hardware import Link
from simlab.program import LIVE_CHANGE
from simlab.trace import ACTIVATIONS, COMPUTE, LIVE, SEND, SHARE, MemoryPoint, Span, Trace, rows
from simlab.validation import deadlock

_WIRES = {"serial": SerialWire, "fair": FairWire}


def simulate(program, times, *, link=None, message_bytes=0, cores=None, memory=None, op_gap_s=0.0):
    """What `program` does when its ops take `times`: a `Trace` that starts at 0 s.

    times:         `OpTimes`.
    link:          the `Link` between any two ranks, or {(source, destination): Link}; None: messages take no time.
    message_bytes: size of one microbatch's activation at a stage boundary (and of its gradient).
    cores:         None where every rank has a processor of its own. A number where the ranks share that many
                   (processes on one machine): an op then runs at min(1, cores / running ops) of its speed.

    op_gap_s:      what a rank needs between two ops (to note one and find out the next), s.
    memory:        `OpMemory`; by default a stage holds 1 / (stages per rank) for a microbatch: activations are then counted
                   in what a microbatch takes on a rank that has its equal share of the model.

    A rank runs its ops in order, each as soon as what it needs is there. A result for another rank is handed to
    the link when the op ends; the sender goes on after the link's overhead. A pair (`Program.paired`) starts when
    both its ops could, and both results are there when it ends. Memory is taken when an op starts and given back when
    one ends. Leaves out: what computing and communicating cost each other.

    Raises `DeadlockError` that names the circle if the program cannot end.
    """
    with no_garbage_collection():
        return _Simulation(program, times, Link() if link is None else link, message_bytes, cores, memory, op_gap_s).run()


class _Simulation:
    """All state of one run."""

    def __init__(self, program, times, link, message_bytes, cores, memory, op_gap_s):
        if cores is not None and not cores > 0:
            raise InputError(f"{cores!r} cores: give a number above 0")
        if not message_bytes >= 0:
            raise InputError(f"{message_bytes!r} bytes in a message: give 0 or more")
        if not 0 <= op_gap_s < float("inf"):
            raise InputError(f"{op_gap_s!r} s between ops: give a finite number of seconds, 0 or more")
        self.program = program
        self.memory = memory or OpMemory(activations=len(program.ranks) / max(1, program.stages), unit=SHARE)
        self.link = link
        self.op_gap_s = op_gap_s
        self.message_bytes = message_bytes
        self.env = simpy.Environment()
        self.processor = FairShare(self.env, cores) if cores else None
        self.messages = []
        parts = zip(program.lowered, times.durations(program))
        self.streams = [_ComputeStream(self, rank, *part, program.paired) for rank, part in enumerate(parts)]

    def run(self):
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

    def wire(self, source, destination):
        """A new wire from `source` to `destination`."""
        link = self.link if isinstance(self.link, Link) else self.link.get((source, destination))
        if link is None:
            raise InputError(f"no link from rank {source} to rank {destination}, but the program sends along it")
        receiver, messages, message_bytes = self.streams[destination], self.messages, self.message_bytes
        texts, row = self.program.texts, tuple.__new__  # as `rows` makes them, without a copy of them all

        def deliver(step, sent_s, arrival_s):
            messages.append(row(Span, (source, SEND, texts[step.slot], sent_s, arrival_s, message_bytes, destination)))
            receiver.arrival_s[step.slot] = arrival_s
            if receiver.waiting_for == step.slot:
                receiver.waiting_for = None
                receiver.resume(None)

        return _WIRES[link.sharing](self.env, link, deliver)

    def trace(self):
        columns = {COMPUTE: ([], [], [], []), LIVE: ([], [], []), ACTIVATIONS: ([], [], [])}
        for stream in self.streams:
            for name, part in stream.columns().items():
                for column, values in zip(columns[name], part):
                    column.extend(values)
        ranks, *others = columns[COMPUTE]
        spans = self.messages + rows(Span, zip(ranks, repeat(COMPUTE), *others, repeat(0), repeat(-1)))
        memory = []
        for category in (LIVE, ACTIVATIONS):
            ranks, *others = columns[category]
            memory += rows(MemoryPoint, zip(ranks, repeat(category), *others))
        metadata = {"name": self.program.name, "source": "simulated", "ranks": len(self.program.ranks),
                    "stages": self.program.stages, "microbatches": self.program.microbatches,
                    "units": {LIVE: "microbatches", ACTIVATIONS: self.memory.unit}}  # fmt: skip
        trace = Trace(spans, memory, metadata)
        trace.keep(columns)
        return trace


class _ComputeStream:
    """One rank's ops, one after the other."""

    def __init__(self, simulation, rank, steps, durations, paired):
        self.simulation = simulation
        self.rank = rank
        self.steps = list(steps)
        self.durations = durations
        self.gaps_s = [simulation.op_gap_s] * len(steps)  # after each op
        self.held_back = {}  # slot of the backward of a pair: the forward, whose result is sent with its own
        for at, step in enumerate(steps if paired else ()):
            if step.op in paired:  # start together, send together
                both = step.awaited_slots + steps[at + 1].awaited_slots
                self.steps[at] = step._replace(awaited_slots=both, destination=None)
                self.gaps_s[at] = 0.0
                if step.destination is not None:
                    self.held_back[steps[at + 1].slot] = step
        self.wires = {}  # by destination
        self.starts, self.ends = [], []
        self.arrival_s = {}  # slot of an op of another rank: when its result can be used here
        self.waiting_for = None  # slot of the op without whose result this rank stands still

    def start(self):
        """Begin with the first op."""
        self.generator = self._ops()
        self.resume = self.generator.send  # what events call: it goes on from its `yield`
        self.resume(None)

    def close(self):
        """Let go of all that refers back here, so that a run's memory is free after it: the garbage collector would come far too late."""
        self.generator.close()
        self.wires.clear()
        del self.simulation

    def _ops(self):
        simulation, arrival_s, starts, ends, resume, send = self.simulation, self.arrival_s, self.starts, self.ends, self.resume, self._send
        env, timeout, processor = simulation.env, simulation.env.timeout, simulation.processor
        held_back = self.held_back
        now = ready_s = 0.0  # the latter: when the rank has handed over its last message, and can go on
        for step, work_s, gap_s in zip(self.steps, self.durations, self.gaps_s):
            _, own_slot, awaited_slots, destination = step
            start_s = ready_s if ready_s > now else now
            for slot in awaited_slots:
                if slot not in arrival_s:
                    self.waiting_for = slot
                    yield  # until its arrival time is known
                    now = env.now
                if arrival_s[slot] > start_s:
                    start_s = arrival_s[slot]
            starts.append(start_s)
            if processor is None:
                timeout(start_s - now + work_s).callbacks.append(resume)
            else:
                timeout(start_s - now).callbacks.append(resume)
                yield  # until its inputs are there
                processor.serve(work_s).callbacks.append(resume)
            yield  # until its work is done
            now = env.now
            ends.append(now)
            ready_s = now + gap_s
            if destination is not None:
                ready_s += send(step, now)
            if own_slot in held_back:
                ready_s += send(held_back[own_slot], now)
        yield  # for good

    def _send(self, step, now):
        """Hand `step`'s result to the wire; the seconds that this takes the rank."""
        wire = self.wires.get(step.destination)
        if wire is None:
            wire = self.wires[step.destination] = self.simulation.wire(self.rank, step.destination)
        wire.send(step, self.simulation.message_bytes, now)
        return wire.overhead_s

    def columns(self):
        """What `Trace.columns` gives, of this rank alone.

        Live microbatches are one more at each start of F, one fewer at each end of B or W; `OpMemory` says what they hold.
        """
        texts, kinds = self.simulation.program.texts, [step.op[:2] for step in self.steps]
        held = {kind: self.simulation.memory.change(*kind) for kind in set(kinds)}
        return {
            COMPUTE: ([self.rank] * len(kinds), [texts[step.slot] for step in self.steps], self.starts, self.ends),
            LIVE: self._points([LIVE_CHANGE[kind] for _, kind in kinds]),
            ACTIVATIONS: self._points([held[kind] for kind in kinds]),
        }

    def _points(self, changes):
        """(ranks, times, amounts): where an amount changes, and what it then is."""
        times = [start_s if change > 0 else end_s for change, start_s, end_s in zip(changes, self.starts, self.ends)]
        times, amounts = list(compress(times, changes)), list(compress(accumulate(changes), changes))
        return [self.rank] * len(times), times, amounts

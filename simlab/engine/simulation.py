"""Discrete-event simulation of a program: a compute stream per GPU, a wire per pair of ranks that talk.

Streams and wires live on SimPy's clock and queue. A stream is a callback on each op's end, not a SimPy process:
an op then costs one event, and a rank that stands waiting costs none, which is what makes a program of 65,536 ops
a matter of a fraction of a second (`make bench`).
"""

import gc
from contextlib import contextmanager
from itertools import accumulate, compress, repeat

import simpy

from simlab.engine.sharing import FairShare, FairWire, SerialWire
from simlab.errors import InputError
from simlab.hardware import Link
from simlab.trace import COMPUTE, LIVE, SEND, MemoryPoint, Span, Trace, rows
from simlab.validation import deadlock

_WIRES = {"serial": SerialWire, "fair": FairWire}
_LIVE_CHANGE = {"F": 1, "B": -1, "I": 0, "W": -1}


def simulate(program, times, *, link=None, message_bytes=0, cores=None):
    """What `program` does when its ops take `times`: a `Trace` that starts at 0 s.

    times:         `OpTimes`.
    link:          the `Link` between any two ranks, or {(source, destination): Link}; None: messages take no time.
    message_bytes: size of one microbatch's activation at a stage boundary (and of its gradient).
    cores:         None where every rank has a processor of its own. A number where the ranks share that many
                   (processes on one machine): an op then runs at min(1, cores / running ops) of its speed.

    A rank runs its ops in order, each as soon as what it needs is there. A result for another rank is handed to
    the link when the op ends; the sender goes on after the link's overhead. Activations of a microbatch are held from the start of
    F to the end of B (or W). Leaves out: memory capacity, what computing and communicating cost each other.

    Raises `DeadlockError` that names the circle if the program cannot end.
    """
    with _no_garbage_collection():
        return _Simulation(program, times, Link() if link is None else link, message_bytes, cores).run()


@contextmanager
def _no_garbage_collection():
    """A run makes a few long-lived objects per op and no garbage; looking for some takes a third of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


class _Simulation:
    """All state of one run."""

    def __init__(self, program, times, link, message_bytes, cores):
        if cores is not None and not cores > 0:
            raise InputError(f"{cores!r} cores: give a number above 0")
        if not message_bytes >= 0:
            raise InputError(f"{message_bytes!r} bytes in a message: give 0 or more")
        self.program = program
        self.seconds = times.table(program)
        self.link = link
        self.message_bytes = message_bytes
        self.env = simpy.Environment()
        self.processor = FairShare(self.env, cores) if cores else None
        self.messages = []
        self.streams = [_ComputeStream(self, rank, steps) for rank, steps in enumerate(program.lowered)]

    def run(self):
        for stream in self.streams:
            stream.advance(0.0)
        self.env.run()
        done = [len(stream.ends) for stream in self.streams]
        if any(count < len(ops) for count, ops in zip(done, self.program.ranks)):
            raise deadlock(self.program, done)
        return self.trace()

    def wire(self, source, destination):
        """A new wire from `source` to `destination`."""
        link = self.link if isinstance(self.link, Link) else self.link.get((source, destination))
        if link is None:
            raise InputError(f"no link from rank {source} to rank {destination}, but the program sends along it")

        receiver, messages, message_bytes = self.streams[destination], self.messages, self.message_bytes

        def deliver(step, sent_s, arrival_s):
            messages.append((source, SEND, step.text, sent_s, arrival_s, message_bytes, destination))
            receiver.arrival_s[step.slot] = arrival_s
            if receiver.waiting_for == step.slot:
                receiver.waiting_for = None
                receiver.advance(self.env.now)

        return _WIRES[link.sharing](self.env, link, deliver)

    def trace(self):
        spans, memory = rows(Span, self.messages), []
        for stream in self.streams:
            spans.extend(stream.spans())
            memory.extend(stream.memory_points())
        metadata = {"name": self.program.name, "source": "simulated", "ranks": len(self.program.ranks),
                    "stages": self.program.stages, "microbatches": self.program.microbatches,
                    "units": {LIVE: "microbatches"}}  # fmt: skip
        return Trace(spans, memory, metadata)


class _ComputeStream:
    """One rank's ops, one after the other: `advance` starts the next one, `ended` is SimPy's callback at its end."""

    def __init__(self, simulation, rank, steps):
        self.simulation = simulation
        self.env = simulation.env
        self.processor = simulation.processor
        self.rank = rank
        self.steps = steps
        self.work_s = [simulation.seconds[step.op[:2]] for step in steps]
        self.starts, self.ends = [], []
        self.arrival_s = {}  # slot of an op of another rank: when its result can be used here
        self.waiting_for = None  # slot of the op without whose result this rank stands still
        self.ready_s = 0.0  # when it has handed over its last message
        self.wires = {}  # by destination

    def advance(self, now):
        """Start the next op at the moment its inputs are there; if one is not even under way, wait to be called."""
        at = len(self.ends)
        if at == len(self.steps):
            return
        start_s = self.ready_s if self.ready_s > now else now
        for slot in self.steps[at].awaited_slots:
            arrival_s = self.arrival_s.get(slot)
            if arrival_s is None:
                self.waiting_for = slot
                return
            if arrival_s > start_s:
                start_s = arrival_s
        self.starts.append(start_s)
        work_s, processor = self.work_s[at], self.processor
        if processor is None:
            self.env.timeout(start_s - now + work_s).callbacks.append(self.ended)
        else:
            self.env.timeout(start_s - now).callbacks.append(lambda _: processor.serve(work_s).callbacks.append(self.ended))

    def ended(self, _):
        """SimPy's callback at the end of the op that runs: send its result, go on to the next."""
        now = self.env.now
        step = self.steps[len(self.ends)]
        self.ends.append(now)
        if step.destination is not None:
            wire = self.wires.get(step.destination)
            if wire is None:
                wire = self.wires[step.destination] = self.simulation.wire(self.rank, step.destination)
            wire.send(step, self.simulation.message_bytes, now)
            self.ready_s = now + wire.overhead_s
        self.advance(now)

    def spans(self):
        texts = [step.text for step in self.steps]
        return rows(Span, zip(repeat(self.rank), repeat(COMPUTE), texts, self.starts, self.ends, repeat(0), repeat(-1)))

    def memory_points(self):
        """Live microbatches: one more from each start of F, one fewer from each end of B or W."""
        changes = [_LIVE_CHANGE[step.op.kind] for step in self.steps]
        times = [start_s if change > 0 else end_s for change, start_s, end_s in zip(changes, self.starts, self.ends)]
        points = zip(repeat(self.rank), repeat(LIVE), times, accumulate(changes))
        return rows(MemoryPoint, compress(points, changes))

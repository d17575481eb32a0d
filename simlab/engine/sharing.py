"""Resources that a simulation shares: by queueing (`SerialWire`) or by splitting (`FairShare`,
`FairWire`, `Wires`)."""

import heapq
from collections.abc import Callable, Collection, Hashable
from itertools import count
from typing import Any

import simpy

from simlab.spec.hardware import Link

Deliver = Callable[[Any, float, float], None]
"""What is called with a message, when it was sent and when it arrives, s."""


class SerialWire:
    """A link that carries one message's bits at a time, in the order sent.

    `deliver(message, sent_s, arrival_s)` is called as soon as the arrival time is certain: here,
    when it is sent.
    """

    def __init__(self, env: simpy.Environment, link: Link, deliver: Deliver) -> None:
        self._link = link
        self._deliver = deliver
        self.overhead_s = link.overhead_s
        self._free_at_s = 0.0

    def send(self, message: Any, size_bytes: float, now: float) -> None:
        """Send `size_bytes`; `now` is the environment's time."""
        starts_s = self._free_at_s if self._free_at_s > now else now
        self._free_at_s = starts_s + size_bytes / self._link.bandwidth_bytes_per_s
        self._deliver(message, now, self._free_at_s + self._link.latency_s)


class FairWire:
    """A link whose messages share the bandwidth equally while they overlap.

    `deliver` is called when the last bit has left: until then a later message can still slow this
    one.
    """

    def __init__(self, env: simpy.Environment, link: Link, deliver: Deliver) -> None:
        self._env = env
        self._link = link
        self._deliver = deliver
        self.overhead_s = link.overhead_s
        self._share = FairShare(env, capacity=1.0)

    def send(self, message: Any, size_bytes: float, now: float) -> None:
        """Send `size_bytes`; `now` is the environment's time."""
        sent = self._share.serve(size_bytes / self._link.bandwidth_bytes_per_s)
        sent.callbacks.append(
            lambda _: self._deliver(message, now, self._env.now + self._link.latency_s)
        )


class FairShare:
    """Processor sharing: `capacity` seconds of service per second, split equally, at most 1 to each
    job.

    A job that asks for w seconds of service ends w seconds later if it is alone. All jobs present
    are served at the same rate r(n) = min(1, capacity / n), so each needs only the total service V
    at which it is done, V at its arrival plus w; jobs finish in the order of that number (the
    "virtual time" of fair queueing).
    """

    def __init__(self, env: simpy.Environment, capacity: float) -> None:
        self._env = env
        self._capacity = capacity
        self._jobs: list[Any] = []  # heap of (V at which it is done, arrival number, event)
        self._arrivals = count()
        self._served_s = 0.0  # V
        self._updated_s = env.now
        self._alarm = 0  # only the newest alarm counts

    def serve(self, work_s: float) -> simpy.Event:
        """An event that happens when `work_s` seconds of service have been given."""
        self._advance()
        done = self._env.event()
        heapq.heappush(self._jobs, (self._served_s + work_s, next(self._arrivals), done))
        self._set_alarm()
        return done

    def _rate(self) -> float:
        return min(1.0, self._capacity / len(self._jobs))

    def _advance(self) -> None:
        now = self._env.now
        if self._jobs:
            self._served_s += (now - self._updated_s) * self._rate()
        self._updated_s = now

    def _set_alarm(self) -> None:
        self._alarm += 1
        if self._jobs:
            remaining_s = max(0.0, self._jobs[0][0] - self._served_s)
            alarm = self._env.timeout(remaining_s / self._rate(), value=self._alarm)
            alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm.value != self._alarm:
            return  # somebody came since; a newer alarm is set
        self._advance()
        # rounding must not leave the first job behind
        self._served_s = max(self._served_s, self._jobs[0][0])
        while self._jobs and self._jobs[0][0] <= self._served_s:
            heapq.heappop(self._jobs)[2].succeed()
        self._set_alarm()


class Wires:
    """Wires that jobs use several of at a time, each job a share of every one.

    Where the shares that are in use on a wire add up to more than 1, all jobs on it are that much
    slower; a job goes at the rate of its slowest wire. So one alone ends after the seconds that it
    asks for, and two that each want all of a wire take twice as long together.
    Leaves out: that what one job cannot use, because another wire holds it up, is free for others
    (max-min fairness, `engine.network`).
    """

    def __init__(self, env: simpy.Environment) -> None:
        self._env = env
        self._jobs: dict[Any, Any] = {}  # event: [seconds left at full rate, wires, share]
        self._in_use: dict[Hashable, float] = {}  # wire: sum of shares
        self._updated_s, self._alarm = env.now, 0

    def serve(self, wires: Collection[Hashable], share: float, seconds: float) -> simpy.Event:
        """An event that happens when a job is done that takes `seconds` alone."""
        self._advance()
        done = self._env.event()
        self._jobs[done] = [seconds, wires, share]
        for wire in wires:
            self._in_use[wire] = self._in_use.get(wire, 0.0) + share
        self._set_alarm()
        return done

    def _rate(self, wires: Collection[Hashable]) -> float:
        return 1 / max(1.0, *(self._in_use[wire] for wire in wires))

    def _advance(self) -> None:
        passed_s = self._env.now - self._updated_s
        for job in self._jobs.values():
            job[0] = max(0.0, job[0] - passed_s * self._rate(job[1]))
        self._updated_s = self._env.now

    def _set_alarm(self) -> None:
        self._alarm += 1
        if self._jobs:
            self._next = min(
                self._jobs, key=lambda done: self._jobs[done][0] / self._rate(self._jobs[done][1])
            )
            left_s, wires, _ = self._jobs[self._next]
            self._env.timeout(left_s / self._rate(wires), self._alarm).callbacks.append(
                self._on_alarm
            )

    def _on_alarm(self, alarm: simpy.Event) -> None:
        if alarm.value != self._alarm:
            return  # somebody came since; a newer alarm is set
        self._advance()
        self._jobs[self._next][0] = 0.0  # whatever rounding has left of it
        for done in [done for done, job in self._jobs.items() if not job[0]]:
            _, wires, share = self._jobs.pop(done)
            for wire in wires:
                self._in_use[wire] = max(0.0, self._in_use[wire] - share)
            done.succeed()
        self._set_alarm()

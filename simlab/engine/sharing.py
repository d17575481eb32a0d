"""Resources that a simulation shares: by queueing (`SerialWire`) or by splitting (`FairShare`, `FairWire`)."""

import heapq
from itertools import count


class SerialWire:
    """A link that carries one message's bits at a time, in the order sent.

    `deliver(message, sent_s, arrival_s)` is called as soon as the arrival time is certain: here, when it is sent.
    """

    def __init__(self, env, link, deliver):
        self._link = link
        self._deliver = deliver
        self.overhead_s = link.overhead_s
        self._free_at_s = 0.0

    def send(self, message, size_bytes, now):
        """Send `size_bytes`; `now` is the environment's time."""
        starts_s = self._free_at_s if self._free_at_s > now else now
        self._free_at_s = starts_s + size_bytes / self._link.bandwidth_bytes_per_s
        self._deliver(message, now, self._free_at_s + self._link.latency_s)


class FairWire:
    """A link whose messages share the bandwidth equally while they overlap.

    `deliver` is called when the last bit has left: until then a later message can still slow this one.
    """

    def __init__(self, env, link, deliver):
        self._env = env
        self._link = link
        self._deliver = deliver
        self.overhead_s = link.overhead_s
        self._share = FairShare(env, capacity=1.0)

    def send(self, message, size_bytes, now):
        """Send `size_bytes`; `now` is the environment's time."""
        sent = self._share.serve(size_bytes / self._link.bandwidth_bytes_per_s)
        sent.callbacks.append(lambda _: self._deliver(message, now, self._env.now + self._link.latency_s))


class FairShare:
    """Processor sharing: `capacity` seconds of service per second, split equally, at most 1 to each job.

    A job that asks for w seconds of service ends w seconds later if it is alone. All jobs present are served at
    the same rate r(n) = min(1, capacity / n), so each needs only the total service V at which it is done, V at its
    arrival plus w; jobs finish in the order of that number (the "virtual time" of fair queueing).
    """

    def __init__(self, env, capacity):
        self._env = env
        self._capacity = capacity
        self._jobs = []  # heap of (V at which it is done, arrival number, event)
        self._arrivals = count()
        self._served_s = 0.0  # V
        self._updated_s = env.now
        self._alarm = 0  # only the newest alarm counts

    def serve(self, work_s):
        """An event that happens when `work_s` seconds of service have been given."""
        self._advance()
        done = self._env.event()
        heapq.heappush(self._jobs, (self._served_s + work_s, next(self._arrivals), done))
        self._set_alarm()
        return done

    def _rate(self):
        return min(1.0, self._capacity / len(self._jobs))

    def _advance(self):
        now = self._env.now
        if self._jobs:
            self._served_s += (now - self._updated_s) * self._rate()
        self._updated_s = now

    def _set_alarm(self):
        self._alarm += 1
        if self._jobs:
            remaining_s = max(0.0, self._jobs[0][0] - self._served_s)
            alarm = self._env.timeout(remaining_s / self._rate(), value=self._alarm)
            alarm.callbacks.append(self._on_alarm)

    def _on_alarm(self, alarm):
        if alarm.value != self._alarm:
            return  # somebody came since; a newer alarm is set
        self._advance()
        self._served_s = max(self._served_s, self._jobs[0][0])  # rounding must not leave the first job behind
        while self._jobs and self._jobs[0][0] <= self._served_s:
            heapq.heappop(self._jobs)[2].succeed()
        self._set_alarm()

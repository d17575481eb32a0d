"""What a training is doing, in a line now and then: step, loss, time, tokens a second."""

import time

from simlab.units import seconds_text

EVERY_S = 1.0


class Progress:
    """Of `job`'s training; `say` is told."""

    def __init__(self, job, say):
        self.job, self.say = job, say
        self.tokens = job.batch * job.sizes["seq"]
        self.total = job.warmup + job.steps
        self._said_s = time.monotonic()

    def step(self, number, loss, seconds):
        """A step is over."""
        now_s = time.monotonic()
        if now_s - self._said_s < EVERY_S and number + 1 < self.total:
            return
        self._said_s = now_s
        done = round(20 * (number + 1) / self.total)
        bar = "#" * done + "." * (20 - done)
        rate = f"{self.tokens / seconds:,.0f} tokens/s"
        self.say(f"[{bar}] step {number + 1} of {self.total}: loss {loss:.4f}, {seconds_text(seconds)}, {rate}")

"""What a training is doing, in a line now and then: step, loss, time, tokens a second, MFU, waiting, memory, and who is slow."""

import time

from realrun.faults import stragglers
from simlab.cost.roofline import peak_flops
from simlab.units import bytes_text, seconds_text

EVERY_S = 1.0


class Progress:
    """Of `job`'s training; `say` is told. slow_down: of the cluster in the box, if there is one."""

    def __init__(self, job, say, slow_down=None):
        self.job, self.say, self.slow_down = job, say, slow_down
        self.tokens = job.batch * job.sizes["seq"]
        self.total = job.warmup + job.steps
        self._said_s = time.monotonic()
        self._computed_s = [0.0] * job.ranks  # since the last line: one step says little of who is slow

    def step(self, number, loss, seconds, vitals):
        """A step is over. vitals: of each rank, see `PlanSession`."""
        now_s = time.monotonic()
        self._computed_s = [total + rank["computed_s"] for total, rank in zip(self._computed_s, vitals)]
        if now_s - self._said_s < EVERY_S and number + 1 < self.total:
            return
        self._said_s = now_s
        done = round(20 * (number + 1) / self.total)
        parts = [f"loss {loss:.4f}", seconds_text(seconds), f"{self.tokens / seconds:,.0f} tokens/s"]
        if self.slow_down is not None:
            parts.append(f"MFU {self.mfu(seconds / self.slow_down):.1%}")
        waited_s, computed_s = (sum(rank[what] for rank in vitals) for what in ("waited_s", "computed_s"))
        parts.append(f"{waited_s / (waited_s + computed_s):.0%} waiting")
        parts.append(f"{bytes_text(max(rank['activations'] for rank in vitals))} of activations")
        slow = stragglers(self._computed_s, self.job.executed)
        self._computed_s = [0.0] * self.job.ranks
        parts += [f"rank {rank} computes {times:.2f} times as long as its peers" for rank, times in slow]
        self.say(f"[{'#' * done}{'.' * (20 - done)}] step {number + 1} of {self.total}: {', '.join(parts)}")

    def mfu(self, step_s):
        """Of a step in the box, were it not slowed down: see `simlab.Prediction.mfu`."""
        job = self.job
        seq = job.box_plan.seq or job.box_model.seq
        flops = job.box_model.flops_per_token(seq) * job.batch * seq
        precision = "fp32" if job.given.precision == "fp32" else "bf16"
        return flops / step_s / (job.ranks * peak_flops(job.box_cluster.gpu, precision))

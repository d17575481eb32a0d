"""What a training is doing, now and then: step, loss, time, tokens a second, MFU, waiting, memory,
and who is slow."""

import time
from collections import deque
from typing import NotRequired, TypedDict

from realrun.run.faults import stragglers
from realrun.run.job import Job
from simlab.cost.roofline import peak_flops
from simlab.schema import MaybeNan
from simlab.spec.model import MFU_CONVENTION
from simlab.units import bytes_text, seconds_text

EVERY_S = 1.0
KEPT = 300
"""How many things that were said are kept: the last ones."""


class Vitals(TypedDict):
    """How a rank is, of one step or of several."""

    computed_s: float
    waited_s: float
    activations: float
    """The peak of their bytes."""
    loss: NotRequired[MaybeNan]
    """Its part of a step's."""


class Said(TypedDict):
    """What is said of a training now and then."""

    name: str
    step: int
    steps: int
    step_s: float
    losses: list[MaybeNan]
    """Of each step since it was last said."""
    tokens_per_s: float
    mfu: float | None
    """In a box."""
    ranks: list[Vitals]
    """Of each, since it was last said."""
    slow: list[tuple[int, float]]
    """Ranks, and how many times as long as their peers they compute."""


class TrainingProgress:
    """Of `job`'s training. time_scale: of the cluster in the box, if there is one. said: the last `KEPT`
    things that were said."""

    def __init__(self, job: Job, time_scale: float | None = None) -> None:
        self.job, self.time_scale = job, time_scale
        self.said: deque[Said] = deque(maxlen=KEPT)
        self.tokens = job.batch * job.sizes["seq"]
        self.total = job.warmup + job.steps
        self._said_s = time.monotonic()
        self._begin()

    def _begin(self) -> None:
        self._losses: list[float] = []
        self._ranks: list[Vitals] = [
            {"computed_s": 0.0, "waited_s": 0.0, "activations": 0.0} for _ in range(self.job.ranks)
        ]

    def step(
        self, number: int, loss: float, seconds: float, vitals: list[dict[str, float]]
    ) -> Said | None:
        """A step is over. vitals: of each rank, see `Training`. What is to be said of the steps
        since it was last, or None: not yet."""
        now_s = time.monotonic()
        self._losses.append(loss)
        for rank, its in zip(self._ranks, vitals):
            rank["computed_s"] += its["computed_s"]
            rank["waited_s"] += its["waited_s"]
            rank["activations"] = max(rank["activations"], its["activations"])
        if now_s - self._said_s < EVERY_S and number + 1 < self.total:
            return None
        self._said_s = now_s
        self.said.append(
            {
                "name": self.job.name,
                "step": number + 1,
                "steps": self.total,
                "step_s": seconds,
                "losses": self._losses,
                "tokens_per_s": self.tokens / seconds,
                "mfu": None if self.time_scale is None else self.mfu(seconds / self.time_scale),
                "ranks": self._ranks,
                "slow": stragglers([rank["computed_s"] for rank in self._ranks], self.job.executed),
            }
        )
        self._begin()  # one step says little of who is slow
        return self.said[-1]

    def mfu(self, step_s: float) -> float:
        """Of a step in the box, were it not slowed down: see `simlab.Prediction.mfu`."""
        job = self.job
        seq = job.box_plan.seq or job.box_model.seq
        flops = job.box_model.flops_per_token(seq) * job.batch * seq
        precision = "fp32" if job.given.precision == "fp32" else "bf16"
        return flops / step_s / (job.ranks * peak_flops(job.box_cluster.gpu, precision))


def line(now: Said) -> str:
    """The text of one thing that `TrainingProgress` says."""
    done = round(20 * now["step"] / now["steps"])
    step, *rest = figures(now)
    slow = [
        f"rank {rank} computes {times:.2f} times as long as its peers"
        for rank, times in now["slow"]
    ]
    left_s = (now["steps"] - now["step"]) * now["step_s"]
    left = [f"about {left_s / 60:,.0f} min left"] if left_s >= 60 else []
    return f"[{'#' * done}{'.' * (20 - done)}] {step}: {', '.join([*left, *rest, *slow])}"


def figures(now: Said) -> list[str]:
    """[its step, loss, step time, tokens a second, MFU in a box and how it counts attention,
    waiting, activations], as texts."""
    waited_s, computed_s = (
        sum(rank[what] for rank in now["ranks"]) for what in ("waited_s", "computed_s")
    )
    return [
        f"step {now['step']} of {now['steps']}",
        f"loss {now['losses'][-1]:.4f}",
        seconds_text(now["step_s"]),
        f"{now['tokens_per_s']:,.0f} tokens/s",
        *([] if now["mfu"] is None else [f"MFU {now['mfu']:.1%} ({MFU_CONVENTION})"]),
        f"{waited_s / (waited_s + computed_s):.0%} waiting",
        f"{bytes_text(max(rank['activations'] for rank in now['ranks']))} of activations",
    ]

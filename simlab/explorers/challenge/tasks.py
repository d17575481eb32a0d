"""Challenges as data: a model on a cluster, a goal, and what of the plan may be changed for it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.training import Prediction, predict
from simlab.units import GIB
from simlab.views.chart import Words

VALUES: dict[str, tuple[Any, ...]] = {
    "nodes": (1, 2, 4, 8, 16),
    "tp": (1, 2, 4, 8, 16),
    "pp": (1, 2, 4, 8, 16),
    "cp": (1, 2, 4, 8, 16, 32),
    "ep": (1, 2, 4, 8, 16, 32, 64),
    "microbatch_size": (1, 2, 4, 8),
    "zero": (0, 1, 2, 3),
    "recompute": ("none", "outputs", "full"),
    "schedule": ("gpipe", "1f1b", "interleaved-1f1b", "zb-h1", "zb-h2", "zb-v", "v-half", "v-min"),
    "precision": ("bf16", "fp8"),
}
"""{what a task may leave to the learner: its values}"""
START = {name: values[0] for name, values in VALUES.items()} | {"schedule": "1f1b"}
"""Where they start in every task that leaves them to the learner."""


class Bound(NamedTuple):
    """A bound of a goal: the figure of a prediction that it is about, whether that must be at least the
    bound (else at most), and the bound in words."""

    figure: Callable[[Prediction], float]
    at_least: bool
    says: Callable[[float], Words]

    def keeps(self, found: Prediction, bound: float) -> bool:
        """Whether the figure keeps the bound."""
        figure = self.figure(found)
        return figure >= bound if self.at_least else figure <= bound


BOUNDS = {
    "mfu": Bound(
        lambda found: found.mfu,
        True,
        lambda bound: Words(f"MFU of {bound:.0%} or more", f"MFU 不低于 {bound:.0%}"),
    ),
    "step_s": Bound(
        lambda found: found.step_s,
        False,
        lambda bound: Words(f"a step of {bound:g} s at most", f"一步不超过 {bound:g} s"),
    ),
    "activations_gib": Bound(
        lambda found: found.memory_bytes["activations"] / GIB,
        False,
        lambda bound: Words(f"activations of {bound:g} GiB at most", f"激活不超过 {bound:g} GiB"),
    ),
    "gpus": Bound(
        lambda found: found.plan.gpus,
        False,
        lambda bound: Words(f"{bound:g} GPUs at most", f"不超过 {bound:g} 块 GPU"),
    ),
    "bubble": Bound(
        lambda found: found.waterfall_s.bubble / found.step_s,
        False,
        lambda bound: Words(f"a bubble of {bound:.0%} of the step at most", f"气泡不超过一步的 {bound:.0%}"),
    ),
}  # fmt: skip
"""{name in a goal: the bound}"""


@dataclass(frozen=True)
class Task:
    """A challenge.

    level:    1 moves one or two controls, 2 some, 3 the whole plan.
    teaches:  the id of the question that it is about.
    batch:    the sequences of a step; data-parallel ranks and microbatches follow from it.
    given:    {field of `Plan`, or nodes: its value} in every plan of the task.
    free:     the names in `VALUES` that the learner chooses.
    goal:     {name in `BOUNDS`: the bound}; that the plan fits into memory is always asked for.
    hints:    from a nudge to nearly the plan.
    best:     {what is free: its value} in the best plan that is known.
    """

    id: str
    level: int
    name: Words
    teaches: str
    model: str
    cluster: str
    batch: int
    given: Mapping[str, Any]
    free: tuple[str, ...]
    goal: Mapping[str, float]
    hints: tuple[Words, Words]
    best: Mapping[str, Any]

    def start(self) -> dict[str, Any]:
        """The values of what is free in which it opens."""
        return {name: START[name] for name in self.free}

    def prediction(self, chosen: Mapping[str, Any]) -> Prediction:
        """The prediction of the plan with the values of what is free in `chosen`, or the nearest to them that
        are offered, as the front end takes them. `InputError` for a plan that cannot be, or whose step cannot
        have `batch` sequences."""
        own = {name: _nearest(VALUES[name], chosen[name]) for name in self.free}
        fields = {**self.given, **own}
        nodes = fields.pop("nodes", 1)
        return _predicted(self.model, self.cluster, nodes, self.batch, **fields)

    def is_solved(self, found: Prediction) -> bool:
        """Whether a plan fits and keeps all bounds."""
        return found.fit.fits and all(
            BOUNDS[name].keeps(found, its) for name, its in self.goal.items()
        )

    def asks(self) -> Words:
        """The goal in words."""
        said = [BOUNDS[name].says(bound) for name, bound in self.goal.items()]
        return Words(", ".join(["it fits"] + [each.en for each in said]), "，".join(["放得下"] + [each.zh for each in said]))  # fmt: skip


def _nearest(values: tuple[Any, ...], value: Any) -> Any:
    if value in values:
        return value
    if isinstance(values[0], str):
        return values[0]
    return min(values, key=lambda each: abs(each - value))


@lru_cache(64)
def _predicted(model: str, cluster: str, nodes: int, batch: int, **fields: Any) -> Prediction:
    machine = load_cluster(cluster, nodes=nodes)
    ranks = fields.get("tp", 1) * fields.get("pp", 1) * fields.get("cp", 1)
    if machine.gpus % ranks:
        raise InputError(f"tp x pp x cp = {ranks} does not divide {machine.gpus} GPUs")
    dp, size = machine.gpus // ranks, fields.get("microbatch_size", 1)
    if batch % (dp * size):
        raise InputError(
            f"dp = {dp} ranks with microbatches of {size} cannot share {batch} sequences evenly"
        )
    split = {
        "dp": dp,
        "microbatches": batch // (dp * size),
        "sequence_parallel": fields.get("tp", 1) > 1,
    }
    return predict(load_model(model), Plan(**split, **fields), machine)


def _task(read: Mapping[str, Any]) -> Task:
    hints = tuple(Words(**hint) for hint in read["hints"])
    return Task(
        **{**read, "name": Words(**read["name"]), "free": tuple(read["free"]), "hints": hints}
    )


TASKS = tuple(
    map(_task, json.loads((files("simlab.explorers.challenge") / "tasks.json").read_text("utf-8")))
)
"""All challenges, level by level."""

"""Challenges as data: a model on a cluster, a goal, and what of the plan may be changed for it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.explorers.explorer import Figure, Timeline
from simlab.explorers.plan.step import pictures
from simlab.spec.cluster import load_cluster
from simlab.spec.model import load_model
from simlab.spec.plan import Plan
from simlab.training import Prediction, predict
from simlab.units import GIB, seconds_text
from simlab.views.chart import Chart, Words

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


LABELS = {
    "nodes": Words("nodes", "节点数"),
    "tp": Words("tensor tp", "张量并行 tp"),
    "pp": Words("pipeline pp", "流水线 pp"),
    "cp": Words("context cp", "上下文 cp"),
    "ep": Words("experts ep", "专家并行 ep"),
    "microbatch_size": Words("microbatch size", "micro-batch 大小"),
    "zero": Words("ZeRO stage", "ZeRO 阶段"),
    "recompute": Words("recompute", "重计算"),
    "schedule": Words("schedule", "调度"),
    "precision": Words("precision", "精度"),
    "link": Words("slow link", "慢链路"),
    "slower": Words("times the healthy time", "用时是正常的几倍"),
}
CLOSE = 1.01
"""A step is as short as the best known one if it is longer by less than this factor."""


class Judged(NamedTuple):
    """What is shown of a task in one state: the table of `figures` with a line for each of `heads`, the
    pictures, what is asked, and the verdict in words."""

    heads: Sequence[str]
    figures: Sequence[Figure]
    pictures: Sequence[Chart | Timeline]
    asks: Words
    says: Words
    solved: bool


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

    @classmethod
    def read(cls, entry: Mapping[str, Any]) -> "Task":
        """The task of an entry of `tasks.json`."""
        return cls(**{**entry, **texts(entry)})

    def offers(self) -> dict[str, Sequence[Any]]:
        """{what is free: the values to choose from}."""
        return {name: VALUES[name] for name in self.free}

    def start(self) -> dict[str, Any]:
        """The values of what is free in which it opens."""
        return {name: START[name] for name in self.free}

    def prediction(self, chosen: Mapping[str, Any]) -> Prediction:
        """The prediction of the plan with the values of what is free in `chosen`, or the nearest to them that
        are offered, as the front end takes them. `InputError` for a plan that cannot be, or whose step cannot
        have `batch` sequences."""
        own = {name: nearest(VALUES[name], chosen[name]) for name in self.free}
        fields = {**self.given, **own}
        nodes = fields.pop("nodes", 1)
        return _predicted(self.model, self.cluster, nodes, self.batch, **fields)

    def is_solved(self, found: Prediction) -> bool:
        """Whether a plan fits and keeps all bounds."""
        return found.fit.fits and all(
            BOUNDS[name].keeps(found, its) for name, its in self.goal.items()
        )

    def judged(self, chosen: Mapping[str, Any]) -> Judged:
        """The plan with the values of what is free in `chosen` beside the best known one, and whether it
        reaches the goal. `InputError` as `prediction`."""
        found, best = self.prediction(chosen), self.prediction(self.best)
        labels = Words("step", "一步时间"), Words("MFU", "MFU"), Words("fullest GPU", "最满的 GPU")
        columns = zip(labels, zip(*map(_figures, (found, best))))
        return Judged(
            ["your plan", "best known plan"],
            [Figure(label, values) for label, values in columns],
            pictures(found),
            _asked(self, found),
            _verdict(self, found, best),
            self.is_solved(found),
        )

    def asks(self) -> Words:
        """The goal in words."""
        said = [BOUNDS[name].says(bound) for name, bound in self.goal.items()]
        return Words(", ".join(["it fits"] + [each.en for each in said]), "，".join(["放得下"] + [each.zh for each in said]))  # fmt: skip


def _figures(found: Prediction) -> tuple[str, str, str]:
    held, capacity = sum(found.memory_bytes.values()) / GIB, found.capacity_bytes / GIB
    return seconds_text(found.step_s), f"{found.mfu:.1%}", f"{held:.1f} / {capacity:.0f} GiB"


def _asked(task: Task, found: Prediction) -> Words:
    goal, plan = task.asks(), found.plan
    seq = found.model.seq if plan.seq is None else plan.seq
    given = {name: value for name, value in task.given.items() if name not in ("nodes", "seq")}
    fixed, comma = listed(given), bool(given)
    english = f"{task.model} on {plan.gpus} GPUs of {task.cluster}, {task.batch} sequences of {seq:,} tokens a step"
    told = f"{task.model}，{plan.gpus} 块 GPU（{task.cluster}），每步 {task.batch} 条序列，每条 {seq:,} 个 token"
    english += f"{', ' * comma}{fixed.en}."
    told += f"{'，' * comma}{fixed.zh}。"
    return Words(f"{english} Goal: {goal.en}.", f"{told}目标：{goal.zh}。")


def _verdict(task: Task, found: Prediction, best: Prediction) -> Words:
    """Whether the goal is reached; how far from the best known plan, or what is missing first."""
    fit = found.fit
    if not fit.fits:
        missing = f"{-fit.margin_bytes / GIB:.1f} GiB"
        return Words(f"Not yet: {missing} are missing.", f"还没有：缺 {missing}。")
    if not task.is_solved(found):
        return Words(
            "It fits; the rest of the goal is not reached yet.",
            "放得下，但目标的其余部分还没有达到。",
        )
    ratio = found.step_s / best.step_s
    if ratio <= CLOSE:
        return Words("Solved, as well as the best known plan.", "达成，和已知最好的方案一样好。")
    return Words(
        f"Solved; the step of the best known plan is {1 - 1 / ratio:.0%} shorter.",
        f"达成；已知最好的方案的一步还要短 {1 - 1 / ratio:.0%}。",
    )


def listed(values: Mapping[str, Any]) -> Words:
    """Fields of a plan with their values; the Chinese has the controls' labels."""
    english = (f"{name} = {value}" for name, value in values.items())
    chinese = (f"{LABELS[name].zh} = {value}" for name, value in values.items())
    return Words(", ".join(english), "，".join(chinese))


def nearest(values: Sequence[Any], value: Any) -> Any:
    """`value` if it is one of `values`, else the first text or the nearest number."""
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


def texts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """The texts of an entry of `tasks.json`, and what is free, as a task holds them."""
    hints = tuple(Words(**hint) for hint in entry["hints"])
    return {"name": Words(**entry["name"]), "free": tuple(entry["free"]), "hints": hints}

"""How far predictions of published runs of a plan's kind were off (recorded_errors.json)."""

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from math import ceil, log
from statistics import mean
from typing import NamedTuple

from simlab.cost.roofline import peak_flops
from simlab.spec.cluster import Cluster, gpus
from simlab.spec.hardware import Gpu
from simlab.spec.model import Model
from simlab.spec.plan import Plan

ALIKE = 0.1
"""The most by which multiprocessors of one architecture differ in what they compute per second in 16
bits: by 8% from a B200 to a GB200. An H100's compute 2.6 times as much as an A100's."""
SHOWN_SUITES = 3
"""The number of suites that a text names."""


class Kind(NamedTuple):
    """What decides most of a prediction's error: predictions of one kind are off by about as much."""

    gpu: str
    bits: int
    """The width of what products compute with: 8, 16 or 32."""
    experts: bool
    """Whether the model has experts."""
    library: str


class Recorded(NamedTuple):
    """The errors of the runs of one suite that are of one kind."""

    suite: str
    kind: Kind
    errors: tuple[float, ...]
    """(predicted - measured) / measured step time, of each run."""


class Uncertainty(NamedTuple):
    """How far predictions of published runs were off, of those whose kind is nearest."""

    error: float
    """The mean absolute error, as a fraction of the measured step time."""
    bias: float
    """The mean error with its sign; negative if most predictions were too short."""
    nine_in_ten: float
    """The absolute error that nine of ten predictions did not exceed."""
    runs: int
    suites: tuple[str, ...]
    """The suites that the runs are from, that with most runs first; docs/validation.md has them."""
    differs: tuple[str, ...]
    """In what the runs are of another kind: some of 'experts', 'architecture', 'GPU', 'precision',
    'library'; empty if they are of the same."""
    is_near: bool
    """Whether they tell how far this prediction may be off: they have experts if it has, their GPUs are of
    its architecture, and they differ in one more respect at most."""

    @property
    def tie_text(self) -> str:
        """Within how much steps are a tie: the error of such predictions, or where it is not known at
        least that of the nearest."""
        whose = "such" if self.is_near else "the nearest"
        unknown = "" if self.is_near else "; of these it is not known"
        return f"{self.error:.1%}, the error of {whose} predictions{unknown}"

    def __str__(self) -> str:
        named = ", ".join(self.suites[:SHOWN_SUITES]) + ", ..." * (len(self.suites) > SHOWN_SUITES)
        other = f", which differ in {', '.join(self.differs)}" if self.differs else ""
        off = (
            f"{self.error:.1%} in the mean (bias {self.bias:+.1%}), at most {self.nine_in_ten:.1%} in "
            f"9 of 10, in {self.runs} published run{'s' * (self.runs != 1)} of {named}"
        )
        return (
            f"{off}{other}" if self.is_near else f"not known: the nearest are off by {off}{other}"
        )


def kind_of(model: Model, plan: Plan, cluster: Cluster) -> Kind:
    """The `Kind` of a prediction."""
    names = "+".join(dict.fromkeys(part.gpu.name for part in cluster.parts))
    bits = {"fp32": 32, "fp16": 16, "bf16": 16, "fp4": 4}.get(plan.precision, 8)
    return Kind(names, bits, model.experts > 0, plan.library)


def uncertainty(model: Model, plan: Plan, cluster: Cluster) -> Uncertainty:
    """The `Uncertainty` of a prediction: from all recorded runs that differ in least from it.

    Left out: the sizes of the model, the number of GPUs and the degrees, in which published runs of a
    kind differ, too.
    """
    kind = kind_of(model, plan, cluster)
    parts = tuple(part.gpu for part in cluster.parts)
    differing = [_differs(kind, parts, its.kind) for its in recorded()]
    least = min(differing, key=_distance)
    nearest = [its for its, differs in zip(recorded(), differing) if differs == least]
    nearest.sort(key=lambda its: -len(its.errors))
    errors = [error for its in nearest for error in its.errors]
    return Uncertainty(
        mean(map(abs, errors)),
        mean(errors),
        sorted(map(abs, errors))[ceil(0.9 * len(errors)) - 1],
        len(errors),
        tuple(dict.fromkeys(its.suite for its in nearest)),
        least,
        len(least) <= 1 and not {"experts", "architecture"} & {*least},
    )


def _differs(kind: Kind, parts: Iterable[Gpu], other: Kind) -> tuple[str, ...]:
    """In what two kinds differ, in the words of `Uncertainty.differs`."""
    alike = all(_alike(gpu, gpus()[other.gpu]) for gpu in parts)
    pairs = {
        "experts": kind.experts != other.experts,
        "architecture": not alike,
        "GPU": alike and kind.gpu != other.gpu,
        "precision": kind.bits != other.bits,
        "library": kind.library != other.library,
    }
    return tuple(name for name, differ in pairs.items() if differ)


def _distance(differs: tuple[str, ...]) -> tuple[bool, bool, int, tuple[str, ...]]:
    """Experts count most, then the architecture, then how much else differs: of as much, the GPU
    first."""
    return "experts" in differs, "architecture" in differs, len(differs), differs


def _alike(gpu: Gpu, other: Gpu) -> bool:
    """Whether both are of one architecture, told by what a multiprocessor computes per second."""
    rates = [peak_flops(each, "bf16") / each.sms for each in (gpu, other)]
    return abs(log(rates[0] / rates[1])) < ALIKE


@cache
def recorded() -> tuple[Recorded, ...]:
    """What recorded_errors.json has, which `python -m docs.generate` writes with the tables of
    docs/validation.md, from the same predictions."""
    text = (files("simlab.training") / "recorded_errors.json").read_text(encoding="utf-8")
    return tuple(
        Recorded(
            its["suite"],
            Kind(its["gpu"], its["bits"], its["experts"], its["library"]),
            tuple(error / 100 for error in its["errors_pct"]),
        )
        for its in json.loads(text)
    )

"""The prediction of a plan for a search: steps of many microbatches are extrapolated from steps of
few."""

from dataclasses import dataclass, replace
from math import inf, prod
from typing import Annotated, TypedDict

from simlab.analysis import warm_up_form
from simlab.display import facts_of
from simlab.lowering.build import program_of
from simlab.memory.step import StepWalk, held_by_rank
from simlab.schedules import SCHEDULES
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan
from simlab.training import Waterfall, layer_trace, predict
from simlab.training.fit import FITS, TIGHT, Fit, judged


class RankedFacts(TypedDict):
    """A `Ranked` as plain values: degrees and options of its plan, the prediction, the judgement."""

    dp: int
    tp: int
    pp: int
    cp: int
    ep: int
    etp: int
    zero: int
    recompute: str
    schedule: str
    chunks: int
    microbatch_size: int
    microbatches: int
    stage_layers: str | list[int]
    sequence_parallel: bool
    ep_overlap: bool
    step_s: float
    mfu: float
    memory_bytes: float
    reserve_bytes: float
    fit: Annotated[str, (FITS, TIGHT)]
    family: str
    layers_s: float | None


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """A plan and its prediction."""

    plan: Plan
    step_s: float
    """The predicted time of a step, in seconds."""
    mfu: float
    """The model FLOPs utilisation; see `simlab.training.Prediction.mfu`."""
    memory_bytes: float
    """The bytes of tensors at the peak of the rank that holds most."""
    fit: Fit
    layers_s: float | None = None
    """The time of the step simulated layer by layer, in seconds; None if it was not."""

    @property
    def family(self) -> str:
        """See `family_of`."""
        return family_of(self.plan)

    def to_dict(self) -> RankedFacts:
        """The degrees, the prediction and the judgement as plain values that JSON knows."""
        own = {
            "step_s": self.step_s,
            "mfu": self.mfu,
            "memory_bytes": self.memory_bytes,
            "reserve_bytes": self.fit.waste_bytes + self.fit.reserve_bytes,
            "fit": self.fit.verdict,
            "family": self.family,
            "layers_s": self.layers_s,
        }
        return facts_of(self.plan, RankedFacts, **own)


def simplicity(plan: Plan) -> tuple[float, ...]:
    """What is least for the simplest plan: the dimensions that split the model, into how many parts they
    split it, whether work is done again, and then what else has to be right, such as unequal stages."""
    split = [n for n in (plan.tp, plan.pp, plan.cp, plan.ep) if n > 1]
    again, unequal = plan.recompute != "none", not isinstance(plan.stage_layers, str)
    return len(split), prod(split), again, plan.zero, plan.chunks, unequal, -plan.microbatch_size


def family_of(plan: Plan) -> str:
    """Which dimensions split the model of a plan, such as 'tp + pp'; 'dp only' if none does."""
    split = [name for name in ("tp", "pp", "cp", "ep") if getattr(plan, name) > 1]
    return " + ".join(split) or "dp only"


def short_steps(plan: Plan) -> tuple[Plan, Plan] | None:
    """The same plan with 2 p and 3 p microbatches, where p is the number of pipeline ranks; None if
    it has no more than that, or a schedule that is not `Schedule.steady`."""
    if plan.microbatches <= 3 * plan.pp or not SCHEDULES[plan.schedule].steady:
        return None
    return tuple(replace(plan, microbatches=n * plan.pp) for n in (2, 3))  # type: ignore[return-value]


def extrapolated(plan: Plan, two: float, three: float) -> float:
    """The figure of `plan` from those of 2 p and 3 p microbatches: from there on each microbatch adds
    equally much, and the peak of memory stays."""
    return two + (three - two) * (plan.microbatches - 2 * plan.pp) / plan.pp


def most_held(model: Model, plan: Plan) -> dict[str, float]:
    """{category: bytes of tensors} of the rank which holds most, at its peak. From 2 p microbatches
    on the peak of a `Schedule.steady` one stays."""
    steady = SCHEDULES[plan.schedule].steady
    few = replace(plan, microbatches=min(plan.microbatches, 2 * plan.pp)) if steady else plan
    program = program_of(few)
    walk = StepWalk(model, few, program, few.layers_of_stages(model.layers, program.stages))
    return max(held_by_rank(walk), key=lambda held: sum(held.values()))


def predicted(model: Model, plan: Plan, cluster: Cluster) -> Ranked:
    """The `Ranked` of `plan`. The step of a plan that does not fit is not predicted: it takes
    infinitely long. Steps of more than 3 p microbatches are extrapolated from those of 2 p and 3 p (`short_steps`).
    """
    fit = judged(plan, cluster, most_held(model, plan))
    held = fit.held_bytes
    if not fit.fits:
        return Ranked(plan=plan, step_s=inf, mfu=0.0, memory_bytes=held, fit=fit)
    shown = [predict(model, each, cluster) for each in short_steps(plan) or [plan]]
    if host_bytes := shown[0].host_bytes:
        fit = judged(plan, cluster, shown[0].memory_bytes, host_bytes)
    step_s = shown[0].step_s if fit.fits else inf
    if fit.fits and len(shown) > 1:
        step_s = extrapolated(plan, step_s, shown[1].step_s)
    tokens = plan.microbatches / shown[0].plan.microbatches
    mfu = shown[0].mfu * shown[0].step_s / step_s * tokens
    return Ranked(plan=plan, step_s=step_s, mfu=mfu, memory_bytes=held, fit=fit)


def waterfall_s(model: Model, plan: Plan, cluster: Cluster) -> Waterfall:
    """What the step of `plan` is spent on, extrapolated as `predicted` does it."""
    shown = [predict(model, each, cluster).waterfall_s for each in short_steps(plan) or [plan]]
    if len(shown) == 1:
        return shown[0]
    return Waterfall(*(extrapolated(plan, *pair) for pair in zip(*shown)))


def idle_text(model: Model, plan: Plan, cluster: Cluster) -> str:
    """Why the pipeline of `plan` idles, extrapolated as `predicted` does it; '' if it does not."""
    shown = [predict(model, each, cluster) for each in short_steps(plan) or [plan]]
    last, step_s = shown[-1].bubble_parts, shown[-1].step_s
    if len(shown) > 1:
        first = shown[0].bubble_parts
        last = last._replace(
            warm_up_s=extrapolated(plan, first.warm_up_s, last.warm_up_s),
            unequal_s=extrapolated(plan, first.unequal_s, last.unequal_s),
            messages_s=extrapolated(plan, first.messages_s, last.messages_s),
        )
        step_s = extrapolated(plan, shown[0].step_s, step_s)
    return last.text(step_s, warm_up_form(program_of(plan)))


def layered_s(model: Model, plan: Plan, cluster: Cluster) -> float:
    """The time of a step of `plan` simulated layer by layer, in seconds, extrapolated as
    `predicted` does it."""
    short = short_steps(plan)
    if short is None:
        return layer_trace(model, plan, cluster).whole_step_s
    return extrapolated(plan, *(layer_trace(model, each, cluster).whole_step_s for each in short))

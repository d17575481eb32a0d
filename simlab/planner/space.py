"""The plans by which a model can be trained on a cluster with a given global batch."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from math import gcd, isqrt
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

from simlab.errors import InputError, require_whole
from simlab.libraries import LIBRARIES
from simlab.lowering.build import program_of
from simlab.optimizers import OPTIMIZERS
from simlab.schedules import ALIASES, SCHEDULES
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.spec.named import cluster_of, model_of
from simlab.spec.plan import Plan, plan_fields
from simlab.spec.plan_checks import check_fields, refusal_beside
from simlab.spec.plan_effects import EFFECTS
from simlab.training.step import check_offload, check_precision

SEARCHED = tuple(name for name, its in SCHEDULES.items() if its.searched)
"""The schedules that are tried where none is given: those of Megatron-LM and torchtitan."""
MOST_CHUNKS = 12
"""The most stages of a pipeline rank that are tried."""
MODEL, BATCH, SCHEDULE, BESIDE = (
    "the model cannot be split like this",
    "the batch cannot be split like this",
    "the schedule cannot be made of these stages and microbatches",
    "a forward and a backward cannot go side by side",
)
"""Reasons of rejections."""


class Rejection(NamedTuple):
    """A plan, or all plans with some degrees, and why they are not taken."""

    values: dict[str, Any]
    """{field of a plan: value} of what was rejected."""
    reason: str
    """The reason in a few words, by which rejections are counted."""
    detail: str
    """The sentence that says what is wrong, with the numbers."""
    missing_bytes: float = 0.0
    """By how many bytes the memory of a GPU is exceeded, at least."""


@dataclass(frozen=True, kw_only=True)
class Space:
    """The plans of `model` on all GPUs of `cluster` with `global_batch` sequences in a step.

    Expert-parallel ranks are searched for a model with experts: all numbers that divide its experts
    and the ranks that may share them, with experts cut over tensor-parallel ranks or not, and with all-to-alls
    beside another microbatch or not. A search divides the layers of a pipeline by what its stages take, unless
    `stage_layers` is fixed. Raises `InputError` for a mixed cluster, or if a fixed value cannot be.
    """

    model: Model
    """The model that is trained, or its name."""
    cluster: Cluster
    """The cluster, of one kind of node, or its name for one node of it."""
    global_batch: int
    """The number of sequences in a step."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """{field of a plan: value} of what is not searched, such as the precision, or tp = 8."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "model", model_of(self.model))
        object.__setattr__(self, "cluster", cluster_of(self.cluster))
        require_whole("global_batch", self.global_batch)
        self.cluster.check_alike("a search of plans")
        derived = {name: self.fixed[name] for name in ("microbatches",) if name in self.fixed}
        if derived:
            raise InputError(
                f"microbatches = {derived['microbatches']}: leave it out, "
                "it follows from the global batch and the other degrees"
            )
        for name in ("dp", "tp", "pp", "cp", "ep", "etp", "microbatch_size", "chunks"):
            if name in self.fixed:
                require_whole(name, self.fixed[name])
        given = [facts for facts in plan_fields() if self.fixed.get(facts.name) is not None]
        schedule = self.fixed.get("schedule")
        if isinstance(schedule, str) and schedule in ALIASES:
            object.__setattr__(self, "fixed", {**self.fixed, "schedule": ALIASES[schedule]})
        check_fields(cast(Plan, SimpleNamespace(**self.fixed)), given)
        check_precision(Plan(**self._whatever_the_degrees()), self.cluster)
        offload, to = self.fixed.get("offload", "none"), self.fixed.get("offload_to", "host")
        check_offload(offload, to, self.cluster)
        if schedule is not None:
            # Whatever schedule there is can be made of four microbatches on two ranks.
            program_of(Plan(pp=2, microbatches=4, schedule=schedule))

    def candidates(self) -> Iterator[Plan | Rejection]:
        """Each plan that can be split as it says, and a `Rejection` of each that cannot. Degrees that
        are rejected are one rejection, whatever the rest of the plan."""
        for tp, cp in self.groups():
            yield from self.of_group(tp, cp)

    def groups(self) -> list[tuple[int, int]]:
        """[(tp, cp)]: candidates with the same of both share most of what bounds them. The least cp
        comes first, for few sequences are worth splitting."""
        gpus = self.cluster.gpus
        groups = [
            (tp, cp)
            for tp in self._values("tp", divisors(gpus))
            for cp in self._values("cp", divisors(gpus // tp) if gpus % tp == 0 else [1])
        ]
        return sorted(groups, key=lambda group: group[1])

    def of_group(self, tp: int, cp: int) -> Iterator[Plan | Rejection]:
        """The `candidates` with these degrees."""
        rest, left = divmod(self.cluster.gpus, tp * cp)
        for pp in self._values("pp", [1] if left or not rest else divisors(rest)):
            yield from self._of_degrees(tp, pp, cp)

    def _whatever_the_degrees(self) -> dict[str, Any]:
        """Of the fixed values, those that every candidate can have."""
        return {n: v for n, v in self.fixed.items() if n in ("precision", "library", "attention")}

    def _values(self, name: str, choices: list[Any]) -> list[Any]:
        """The values of a field: the fixed one, else `choices`."""
        return [self.fixed[name]] if name in self.fixed else choices

    def _of_degrees(self, tp: int, pp: int, cp: int) -> Iterator[Plan | Rejection]:
        """The candidates with these degrees."""
        dp = self.fixed.get("dp") or max(1, self.cluster.gpus // (tp * pp * cp))
        whole = {"dp": dp, "tp": tp, "pp": pp, "cp": cp}
        layers = self._stage_layers(pp)
        for ep, etp in self._expert_degrees(tp, dp * cp):
            degrees = whole | {"ep": ep, "etp": etp}
            try:
                self._plan(**degrees, **layers).check(self.model, self.cluster.gpus)
            except InputError as error:
                yield Rejection(degrees, MODEL, str(error))
                if (ep, etp) == (1, tp):  # what is wrong without it is wrong with it
                    return
                continue
            if self.global_batch % dp:
                detail = f"dp = {dp} does not divide the global batch of {self.global_batch}"
                yield Rejection(degrees, BATCH, detail)
                return
            yield from self._of_details(degrees, layers)

    def _expert_degrees(self, tp: int, ranks: int) -> Iterator[tuple[int, int]]:
        """(expert-parallel ranks, tensor-parallel ranks that cut each expert): numbers that divide the
        experts and the dp x cp `ranks`, or where experts are not cut tp times as many."""
        for etp in self._values("etp", [tp, 1] if self.model.experts and tp > 1 else [tp]):
            shared = gcd(self.model.experts, ranks * tp // etp) if self.model.experts else 1
            every = divisors(shared)
            spread = [ep for ep in every if etp == tp or ep % tp == 0]
            for ep in self._values("ep", spread or (every[:1] if "etp" in self.fixed else [])):
                yield ep, etp

    def _of_details(
        self, degrees: dict[str, int], layers: dict[str, Any]
    ) -> Iterator[Plan | Rejection]:
        """The candidates with these degrees and layers of stages."""
        for values in self._details(degrees):
            if isinstance(values, Rejection):
                yield values
                continue
            try:
                yield self._plan(**values, **layers)
            except InputError as error:
                yield Rejection(values, MODEL, str(error))

    def _details(self, degrees: dict[str, int]) -> Iterator[dict[str, Any] | Rejection]:
        """The fields of plans with these degrees: microbatches, schedules, ZeRO, recomputation; and
        the `Rejection` of a schedule that is asked for and cannot be made."""
        each, pp = self.global_batch // degrees["dp"], degrees["pp"]
        for size in self._values("microbatch_size", microbatch_sizes(each)):
            if each % size:
                continue
            if refused := self._refused_schedule(pp, each // size):
                parts = {"microbatch_size": size, "microbatches": each // size}
                yield Rejection({**degrees, **parts}, SCHEDULE, refused)
                continue
            for schedule, chunks in self._schedules(pp, each // size):
                kinds = self._values("recompute", self._recomputed())
                for zero, recompute in product(self._values("zero", self._stages(degrees)), kinds):
                    values = {
                        **degrees,
                        "microbatch_size": size,
                        "microbatches": each // size,
                        "schedule": schedule,
                        **({"chunks": chunks} if chunks > 1 else {}),
                        "zero": zero,
                        "recompute": recompute,
                    }
                    yield from self._overlaps(values)

    def _overlaps(self, values: dict[str, Any]) -> Iterator[dict[str, Any] | Rejection]:
        """These values with all-to-alls that run beside another microbatch, and without, where both can
        be; the `Rejection` of them where that is asked for and cannot be."""
        choices = self._values("ep_overlap", [False, True])
        if False in choices:
            yield {**values, "ep_overlap": False}
        if True not in choices:
            return
        refused = refusal_beside(
            cast(Plan, SimpleNamespace(**{"offload": "none", **self.fixed, **values}))
        )
        if values["ep"] == 1 or values["microbatches"] == 1:
            refused = (
                "ep_overlap = True has no effect with one expert-parallel rank or one microbatch"
            )
        if not refused:
            yield {**values, "ep_overlap": True}
        elif "ep_overlap" in self.fixed:
            yield Rejection(values, BESIDE, refused)

    def _schedules(self, pp: int, microbatches: int) -> Iterator[tuple[str, int]]:
        """(schedule, chunks) of a pipeline. As in Megatron-LM, an interleaved one needs a multiple
        of `pp` microbatches."""
        if pp == 1 and "schedule" not in self.fixed:
            yield "1f1b", 1
            return
        for schedule in self._values("schedule", list(SEARCHED)):
            if not SCHEDULES[schedule].chunked:
                yield schedule, 1
            elif microbatches % pp == 0:
                for chunks in self._values("chunks", self._chunks(pp)):
                    yield schedule, chunks

    def _refused_schedule(self, pp: int, microbatches: int) -> str:
        """Why the schedule that is asked for cannot be made of so many microbatches on `pp` ranks;
        '' if it can, or if none is asked for. One that can be made of 2 `pp`, or of one more if the number is
        odd, can be made of more."""
        schedule = self.fixed.get("schedule")
        if schedule is None:
            return ""
        if SCHEDULES[schedule].chunked:
            said = f"{microbatches} microbatches: {schedule} needs a multiple of pp = {pp}"
            return said if microbatches % pp else ""
        return _refusal(schedule, pp, min(microbatches, 2 * pp + microbatches % 2))

    def _chunks(self, pp: int) -> list[int]:
        layers = self.model.layers
        most = min(MOST_CHUNKS, (layers + 2) // pp)
        each = range(2, most + 1)
        return [v for v in each if layers % (pp * v) == 0 or (layers + 2) % (pp * v) == 0]

    def _stages(self, degrees: dict[str, int]) -> list[int]:
        """ZeRO stages: with one rank there is nothing to shard, and where two ranks of a pipeline hold a
        stage only the optimizer's states are."""
        least = self._least_zero
        schedule = SCHEDULES.get(self.fixed.get("schedule", ""))
        copies = degrees["pp"] > 1 and schedule is not None and schedule.copies > 1
        most = max(least, min(1 if copies else 3, self._most_zero))
        return [*range(least, most + 1)] if degrees["dp"] * degrees["cp"] > 1 or copies else [least]

    @property
    def _most_zero(self) -> int:
        """The last ZeRO stage that the library has, and has with the optimizer."""
        given = {**DEFAULTS, **self.fixed}
        of_optimizer = OPTIMIZERS[given["optimizer"]].most_zero(given["library"])
        return min(LIBRARIES[given["library"]].most_zero, of_optimizer)

    @property
    def _least_zero(self) -> int:
        """The first ZeRO stage with which what is fixed has an effect, or can be."""
        given = self.fixed.get
        return int(bool(given("hybrid") or given("fp8_param_gather")) or given("moment_bytes") == 2)

    def _recomputed(self) -> list[str]:
        """Kinds of recomputation that differ: a fused attention never stores scores, so that
        'selective' is 'none'. torch has one for each op. 'outputs' is little of a dense layer, and is
        not tried for one."""
        plan = Plan(**self._whatever_the_degrees())
        some = ["selective"] if plan.attention == "unfused" else []
        own = plan.habits.own_recomputation
        if own and (own != "outputs" or self.model.experts or self.model.kv_rank):
            some.append(own)
        return ["none", *some, "full"]

    def _stage_layers(self, pp: int) -> dict[str, Any]:
        """How layers are spread: evenly, or one more on some stages where that does not come out."""
        layers = self.model.layers
        chunks = self.fixed.get("chunks", 1)
        uneven = chunks == 1 and layers % pp and (layers + 2) % pp and pp <= layers
        return {"stage_layers": "uneven"} if uneven and "stage_layers" not in self.fixed else {}

    def evenly(self, plan: Plan) -> Plan:
        """`plan` with its layers spread as those of a candidate are."""
        if "stage_layers" in self.fixed:
            return plan
        return replace(plan, **{"stage_layers": "auto", **self._stage_layers(plan.pp)})

    def _plan(self, **values: Any) -> Plan:
        """The plan of these values and the fixed ones; sequence parallelism goes with tensor
        parallelism where sequences can be split."""
        cp, tp = values.get("cp", 1), values.get("tp", 1)
        seq = self.fixed.get("seq") or self.model.seq
        parallel = {"sequence_parallel": tp > 1 and seq // cp % tp == 0}
        given = {**parallel, "zero": self._least_zero, **self.fixed, "ep_overlap": False, **values}
        return Plan(**{n: v for n, v in given.items() if n not in without_effect(given)})


@cache
def _refusal(schedule: str, ranks: int, microbatches: int) -> str:
    """Why a schedule cannot be made; '' if it can."""
    try:
        program_of(Plan(pp=ranks, microbatches=microbatches, schedule=schedule))
    except InputError as error:
        return str(error)
    return ""


def without_effect(given: Mapping[str, Any]) -> list[str]:
    """The fields among {field: value} that have no effect beside the others: a plan with one
    tensor-parallel rank has no `tp_overlap`."""
    effects = [effect for effect in EFFECTS if effect.field in given]
    if not effects:
        return []
    of_plan = cast(Plan, SimpleNamespace(**{**DEFAULTS, **given}))
    return [effect.field for effect in effects if not effect.has_effect(of_plan)]


DEFAULTS = {facts.name: facts.default for facts in plan_fields()}
"""{field of a plan: its default}."""


def divisors(number: int) -> list[int]:
    """The divisors of `number`, the least first."""
    small = [n for n in range(1, isqrt(number) + 1) if number % n == 0]
    return sorted({*small, *(number // n for n in small)})


def microbatch_sizes(each: int) -> list[int]:
    """The sizes of a microbatch that are tried of `each` sequences of a replica: the powers of 2 that
    divide them, and all of them at once."""
    sizes = [1 << power for power in range(each.bit_length()) if each % (1 << power) == 0]
    return sizes if each in sizes else [*sizes, each]

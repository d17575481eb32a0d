"""What a job is completed with, and what is refused, when it is made."""

from realrun.model.sizes import sizes_like
from realrun.run.faults import Fault
from realrun.run.job import checks, pipelines
from realrun.run.job.derived import Derived
from simlab.errors import InputError, require_whole
from simlab.spec.model import load_model

PLAN_SIZES = {"hidden": 64, "heads": 4, "seq": 32}
"""Sizes of the model that a plan trains unless it is told."""
LAYERS_PER_STAGE = 2
EXPERTS_PER_TOKEN = 2


def complete(job: Derived) -> None:
    """Give `job` the values that it was not given. `InputError` for what cannot be run."""
    checks.check_numbers(job)
    checks.check_folders(job)
    if job.programs is None:
        checks.check_fields(job)
        _complete_plan(job)
    else:
        _complete_programs(job)
        checks.check_fields(job)


def _complete_plan(job: Derived) -> None:
    checks.check_plan(job)
    rule = job.given.stage_layers
    layers = LAYERS_PER_STAGE * job.given.stages if isinstance(rule, str) else sum(rule)
    asked = {name: value for name, value in job.sizes.items() if value is not None}
    if job.like is None or "layer" in asked:
        job.sizes = {"layers": layers} | PLAN_SIZES | asked
    else:
        own = {"layers": layers, "seq": PLAN_SIZES["seq"]} | asked
        job.sizes = sizes_like(load_model(job.like), own)
    if job.sizes.get("experts"):
        _complete_experts(job)
    checks.check_precision(job)
    checks.check_sizes(job)
    checks.check_backend(job)
    if job.fault is not None and Fault.of(job.fault, job.ranks).step >= job.steps:
        raise InputError(f"fault {job.fault!r}: there are measured steps 0 to {job.steps - 1}")
    if job.box is not None and job.predict_on is not None:
        raise InputError(
            f"predict_on = {job.predict_on!r} in a box, which is predicted on its own cluster: leave one of them out"
        )
    if job.box is not None:
        job.box_cluster, job.box_model  # noqa: B018  what they are not given well is said here
    if job.predict_on is not None:
        job.machine  # noqa: B018


def _complete_experts(job: Derived) -> None:
    """How many experts compute a token, and how many tokens of a microbatch one takes."""
    sizes, plan = job.sizes, job.given
    require_whole("experts", sizes["experts"])
    experts = sizes["experts"]
    chosen = sizes.setdefault("experts_per_token", min(EXPERTS_PER_TOKEN, experts))
    for name in ("seq", "experts_per_token"):
        require_whole(name, sizes[name])
    parts = plan.cp * (plan.tp if plan.spreads_experts else 1)
    copies = plan.microbatch_size * sizes["seq"] * chosen // parts
    sizes |= {"routed_parts": parts} if parts > 1 else {}
    if plan.cp > 1 and plan.cp_layout == "zigzag":
        sizes["routed_zigzag"] = plan.cp
    sizes["capacity"] = int(copies * plan.expert_load / experts)


def _complete_programs(job: Derived) -> None:
    job.forward_s, job.backward_s, job.input_grad_s = job.op_times_s
    pipelines.check_times(job)
    pipelines.check_programs(job)
    job.sizes = pipelines.suiting_sizes(job.sizes, job.compute, max(job.stage_counts))
    pipelines.check_patience(job)

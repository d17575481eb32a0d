"""What a job refuses to run: `InputError` says which value, and what could be given instead."""

import os
from typing import Any, NamedTuple

from realrun.model.sizes import check_executed
from realrun.record.recorder import CHECK_STEP
from realrun.run.job.asked import FIRST_LOSS_SCALE
from realrun.run.job.derived import Derived
from simlab.errors import InputError, did_you_mean, near, shortened
from simlab.spec.plan import Plan

BACKENDS = ("native", "torch")
MOST_LOSS_SCALE = 2.0**120
MOST_STEPS, MOST_WARMUP = 10**9, -CHECK_STEP - 1
"""What a record's number of a step can say: those of warm-up steps are below 0."""
LEAST_TIMEOUT_S, MOST_TIMEOUT_S = 1e-3, 1e6
"""What torch's and the system's own waiting can be told."""
LEAST_TIME_SCALE, MOST_TIME_SCALE = 1e-3, 1e9
"""Steps of a box are from shorter than any rank can keep to longer than anybody waits for."""


class Execution(NamedTuple):
    """What an execution makes of one field of a plan."""

    seen: str
    """How one sees that it is executed, or why its other values are not."""
    values: tuple[Any, ...] | None = None
    """The values that are executed. None stands for all that a plan may have."""
    in_box: bool = False
    """Whether the other values decide the times of a box, so that they are taken with one."""


EXECUTION = {
    "dp": Execution("The number of ranks and the members of the group dp."),
    "tp": Execution("The number of ranks and the members of the group tp."),
    "pp": Execution("The number of ranks and the members of the group pp."),
    "cp": Execution("The number of ranks and the members of the group cp."),
    "ep": Execution(
        "The members of the groups ep and edp, and the all-to-alls that bring tokens to experts."
    ),
    "expert_load": Execution(
        "How many times its even share of a microbatch's tokens an expert takes; what is more is "
        "dropped.",
    ),
    "etp": Execution("Whether the members of the groups ep and edp are of one group tp."),
    "dispatcher": Execution("Each copy of a token is sent by itself.", ("all-to-all",)),
    "ep_overlap": Execution("The order of a forward and a backward that take turns layer by layer."),
    "fused_experts": Execution("Experts are torch's own ops.", (False,)),
    "cp_layout": Execution("The part of each sequence that a rank computes."),
    "cp_kind": Execution("The messages and collectives of the group cp."),
    "zero": Execution("The collectives of the group dp and the bytes that a rank holds."),
    "hybrid": Execution("Replicas of shards are simulated only.", (0,)),
    "microbatch_size": Execution("The sequences of an op, and so the bytes of its messages."),
    "microbatches": Execution("The ops of each rank."),
    "seq": Execution("The sequence is a size of the model that runs: see `Job.sizes`.", (None,)),
    "schedule": Execution("The order of the ops of each rank."),
    "chunks": Execution("The stages of each rank."),
    "stage_layers": Execution("The layers of each stage."),
    "recompute": Execution(
        "The ops that run a second time. 'outputs' and 'per-op' are simulated only.",
        ("none", "selective", "full"),
    ),
    "precision": Execution(
        "Without `Job.precision` only fp16 is executed as it is and others in fp32; a box takes the "
        "plan's for its times.",
    ),
    "fp8_head": Execution("The output head is a product of the job's type.", (False,)),
    "fp8_param_gather": Execution("Parameters have the type of the job.", (False,)),
    "sequence_parallel": Execution("The collectives of the group tp."),
    "attention": Execution(
        "'unfused' stores scores. Which generation of a fused kernel runs is torch's choice.",
        ("flash", "unfused"),
        in_box=True,
    ),
    "library": Execution("The executor's own code runs, or with --backend torch torch's (library 'torch').", ("megatron",)),
    "fused": Execution("The model's norms and activations are torch's own kernels.", (True,), in_box=True),
    "cuda_graphs": Execution("Each kernel is launched by itself.", ("none",)),
    "compiled_loss": Execution("The loss is torch's own, op by op.", (False,)),
    "dropout": Execution(
        "The model has no dropout, so that its gradients equal those of one process. A plan may "
        "say what its attention implies.",
        (False,),
        in_box=True,
    ),
    "dp_overlap": Execution("When the collectives of the group dp begin."),
    "tp_overlap": Execution("One order of begin and wait is executed.", ("weight-grad",)),
    "bucket_bytes": Execution("Gradients are reduced unit by unit.", (None,)),
    "gradient_bytes": Execution("The bytes of the collectives of the group dp."),
    "optimizer": Execution("The executor and its checkpoints have Adam's two moments.", ("adam",)),
    "moment_bytes": Execution("The optimizer's moments have the type of the parameters.", (4,)),
    "prefetch": Execution("When gathers of parameters begin."),
    "reshard": Execution("Which ops gather parameters, and how long they stay gathered."),
    "offload": Execution("Nothing is moved to the host.", ("none",)),
    "offload_to": Execution("Nothing is moved to the host.", ("host",)),
    "order": Execution("The members of each group."),
}  # fmt: skip
"""{field of `Plan`: what is made of it}. docs/executing.md shows this table."""
ONLY_PLANS: dict[str, Any] = {
    "plan": {},
    "like": None,
    "box": None,
    "predict_on": None,
    "checkpoint_every": None,
    "resume": False,
    "fault": None,
    "backend": "native",
    "precision": None,
}
"""{field of a job: its value where programs are given, whose order is all that they say}"""
ONLY_PROGRAMS: dict[str, Any] = {
    "compute": None,
    "forward_s": None,
    "backward_s": None,
    "input_grad_s": None,
    "link_s": 0.0,
    "link_bytes_per_s": None,
    "checked": True,
}
"""{field of a job: its value where a plan is given}"""


def check_numbers(job: Derived) -> None:
    """Numbers of steps, and times."""
    every = 1 if job.checkpoint_every is None else job.checkpoint_every
    for name, value, least, most in (
        ("steps", job.steps, 1, MOST_STEPS),
        ("warmup", job.warmup, 0, MOST_WARMUP),
        ("steps between checkpoints", every, 1, MOST_STEPS),
        ("checkpoints kept", job.keep, 1, MOST_STEPS),
    ):
        if value < least:
            raise InputError(f"{value} {name}: give at least {least}")
        if value > most:
            raise InputError(f"{shortened(value)} {name}: give at most {most:,}")
    if not LEAST_TIMEOUT_S <= job.timeout_s <= MOST_TIMEOUT_S:
        raise InputError(
            f"timeout {job.timeout_s:g} s: give a time from {LEAST_TIMEOUT_S:g} to {MOST_TIMEOUT_S:g} s"
        )
    scale = (job.box or {}).get("time_scale")
    if scale is not None and not LEAST_TIME_SCALE <= scale <= MOST_TIME_SCALE:
        raise InputError(
            f"time scale {scale:g}: give a number from {LEAST_TIME_SCALE:g} to {MOST_TIME_SCALE:g}, or "
            "leave it out for a step of about 2 s"
        )


def check_folders(job: Derived) -> None:
    """Names that no file system takes."""
    for option, name in (("out", job.out), ("checkpoints", job.checkpoints)):
        try:
            fits = b"\0" not in os.fsencode(name or "")
        except UnicodeError:  # half of a character
            fits = False
        if not fits:
            raise InputError(
                f"{option} = {shortened(name)} cannot be a folder's name: give another"
            )


def check_fields(job: Derived) -> None:
    """Fields that are of plans where programs are given, or the other way round."""
    only = ONLY_PLANS if job.programs is not None else ONLY_PROGRAMS
    what = "programs" if job.programs is not None else "a plan"
    for name, value in only.items():
        if getattr(job, name) != value:
            raise InputError(f"{name} = {getattr(job, name)!r} with {what}: leave it out")


def check_plan(job: Derived) -> None:
    """Raise `InputError` for the fields of the plan that would be simulated, but not executed."""
    given = job.given
    refused: list[str] = []
    for name, its in EXECUTION.items():
        value = getattr(given, name)
        if its.values is None or value in its.values or (its.in_box and job.box is not None):
            continue
        if name == "dropout" and value == (given.attention == "unfused"):  # which implies it
            continue
        if name == "library" and value == job.backend:  # torch, of whose code that is
            continue
        *others, last = (["no", "yes"][v] if isinstance(v, bool) else repr(v) for v in its.values)
        what = "leave it out" + (f", or give {last}" if last != "None" else "")
        if others:
            what = f"give {', '.join(others)} or {last}"
        if name == "library" and value in BACKENDS:
            what += f", or --backend {value}"
        refused.append(f"{name} = {value!r} is simulated, but not executed: {what}")
    if refused:
        raise InputError("; ".join(refused))


def check_sizes(job: Derived) -> None:
    """Layers that are not executed, and sizes that the plan does not cut evenly."""
    _check_experts(job)
    check_executed(job.model)
    job.executed.check(job.model)
    _check_cuts(job)
    _check_capacity(job)
    if job.backend == "torch" and not all(job.stage_layers or ()):
        raise InputError(
            f"stages of {job.stage_layers} layers: torch's own means run stages with layers only; "
            "leave --backend out, or give each stage a layer"
        )


def _check_cuts(job: Derived) -> None:
    """What of layers the simulator cuts over ranks, and the executor does not."""
    plan, model = job.executed, job.model
    for its in map(model.of_kind, model.counts):
        if its.kv_heads % plan.tp:
            raise InputError(
                f"tp = {plan.tp}: copies of {model.name}'s kv_heads = {its.kv_heads} are simulated, but "
                f"not executed; {near(plan.tp, its.kv_heads)}"
            )
        if plan.tp > 1 and its.mixer == "mamba":
            raise InputError(
                f"tp = {plan.tp}: that ranks have some groups of {model.name}'s state spaces is simulated, but not executed; give tp = 1"
            )
        if plan.tp > 1 and its.qk_norm and (its.qk_norm == "whole" or job.backend == "torch"):
            raise InputError(
                f"tp = {plan.tp}: {model.name}'s norm of queries and keys is not cut over ranks; give tp = 1"
            )
        if plan.cp > 1 and its.keys_met(model.seq) < model.seq:
            raise InputError(
                f"cp = {plan.cp}: {model.name}'s windows are not cut over sequences; give cp = 1"
            )


def _check_experts(job: Derived) -> None:
    """Experts that are not executed."""
    experts, plan = job.sizes.get("experts"), job.executed
    if not experts:
        if "experts_per_token" in job.sizes:
            raise InputError(
                f"experts_per_token = {job.sizes['experts_per_token']} without experts: give experts, "
                "or leave it out"
            )
        if plan.ep > 1:
            raise InputError(
                f"ep = {plan.ep} without experts: give experts, a multiple of {plan.ep}, or ep = 1"
            )
        return
    if plan.tp > 1 and not plan.spreads_experts:
        raise InputError(
            f"tp = {plan.tp} that cuts {experts} experts is simulated, but not executed: give tp = 1, or "
            f"etp = 1 with sequence_parallel and ep a multiple of {plan.tp}"
        )
    if job.backend == "torch":
        raise InputError(
            f"{experts} experts with backend torch, which leaves them out: take backend native"
        )


def _check_capacity(job: Derived) -> None:
    """Tokens that experts cannot share evenly."""
    experts, plan = job.sizes.get("experts"), job.executed
    if not experts:
        return
    copies = plan.microbatch_size * job.sizes["seq"] * job.sizes["experts_per_token"]
    copies //= job.sizes.get("routed_parts", 1)
    if (copies * plan.expert_load) % experts:
        raise InputError(
            f"each of {experts} experts would take {copies * plan.expert_load / experts:.4g} of a "
            f"rank's {copies} copies of a microbatch's tokens, no whole number: give another number of "
            "experts, seq, microbatch_size or expert_load"
        )


def check_backend(job: Derived) -> None:
    """Who executes, and what torch leaves out."""
    if job.backend not in BACKENDS:
        raise InputError(
            f"backend {job.backend!r}{did_you_mean(job.backend, BACKENDS) or ';'} there is {', '.join(BACKENDS)}"
        )
    if job.backend == "torch":
        _check_torch(job)


def check_precision(job: Derived) -> None:
    """What numbers cannot be trained with here."""
    plan = job.executed
    if plan.has_narrow_products:
        raise InputError(
            f"precision = {plan.precision!r} is simulated, but not executed: give fp32, bf16 or fp16"
        )
    times = job.given.precision
    if job.box is not None and plan.precision != times and "fp16" in (plan.precision, times):
        raise InputError(
            f"precision {plan.precision} in a box of {times} times: in fp16 ranks communicate more"
        )
    if job.box is None and job.given.gradient_bytes == 2 and plan.gradient_bytes == 4:
        raise InputError(
            f"gradient_bytes = 2 with precision {plan.precision}: leave it out, or run in bf16 or fp16"
        )
    if not 0 < job.loss_scale < MOST_LOSS_SCALE:
        raise InputError(
            f"loss scale {job.loss_scale!r}: give a number above 0 and below {MOST_LOSS_SCALE:g}, such as 65536"
        )
    if job.loss_scale != FIRST_LOSS_SCALE and plan.precision != "fp16":
        raise InputError(
            f"loss scale {job.loss_scale:g} with precision {plan.precision}, which needs none: leave it out"
        )


def _check_torch(job: Derived) -> None:
    plan, default = job.given, Plan()
    torchs = (
        ("--cp", plan.cp, 1),
        ("--attention", plan.attention, default.attention),
        ("--dp-overlap", plan.dp_overlap, True),
        ("--prefetch", plan.prefetch, default.prefetch),
        ("--cluster", job.box and job.box.get("cluster"), None),
        ("--inject", job.fault, None),
    )
    for flag, value, only in torchs:
        if value != only:
            raise InputError(
                f"{flag} {value} with backend torch, which leaves it out: leave it out, too, or take backend native"
            )
    if plan.copies > 1:
        raise InputError(
            f"schedule {plan.schedule!r} with backend torch, whose runtime has a stage on one rank: give 'dualpipe-v'"
        )
    if plan.zero == 1 and plan.dp > 1 and (plan.tp > 1 or plan.stages > 1):
        raise InputError(
            f"zero = 1 with tp = {plan.tp}, {plan.stages} stages and backend torch, whose optimizer of ZeRO-1 takes no DTensors: "
            "give zero 0, 2 or 3"
        )
    splits = plan.stages > 1 and any(op.kind == "W" for ops in job.program.ranks for op in ops)
    if plan.zero == 3 and plan.dp > 1 and splits:
        raise InputError(
            f"zero = 3 with schedule {plan.schedule!r} and backend torch, which loses or mistakes gradients of weights that are freed "
            "between the two halves of a backward (seen with torch 2.13): give zero 2, or a schedule that does not split the backward"
        )

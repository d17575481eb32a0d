"""The facts of a run as plain values: what was measured, beside what simlab says of the same plan."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import accumulate
from statistics import median
from typing import Annotated, Any, NotRequired, TypedDict

from realrun.measure.cores import shared_gpus
from realrun.report.traces import RunTraces, load_traces
from realrun.run.faults import stragglers
from realrun.run.job import Job, Run
from realrun.run.progress import Said, Vitals
from simlab.analysis import Bubble, bubble, idle_s, peak_memory
from simlab.analysis.comparison import Pair, compare
from simlab.cost import OpMemory
from simlab.diagnosis import Diagnosis
from simlab.layer.parameters import expert_parameters
from simlab.lowering.traffic import sent_bytes
from simlab.lowering.zero import held_of
from simlab.memory.ledger import STATES
from simlab.memory.step import StepWalk
from simlab.program import Program
from simlab.schema import MaybeNan
from simlab.trace import ACTIVATIONS


class OfPair(TypedDict):
    """What is said of a pair beside its fields."""

    error: float | None


class Overheads(TypedDict):
    """What the box adds to a computation and to a round of messages, in seconds."""

    compute: float
    round: float


class Facts(TypedDict):
    """The facts of a run; docs/command-line.md says what each key means."""

    name: str
    folder: str
    schedule: str
    pp: int
    stages: int
    microbatches: int
    ranks: int
    model: dict[str, int]
    precision: Annotated[str, ("fp32", "bf16", "fp16")]
    backend: Annotated[str, ("native", "torch")]
    compute: Annotated[str, ("real", "padded", "cuda")]
    why_compute: str
    device: str
    predicted_step_s: float | None
    measured_step_s: float
    error: float | None
    steps_s: list[float]
    losses: list[MaybeNan]
    norms: list[float | None]
    loss_scale: float | None
    first_step: int
    reference_losses: list[float] | None
    sent_bytes_measured: list[dict[str, float]]
    sent_bytes_predicted: list[dict[str, float]] | None
    memory_bytes: list[dict[str, float]]
    memory_bytes_predicted: list[dict[str, float]] | None
    allocator_bytes: list[float | None]
    exposed_s_measured: list[dict[str, float]] | None
    exposed_s_predicted: list[dict[str, float]] | None
    vitals: list[list[Vitals]] | None
    stragglers: list[tuple[int, float]]
    progress: list[Said] | None
    gradient_error: NotRequired[float | None]
    loss_error: NotRequired[float | None]
    time_scale: NotRequired[float]
    overhead_s: NotRequired[Overheads]
    link_s: NotRequired[float]
    disturbed_by: NotRequired[str | None]
    op_s: NotRequired[dict[str, Annotated[dict[str, float | None], Pair, OfPair]]]
    bubble_measured: NotRequired[Annotated[dict[str, float], Bubble]]
    bubble_predicted: NotRequired[Annotated[dict[str, float], Bubble]]
    idle_s_measured: NotRequired[list[float]]
    idle_s_predicted: NotRequired[list[float]]
    peak_live_microbatches_measured: NotRequired[list[float]]
    peak_live_microbatches_predicted: NotRequired[list[float]]
    peak_activation_bytes_measured: NotRequired[list[float]]
    why: NotRequired[Annotated[dict[str, Any], Diagnosis] | None]


class Answer(TypedDict):
    """What realrun prints of the runs of a plan or of programs."""

    ok: bool
    failed: list[str]
    out: str
    calibrations: list[str]
    runs: list[Facts]


def answer(job: Job, measured: list[dict[str, Any]]) -> dict[str, Any]:
    """What rank 0 answers of `job`; measured: what `Session.run` returned.

    The facts of the run of a plan; of programs {"runs": [the facts of each], "calibrations": [the
    file of each]}.
    """
    runs = [facts(job, run, its) for run, its in zip(job.runs, measured)]
    if job.programs is None:
        return runs[0]
    return {
        "runs": runs,
        "calibrations": [str(job.calibration_path(stages)) for stages in job.stage_counts],
    }


def facts(job: Job, run: Run, measured: dict[str, Any]) -> dict[str, Any]:
    """The facts of a run, whose traces are in its folder: plain values, with the keys of
    docs/command-line.md. measured: {"parts": [of each rank], "backend": what that adds}."""
    parts, traces = measured["parts"], load_traces(job, run)
    found = _what_ran(job, run, traces) | {
        "first_step": parts[0]["first_step"],
        "loss_scale": parts[0].get("loss_scale"),
        "losses": parts[0]["losses"],
        "norms": parts[0]["norms"],
        "reference_losses": parts[0]["reference_losses"],
        "vitals": parts[0]["vitals"],
        "progress": parts[0].get("progress"),
        "stragglers": _stragglers(job, parts[0]["vitals"]),
        "sent_bytes_predicted": _of_each_rank(job, listed_bytes, run),
        "sent_bytes_measured": [part["sent_bytes"] for part in parts],
        "memory_bytes_predicted": _of_each_rank(job, predicted_memory, run),
        "memory_bytes": [part["memory_bytes"] for part in parts],
        "allocator_bytes": [part["allocator_bytes"] for part in parts],
        "exposed_s_measured": traces.measured.metadata.get("exposed_s"),
        "exposed_s_predicted": traces.predicted and traces.predicted.metadata.get("exposed_s"),
    }
    if "gradient_error" in parts[0]:
        found["gradient_error"] = max(part["gradient_error"] for part in parts)
        found["loss_error"] = abs(parts[0]["loss"] / parts[0]["expected_loss"] - 1)
    if job.programs is not None:
        found |= _op_facts(job, traces)
    return found | measured["backend"]


def _what_ran(job: Job, run: Run, traces: RunTraces) -> dict[str, Any]:
    """What was run, how, and how long its step took."""
    return {
        "name": run.name,
        "schedule": run.plan.schedule if job.programs is None else run.name,
        "backend": job.backend,
        "compute": _compute(job, traces.measured.metadata["device"]),
        "why_compute": _why_compute(job, traces.measured.metadata["device"]),
        "device": traces.measured.metadata["device"],
        "precision": run.plan.precision,
        "ranks": job.ranks,
        "pp": run.plan.pp,
        "stages": run.program.stages,
        "microbatches": run.plan.microbatches,
        "model": job.sizes,
        "folder": str(run.folder),
        "steps_s": traces.steps_s,
        "measured_step_s": median(traces.steps_s),
        "predicted_step_s": traces.predicted_s,
        "error": traces.predicted_s and traces.predicted_s / median(traces.steps_s) - 1,
    }


def _compute(job: Job, device: str) -> str:
    """'real', 'padded' or 'cuda': what an op's time is made of. `device`: its name."""
    if job.programs is not None:
        return str(job.compute)
    if job.box is not None:
        return "padded"
    return "real" if device.startswith("cpu") else "cuda"


def _why_compute(job: Job, device: str) -> str:
    if job.programs is not None:
        return job.why_compute
    if job.box is not None:
        return f"to the times of {job.box['cluster']}"
    shared = shared_gpus(job.ranks) if _compute(job, device) == "cuda" else None
    return shared or "at full speed"


def _op_facts(job: Job, traces: RunTraces) -> dict[str, Any]:
    """What is known of a program that was timed op by op."""
    both = {"predicted": traces.predicted, "measured": traces.measured}
    found: dict[str, Any] = {
        "link_s": job.link_s,
        "peak_activation_bytes_measured": peak_memory(traces.measured, ACTIVATIONS),
    }
    for which, trace in both.items():
        if trace is not None:
            found[f"bubble_{which}"] = bubble(trace)._asdict()
            found[f"idle_s_{which}"] = idle_s(trace)
            found[f"peak_live_microbatches_{which}"] = peak_memory(trace)
    if traces.predicted is not None:
        found["disturbed_by"] = traces.predicted.metadata["calibration"]["metadata"]["disturbed_by"]
        pairs = compare(traces.predicted, traces.measured).op_s
        found["op_s"] = {kind: asdict(pair) | {"error": pair.error} for kind, pair in pairs.items()}
    return found


def _stragglers(job: Job, vitals: list[Any] | None) -> list[tuple[int, float]]:
    """[(rank, how many times as long as its peers it computes)] of the measured steps."""
    if not vitals:
        return []
    steps = vitals[-job.steps :]
    computed_s = [sum(step[rank]["computed_s"] for step in steps) for rank in range(job.ranks)]
    return stragglers(computed_s, job.executed)


def _of_each_rank(
    job: Job, predicted: Callable[[Job, Run, int], dict[str, float]], run: Run
) -> list[dict[str, float]] | None:
    """[what is `predicted` of each rank]; None of a program that breaks the rules."""
    if job.programs is not None and not job.checked:
        return None
    return [predicted(job, run, rank) for rank in range(job.ranks)]


def listed_bytes(job: Job, run: Run, rank: int) -> dict[str, float]:
    """{dimension: bytes that the instruction list of global rank `rank` sends in a step}."""
    return sent_bytes(job.instructions(rank, run.program), run.plan)


def predicted_memory(job: Job, run: Run, rank: int) -> dict[str, float]:
    """{"parameters", "gradients", "optimizer", "activations": bytes of global rank `rank`} by
    `simlab.memory.step`, as they are measured: states when a step ends (ZeRO-1's gradients are
    scattered by then), and activations between the program's ops."""
    model, plan, program = job.model, run.plan, run.program
    layers = plan.layers_of_stages(model.layers, program.stages)
    walk = StepWalk(model, plan, program, layers)
    place = plan.layout.coordinates(rank).pp
    end = walk.moments(place)[-1].held
    states = {name: end[name] for name in STATES}
    if plan.zero == 1:
        kinds = model.kinds_of_stages(layers)
        own = [kind for stage in program.stages_of(place) for kind in kinds[stage]]
        experts = expert_parameters(model, plan, own) * plan.gradient_bytes
        states["gradients"] = held_of(plan, "optimizer", states["gradients"], experts)
    return states | {"activations": max(accumulate(_changes(walk, program, place)))}


def _changes(walk: StepWalk, program: Program, place: int) -> Iterator[float]:
    """By how many bytes of activations more are held after each op of a rank; of two ops side by side,
    after each unit of theirs."""
    forward, between = walk.activations()
    memory = OpMemory(activations=forward, weight_grad=between)
    ops = iter(program.ranks[place])
    for op in ops:
        if op in program.paired:
            yield from walk.changes_side_by_side(op.stage, next(ops).stage)
        else:
            yield memory.change(op.stage, op.kind)


def totals(of_ranks: list[dict[str, float]]) -> dict[str, int]:
    """{dimension: bytes that all ranks send in a step}; one rank may send some more of a buffer
    that a ring cannot cut evenly."""
    dimensions = {dimension for sent in of_ranks for dimension in sent}
    return {
        dimension: round(sum(sent.get(dimension, 0.0) for sent in of_ranks))
        for dimension in dimensions
    }

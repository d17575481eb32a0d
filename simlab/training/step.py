"""A training step of a model under a plan on a cluster, op by op (`predict`) or layer by layer (`layer_trace`)."""

from simlab.analysis import peak_memory
from simlab.cost import OpMemory
from simlab.cost.kernels import kernel_names
from simlab.cost.memory import stage_memory
from simlab.cost.roofline import peak_flops
from simlab.cost.stage_times import StageCost, waits_for_messages
from simlab.engine import run_tasks, simulate
from simlab.errors import InputError, did_you_mean
from simlab.hardware import Link
from simlab.refinement import Refinement
from simlab.schedules import CHUNKED, generate
from simlab.trace import ACTIVATIONS, SEND, Span, Trace
from simlab.training.data_parallel import before, host_bytes, offloaded, optimizer, rank_parameters, reduced, sharded
from simlab.training.prediction import Prediction, capacity_bytes, does_not_fit, op_times


def predict(model, plan, cluster, *, strict=False, faster=None):
    """`Prediction` of a step of `model` under `plan` on `cluster`; `InputError` if the plan cannot be, or (strict) does not fit.

    faster: {kernel: how many times as fast}, see `simlab.cost.stage_times.StageCost`.

    The pipeline is simulated op by op; an op's time is its kernels' and what of their communication nothing hides. Gradients are
    reduced stage by stage, as they become ready in the last backward (or after it, without `Plan.dp_overlap`), from ZeRO-2 on in each;
    the optimizer starts on all ranks when the last one's are there, for their norm is of all of them. Leaves out: reading data,
    evaluation, checkpoints, stragglers, what contention beyond `Plan`'s own groups costs, and with sequence parallelism the sums of
    norms' gradients over tp (`simlab.playback` has them).
    """
    plan.check(model, cluster.gpus)
    _check_kernels(faster or {}, model, plan)
    program = program_of(plan)
    layers = plan.layers_of_stages(model.layers, program.stages)
    last_stage = program.stages - 1
    for part in cluster.parts:
        part.gpu.peak(plan.precision)
    costs = _costs(model, plan, cluster, faster or {})
    cost = costs[0]
    rank_of = {stage: rank for rank in range(plan.pp) for stage in program.stages_of(rank)}
    split = any(op.kind == "W" for ops in program.ranks for op in ops)
    stages = []
    for s, count in enumerate(layers):
        own, ends = costs[rank_of[s]], {"first": s == 0, "last": s == last_stage}
        times = _with_messages(own, own.stage(count, **ends), [rank_of[s] != rank_of.get(other, rank_of[s]) for other in (s - 1, s + 1)])
        stages.append(offloaded(own, sharded(own, times, count, split, **ends), count, split, **ends))
    link = _link(cost)
    memory = [stage_memory(model, plan, count, first=s == 0, last=s == last_stage) for s, count in enumerate(layers)]
    held = OpMemory(activations=tuple(m.activations for m in memory), unit="bytes")
    trace = simulate(program, op_times(stages), link=link, message_bytes=round(cost.message_bytes()), memory=held)
    parameters = rank_parameters(cost, program, layers)
    before_s, ends = before(cost, program, parameters, layers, trace), reduced(cost, trace, parameters)
    last_s = trace.end_s
    begin_s = max(max(ends), last_s)
    optimizer_s, offload_s = max((optimizer(its, program, parameters, layers) for its in costs), key=sum)
    step_s = before_s + begin_s + optimizer_s + offload_s
    trace.spans.extend(Span(rank, "optimizer", "step", begin_s, begin_s + optimizer_s) for rank in range(plan.pp))
    held = _held(plan, program, trace, memory)
    peak_rank = max(range(plan.pp), key=lambda rank: sum(held[rank].values()))
    memory_bytes = held[peak_rank]
    prediction = Prediction(
        model, plan, cluster, stages, trace, step_s, before_s, begin_s - last_s, optimizer_s, offload_s, memory_bytes, peak_rank,
        program, held, host_bytes(cost, program, parameters),
    )  # fmt: skip
    if not prediction.fits:
        trace.metadata["activation_cap"] = capacity_bytes(cluster) - sum(memory_bytes.values()) + memory_bytes["activations"]
        if strict:
            raise InputError(does_not_fit(prediction))
    return prediction


def layer_trace(model, plan, cluster, *, collapsed=True):
    """The same step, layer by layer: a `Trace` whose spans are layers' kernels and collectives, on the streams compute, tp, cp, dp,
    replicas (of HSDP) and send, of all GPUs or (collapsed) of one for each pipeline stage.

    A span's op names the op and the part of it: '2F0 layer 3'. Until the optimizer's begin, and without what precedes the first
    forward, nor offloading. Every GPU that takes part in a collective has a span of it.
    """
    plan.check(model, cluster.gpus)
    refinement = Refinement(model, plan, cluster, program_of(plan), collapsed=collapsed)
    times = run_tasks(refinement.tasks)
    spans = []
    for task, start_s, end_s in zip(refinement.tasks, times.starts, times.ends):
        if task.stream.startswith("pp"):
            source, destination = task.ranks
            spans.append(Span(source, SEND, task.op, start_s, end_s, int(task.size_bytes), destination))
        elif task.seconds > 0:  # the others only keep order
            name = f"{task.op} {task.name}".strip()
            spans.extend(Span(rank, task.stream, name, start_s, end_s, int(task.size_bytes)) for rank in task.ranks)
    metadata = {"name": f"{model.name}, layer by layer", "source": "simulated", "ranks": refinement.ranks, "level": "layers"}
    return Trace(spans, [], metadata)


def _check_kernels(faster, model, plan):
    known = kernel_names(model, plan)
    for name in faster:
        if name not in known:
            raise InputError(f"kernel {name!r}{did_you_mean(name, known) or ';'} there is {', '.join(known)}")


def program_of(plan):
    """The `Program` of one pipeline of `plan`."""
    options = {"chunks": plan.chunks if plan.schedule in CHUNKED else None}
    if plan.schedule == "zb-auto":
        raise InputError("zb-auto searches for given op times: take it with simlab's schedule command, or another schedule in a plan")
    if plan.schedule == "dualpipe":
        raise InputError("dualpipe holds each stage on two ranks, which a plan cannot say yet: take dualpipe-v")
    return generate(plan.schedule, plan.pp, plan.microbatches, **options)


def _costs(model, plan, cluster, faster):
    """[`StageCost` of each pipeline rank]: of the slowest GPU among those that share its stages."""
    if not cluster.more:
        return [StageCost(model, plan, cluster, faster=faster)] * plan.pp
    kinds = [{cluster.gpu_of(first + rank) for rank in plan.offsets("tp", "cp", "dp")} for first in plan.offsets("pp")]
    slowest = [min(gpus, key=lambda gpu: peak_flops(gpu, plan.precision)) for gpus in kinds]
    costs = {gpu.name: StageCost(model, plan, cluster, gpu=gpu, faster=faster) for gpu in slowest}
    return [costs[gpu.name] for gpu in slowest]


def _with_messages(cost, times, from_others):
    """`times` of a stage with what it does to its messages: from_others: whether those of its forward, of its backward come from another
    rank."""
    for name, crosses in zip(("forward", "input_grad"), from_others):
        if crosses:
            times = times._replace(**{name: getattr(times, name).plus(cost.received())})
    return times


def _link(cost):
    """The `Link` between neighbouring stages."""
    latency_s, wire_s = cost.message_s()
    bandwidth = cost.message_bytes() / wire_s if wire_s > 0 else float("inf")
    overhead_s = latency_s + wire_s if waits_for_messages(cost.plan) else 0.0
    return Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, overhead_s=overhead_s)


def _held(plan, program, trace, memory):
    """[per rank: {category: bytes} at its peak]"""
    held, peaks = [], peak_memory(trace, ACTIVATIONS)
    for rank in range(plan.pp):
        mine = [memory[stage] for stage in program.stages_of(rank)]
        states = {name: sum(getattr(m, name) for m in mine) for name in ("parameters", "gradients", "optimizer")}
        held.append(states | {"activations": peaks[rank], "buffers": max(m.buffers for m in mine)})
    return held

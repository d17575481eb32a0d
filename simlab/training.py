"""A training step of a model under a plan on a cluster: its time and what it is spent on, its memory, its utilisation.

Ranks that differ only in their data, tensor or context coordinate do the same at the same time, so one pipeline stands for all of
them: as many ranks are simulated as there are pipeline stages, and collectives take the time that they take over all.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simlab.analysis import breaches, peak_memory, trace_stack
from simlab.cost import OpMemory, OpTimes
from simlab.cost.memory import layer_activations_bytes, stage_memory, stage_parameters
from simlab.cost.roofline import memory_s, peak_flops
from simlab.cost.stage_times import BESIDE, Parts, StageCost, waits_for_messages
from simlab.engine import run_tasks, simulate
from simlab.errors import InputError
from simlab.hardware import Link
from simlab.refinement import Refinement
from simlab.schedules import CHUNKED, generate
from simlab.trace import ACTIVATIONS, SEND, Span, Trace
from simlab.units import bytes_text, seconds_text

TENSORS_A_LAYER = 12
"""Parameters (as tensors) of a layer with biases: two norms' two, four matrices' and their biases."""

OPTIMIZER_BYTES = {"fp16": 60, "bf16": 44, "fp8": 44, "fp32": 40}
"""Read and written per parameter in a step of Adam. fp32: 28 (gradient, weight and two moments read; three written), 4 for the gradients'
norm, 8 to clip them. bf16: 2 more for the 16-bit weight, 2 to clear its gradient. fp16: its gradient copied to fp32 (6), unscaled and
looked through for infinities (8), too."""

OPTIMIZER_OPS_A_TENSOR = {"fp16": 4}
"""{precision: ops that the host dispatches for each parameter tensor}: with a loss scaler its gradient is copied, checked and cleared one
by one; else 1, what calls that take lists of tensors come to."""


class Waterfall(NamedTuple):
    """Seconds of a step by what they are spent on, as means over ranks; they add up to the step."""

    compute: float
    host: float
    tp: float
    cp: float
    dp: float
    pp: float
    bubble: float
    optimizer: float
    offload: float


@dataclass(frozen=True)
class Prediction:
    """What a step is predicted to take."""

    model: object
    plan: object
    cluster: object
    stages: list
    """`StageTimes` of each pipeline stage."""
    trace: object
    """Of one pipeline: compute, messages, and on streams 'dp' and 'optimizer' what follows."""
    step_s: float
    before_s: float
    """Exposed gathering of sharded parameters before the first forward."""
    after_s: float
    """From the last backward's end to the optimizer's begin, on the rank that is last: exposed reduction of gradients."""
    optimizer_s: float
    offload_s: float
    memory_bytes: dict
    """{category: bytes} at the peak of the rank with the highest one."""
    peak_rank: int
    program: object
    held: list
    """[per rank: {category: bytes} at its own peak]."""

    @property
    def tokens(self):
        """Tokens in a step."""
        return self.plan.global_batch * (self.plan.seq or self.model.seq)

    @property
    def tokens_per_s(self):
        """Of all GPUs together."""
        return self.tokens / self.step_s

    @property
    def peak_flops(self):
        """The peak of all GPUs in 16 bits (what utilisation is given of, in fp8 too)."""
        precision = "fp32" if self.plan.precision == "fp32" else "bf16"
        return sum(part.gpus * peak_flops(part.gpu, precision) for part in self.cluster.parts)

    @property
    def mfu(self):
        """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): nothing computed twice is counted twice."""
        return self.model.flops_per_token(self.plan.seq) * self.tokens_per_s / self.peak_flops

    @property
    def hfu(self):
        """Hardware FLOPs utilisation: what is computed again counts."""
        return self.model.hardware_flops_per_token(self.plan.seq, self.plan.recompute) * self.tokens_per_s / self.peak_flops

    @property
    def fits(self):
        """Whether the peak is within the GPU's memory."""
        return sum(self.memory_bytes.values()) <= capacity_bytes(self.cluster)

    @property
    def breaches(self):
        """[`Breach`]: per pipeline rank the first op with which it holds more than the GPU has; amounts are of activations, in bytes."""
        room = capacity_bytes(self.cluster) - sum(self.memory_bytes.values()) + self.memory_bytes["activations"]
        return breaches(self.trace, max(0.0, room))

    def memory_stack(self, rank=None):
        """What `rank` (None: the one with the highest peak) holds over the step, as a `Stack`: states for good, activations as the trace
        has them, buffers while an op runs."""
        rank = self.peak_rank if rank is None else rank
        held = dict(self.held[rank])
        del held["activations"]
        name = f"{self.model.name}, rank {rank} of {self.plan.pp}" if self.plan.pp > 1 else self.model.name
        end_s = max(self.trace.end_s, *(span.end_s for span in self.trace.spans))
        return trace_stack(
            self.trace, rank, held, buffers=held.pop("buffers"), end_s=end_s, capacity_bytes=capacity_bytes(self.cluster), name=name
        )

    @cached_property
    def waterfall_s(self):
        """`Waterfall`. Messages' share is told apart from the bubble by simulating the same pipeline with messages that take no time."""
        spent = [Parts()] * self.plan.pp
        per_op = {(s, kind): parts for s, times in enumerate(self.stages) for kind, parts in _parts_by_kind(times).items()}
        counts = {}
        for rank, ops in enumerate(self.program.ranks):
            for op in ops:
                counts[rank, op.stage, op.kind] = counts.get((rank, op.stage, op.kind), 0) + 1
        for (rank, stage, kind), count in counts.items():
            spent[rank] = spent[rank].plus(per_op[stage, kind].times(count))
        mean = Parts(*(sum(parts) / self.plan.pp for parts in zip(*spent)))
        pipeline_s = self.trace.step_s
        pp_s = 0.0
        if self.plan.pp > 1:
            pp_s = max(0.0, pipeline_s - simulate(self.program, _op_times(self.stages)).step_s)
        bubble_s = max(0.0, pipeline_s - mean.total - pp_s)
        return Waterfall(
            mean.compute, mean.host, mean.tp, mean.cp, mean.dp + self.before_s + self.after_s, pp_s, bubble_s,
            self.optimizer_s, mean.offload + self.offload_s,
        )  # fmt: skip

    @property
    def exposed_s(self):
        """{dimension: seconds that it adds to the step}."""
        spent = self.waterfall_s
        return {"dp": spent.dp, "tp": spent.tp, "pp": spent.pp, "cp": spent.cp}


def capacity_bytes(cluster):
    """Memory of a GPU, bytes; of the smallest where there are several kinds."""
    return min(part.gpu.memory_bytes for part in cluster.parts)


def predict(model, plan, cluster, *, strict=False, faster=None):
    """`Prediction` of a step of `model` under `plan` on `cluster`; `InputError` if the plan cannot be, or (strict) does not fit.

    faster: {kernel: how many times as fast}, see `simlab.cost.stage_times.StageCost`.

    The pipeline is simulated op by op; an op's time is its kernels' and what of their communication nothing hides. Gradients are
    reduced stage by stage, as they become ready in the last backward (or after it, without `Plan.dp_overlap`); the optimizer starts
    on all ranks when the last one's are there, for their norm is of all of them. Leaves out: reading data, evaluation, checkpoints,
    stragglers, and what contention beyond `Plan`'s own groups costs.
    """
    plan.check(model, cluster.gpus)
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
        stages.append(_offloaded(own, _sharded(own, own.stage(count, **ends), count, split), count, split, **ends))
    link = _link(cost)
    memory = [stage_memory(model, plan, count, first=s == 0, last=s == last_stage) for s, count in enumerate(layers)]
    held = OpMemory(activations=tuple(m.activations for m in memory), unit="bytes")
    trace = simulate(program, _op_times(stages), link=link, message_bytes=round(cost.message_bytes()), memory=held)
    parameters = _rank_parameters(cost, program, layers)
    before_s, ends = _before(cost, program, parameters, layers), _reduced(cost, trace, parameters)
    last_s = trace.end_s
    begin_s = max(max(ends), last_s)
    optimizer_s, offload_s = _optimizer(cost, program, parameters, layers)
    step_s = before_s + begin_s + optimizer_s + offload_s
    trace.spans.extend(Span(rank, "optimizer", "step", begin_s, begin_s + optimizer_s) for rank in range(plan.pp))
    held = _held(plan, program, trace, memory)
    peak_rank = max(range(plan.pp), key=lambda rank: sum(held[rank].values()))
    memory_bytes = held[peak_rank]
    prediction = Prediction(
        model, plan, cluster, stages, trace, step_s, before_s, begin_s - last_s, optimizer_s, offload_s, memory_bytes, peak_rank,
        program, held,
    )  # fmt: skip
    if not prediction.fits:
        trace.metadata["activation_cap"] = capacity_bytes(cluster) - sum(memory_bytes.values()) + memory_bytes["activations"]
        if strict:
            raise InputError(does_not_fit(prediction))
    return prediction


def does_not_fit(prediction):
    """What is too much, where, from which op on."""
    memory = prediction.memory_bytes
    largest = sorted(memory, key=memory.get, reverse=True)[:2]
    too_much = sum(memory.values()) - capacity_bytes(prediction.cluster)
    first = min(prediction.breaches, key=lambda breach: breach.time_s, default=None)
    when = f" from {first.op} at {seconds_text(first.time_s)} on" if first else " before the first op"
    return (
        f"{bytes_text(sum(memory.values()))} on pipeline rank {prediction.peak_rank}, {bytes_text(too_much)} more than a GPU has,{when}; "
        f"most are {' and '.join(f'{name} {bytes_text(memory[name])}' for name in largest)}"
    )


def _costs(model, plan, cluster, faster):
    """[`StageCost` of each pipeline rank]: of the slowest GPU among those that share its stages."""
    if not cluster.more:
        return [StageCost(model, plan, cluster, faster=faster)] * plan.pp
    width = plan.gpus // plan.pp
    kinds = [{cluster.gpu_of(rank) for rank in range(p * width, (p + 1) * width)} for p in range(plan.pp)]
    slowest = [min(gpus, key=lambda gpu: peak_flops(gpu, plan.precision)) for gpus in kinds]
    costs = {gpu.name: StageCost(model, plan, cluster, gpu=gpu, faster=faster) for gpu in slowest}
    return [costs[gpu.name] for gpu in slowest]


def layer_trace(model, plan, cluster, *, collapsed=True):
    """The same step, layer by layer: a `Trace` whose spans are layers' kernels and collectives, on the streams compute, tp, cp, dp and
    send, of all GPUs or (collapsed) of one for each pipeline stage.

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


def program_of(plan):
    """The `Program` of one pipeline of `plan`."""
    options = {"chunks": plan.chunks if plan.schedule in CHUNKED else None}
    if plan.schedule == "zb-auto":
        raise InputError("zb-auto searches for given op times: take it with simlab's schedule command, or another schedule in a plan")
    if plan.schedule == "dualpipe":
        raise InputError("dualpipe holds each stage on two ranks, which a plan cannot say yet: take dualpipe-v")
    return generate(plan.schedule, plan.pp, plan.microbatches, **options)


def _op_times(stages):
    return OpTimes(
        forward_s=tuple(s.forward.total for s in stages), backward_s=tuple(s.backward.total for s in stages),
        input_grad_s=tuple(s.again.total + s.input_grad.total for s in stages), weight_grad_s=tuple(s.weight_grad.total for s in stages),
    )  # fmt: skip


def _parts_by_kind(times):
    return {"F": times.forward, "B": times.backward, "I": times.again.plus(times.input_grad), "W": times.weight_grad}


def _link(cost):
    """The `Link` between neighbouring stages."""
    latency_s, wire_s = cost.message_s()
    bandwidth = cost.message_bytes() / wire_s if wire_s > 0 else float("inf")
    overhead_s = latency_s + wire_s if waits_for_messages(cost.plan) else 0.0
    return Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, overhead_s=overhead_s)


# data parallelism ---------------------------------------------------------------------------------------------


def _rank_parameters(cost, program, layers):
    """[parameters of each stage] on one rank."""
    ends = program.stages - 1
    return [stage_parameters(cost.model, cost.plan, n, first=s == 0, last=s == ends) for s, n in enumerate(layers)]


def _sharded(cost, times, layers, split):
    """`times` with what ZeRO-3 adds, for every microbatch: each layer's communication runs next to another layer's computing, as far as
    that takes long enough; the first one's has nothing beside it. Without prefetch none has. What makes the gradients is followed by
    their scattering: the weight gradient where backwards are `split`."""
    gather_s, backward_gather_s, scatter_s = cost.sharded_s()
    if not gather_s:
        return times
    hides = cost.plan.prefetch > 0

    def parts(of, communication_s, compute_s):
        exposed_s = communication_s + (layers - 1) * (max(0.0, communication_s - compute_s) if hides else communication_s)
        hidden_s = layers * communication_s - exposed_s
        return of._replace(dp=exposed_s, compute=of.compute + BESIDE * hidden_s)

    forward = parts(times.forward, gather_s, cost.layer.forward.total)
    if split:
        return times._replace(
            forward=forward,
            input_grad=parts(times.input_grad, backward_gather_s, cost.layer.again.total + cost.layer.input_grad.total),
            weight_grad=parts(times.weight_grad, scatter_s, cost.layer.weight_grad.total),
        )
    return times._replace(
        forward=forward,
        input_grad=parts(times.input_grad, backward_gather_s + scatter_s, cost.layer.backward.total),
    )


def _offloaded(cost, times, layers, split, *, first, last):
    """`times` with what offloading adds, for every microbatch: activations leave for the host during its forward and come back for its
    backward, or parameters come for both; beside computing, as far as that takes long enough."""
    plan = cost.plan
    if plan.offload == "activations":
        size = layers * layer_activations_bytes(cost.model, plan, plan.recompute)
    elif plan.offload == "parameters":
        own = stage_parameters(cost.model, plan, layers, first=first, last=last) / (plan.shards if plan.zero == 3 else 1)
        size = own * plan.element_bytes
    else:
        return times
    bandwidth = cost.cluster.pcie_bytes_per_s
    if plan.offload_to == "nvme":  # which the GPUs of a node share
        bandwidth = min(bandwidth, cost.cluster.nvme_bytes_per_s / min(plan.gpus, cost.cluster.gpus_per_node))
    moved_s = size / bandwidth
    backward_s = times.again.total + times.input_grad.total + (0.0 if split else times.weight_grad.total)
    return times._replace(
        forward=times.forward._replace(offload=max(0.0, moved_s - times.forward.total)),
        input_grad=times.input_grad._replace(offload=max(0.0, moved_s - backward_s)),
    )


def _reduced(cost, trace, parameters):
    """[when each rank's gradients are reduced, s], with their spans added to `trace`.

    A stage's gradients become ready evenly during its last backward, and are reduced in buckets, one after the other.
    """
    plan = cost.plan
    last = {}
    for span in trace.compute():
        kind = span.op.lstrip("0123456789")[0]
        if kind in "BW":
            stage = int(span.op.split(kind)[0])
            if stage not in last or span.end_s > last[stage].end_s:
                last[stage] = span
    ends = [0.0] * plan.pp
    finished = [0.0] * plan.pp
    for span in trace.compute():
        finished[span.rank] = max(finished[span.rank], span.end_s)
    for stage in sorted(last, key=lambda s: last[s].end_s):
        span = last[stage]
        total_s = cost.reduce_s(parameters[stage])
        if not total_s:
            ends[span.rank] = max(ends[span.rank], span.end_s)
            continue
        buckets = cost.buckets(parameters[stage] * plan.gradient_bytes)
        if plan.dp_overlap:
            first_s = span.start_s + (span.end_s - span.start_s) / buckets
            start_s = max(ends[span.rank], first_s)
            end_s = max(start_s + total_s, span.end_s + total_s / buckets)
        else:
            start_s = max(ends[span.rank], finished[span.rank])
            end_s = start_s + total_s
        trace.spans.append(Span(span.rank, "dp", f"{stage} gradients", start_s, end_s, int(parameters[stage] * plan.gradient_bytes)))
        ends[span.rank] = end_s
    if tied_s := cost.tied_head_s():
        ends[0] = ends[-1] = max(ends[0], ends[-1], finished[0], finished[-1]) + tied_s
    return ends


def _before(cost, program, parameters, layers):
    """Exposed seconds of gathering the parameters that ZeRO-1 and 2 updated in shards: next to the first forwards, as far as those last."""
    plan = cost.plan
    if plan.zero not in (1, 2) or plan.shards == 1:
        return 0.0
    worst = 0.0
    for rank in range(plan.pp):
        mine = program.stages_of(rank)
        size = sum(parameters[stage] for stage in mine) * plan.element_bytes
        buckets = cost.buckets(size)
        total_s = buckets * cost.collective_s("all_gather", size / buckets, cost.groups.shard)
        if plan.dp_overlap:
            room_s = sum(layers[stage] for stage in mine) * cost.layer.forward.total
            total_s = max(total_s / buckets, total_s - room_s)
        worst = max(worst, total_s)
    return worst


def _optimizer(cost, program, parameters, layers):
    """(seconds of the optimizer's step, of moving its states over PCIe) on the rank with most parameters."""
    plan, cluster = cost.plan, cost.cluster
    ranks = [program.stages_of(rank) for rank in range(plan.pp)]
    own = max(sum(parameters[stage] for stage in mine) for mine in ranks) / (plan.shards if plan.zero else 1)
    tensors = TENSORS_A_LAYER * max(sum(layers[stage] for stage in mine) for mine in ranks)
    host_s = tensors * OPTIMIZER_OPS_A_TENSOR.get(plan.precision, 1) * cost.host_op_s
    norm_s = 2 * cost.collective_s("all_reduce", 4, cost.groups.dp) if plan.gpus > 1 else 0.0
    seconds = max(memory_s(OPTIMIZER_BYTES[plan.precision] * own, cost.gpu), host_s) + norm_s
    if plan.offload in ("optimizer", "parameters"):
        back = plan.element_bytes if plan.offload == "optimizer" else 0  # parameters that live there stay there
        in_node = min(plan.gpus, cluster.gpus_per_node)
        moved_s = own * (plan.gradient_bytes + back) / cluster.pcie_bytes_per_s
        if plan.offload_to == "nvme":  # all states there and back
            moved_s += in_node * own * 2 * 12 / cluster.nvme_bytes_per_s
        return in_node * own * HOST_ADAM_S, moved_s
    return seconds, 0.0


HOST_ADAM_S = 28 / 100e9
"""Seconds per parameter of Adam on a node's host: 28 bytes read and written, at 100 GB/s, half of what eight channels of DDR4-3200 carry.
An estimate; DeepSpeed's CPU-Adam is bound by the same (Ren et al. 2021, ZeRO-Offload, section 5.1)."""


# memory -------------------------------------------------------------------------------------------------------


def _held(plan, program, trace, memory):
    """[per rank: {category: bytes} at its peak]"""
    held, peaks = [], peak_memory(trace, ACTIVATIONS)
    for rank in range(plan.pp):
        mine = [memory[stage] for stage in program.stages_of(rank)]
        states = {name: sum(getattr(m, name) for m in mine) for name in ("parameters", "gradients", "optimizer")}
        held.append(states | {"activations": peaks[rank], "buffers": max(m.buffers for m in mine)})
    return held

"""A training step of a model under a plan on a cluster: its time and what it is spent on, its memory, its utilisation.

Ranks that differ only in their data, tensor or context coordinate do the same at the same time, so one pipeline stands for all of
them: as many ranks are simulated as there are pipeline stages, and collectives take the time that they take over all.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simlab.analysis import peak_memory
from simlab.cost import OpMemory, OpTimes
from simlab.cost.communication import Group
from simlab.cost.memory import stage_memory, stage_parameters
from simlab.cost.roofline import memory_s, peak_flops
from simlab.cost.stage_times import BESIDE, HOST_OP_S, Parts, StageCost
from simlab.engine import run_tasks, simulate
from simlab.errors import InputError
from simlab.hardware import Link
from simlab.refinement import Refinement
from simlab.schedules import CHUNKED, generate
from simlab.trace import ACTIVATIONS, SEND, Span, Trace

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
        return self.plan.gpus * peak_flops(self.cluster.gpu, precision)

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
        return sum(self.memory_bytes.values()) <= self.cluster.gpu.memory_bytes

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


def predict(model, plan, cluster):
    """`Prediction` of a step of `model` under `plan` on `cluster`; `InputError` if the plan cannot be.

    The pipeline is simulated op by op; an op's time is its kernels' and what of their communication nothing hides. Gradients are
    reduced stage by stage, as they become ready in the last backward (or after it, without `Plan.dp_overlap`); the optimizer starts
    on all ranks when the last one's are there, for their norm is of all of them. Leaves out: reading data, evaluation, checkpoints,
    stragglers, and what contention beyond `Plan`'s own groups costs.
    """
    plan.check(model, cluster.gpus)
    program = _program(plan)
    layers = plan.layers_of_stages(model.layers, program.stages)
    last_stage = program.stages - 1
    cost = StageCost(model, plan, cluster)
    stages = [_sharded(cost, cost.stage(count, first=s == 0, last=s == last_stage), count) for s, count in enumerate(layers)]
    link = _link(cost)
    memory = [stage_memory(model, plan, count, first=s == 0, last=s == last_stage) for s, count in enumerate(layers)]
    held = OpMemory(activations=tuple(m.activations for m in memory), unit="bytes")
    trace = simulate(program, _op_times(stages), link=link, message_bytes=cost.message_bytes(), memory=held)
    parameters = _rank_parameters(cost, program, layers)
    before_s, ends = _before(cost, program, parameters, layers), _reduced(cost, trace, parameters)
    last_s = trace.end_s
    begin_s = max(max(ends), last_s)
    optimizer_s, offload_s = _optimizer(cost, program, parameters, layers)
    step_s = before_s + begin_s + optimizer_s + offload_s
    trace.spans.extend(Span(rank, "optimizer", "step", begin_s, begin_s + optimizer_s) for rank in range(plan.pp))
    peak_rank, memory_bytes = _peak(plan, program, trace, memory)
    return Prediction(
        model, plan, cluster, stages, trace, step_s, before_s, begin_s - last_s, optimizer_s, offload_s, memory_bytes, peak_rank, program
    )


def layer_trace(model, plan, cluster, *, collapsed=True):
    """The same step, layer by layer: a `Trace` whose spans are layers' kernels and collectives, on the streams compute, tp, cp, dp and
    send, of all GPUs or (collapsed) of one for each pipeline stage.

    A span's op names the op and the part of it: '2F0 layer 3'. Until the optimizer's begin, and without what precedes the first
    forward. Every GPU that takes part in a collective has a span of it.
    """
    plan.check(model, cluster.gpus)
    refinement = Refinement(model, plan, cluster, _program(plan), collapsed=collapsed)
    times = run_tasks(refinement.tasks)
    spans = []
    for task, start_s, end_s in zip(refinement.tasks, times.starts, times.ends):
        if task.stream.startswith("pp"):
            source, destination = task.ranks
            spans.append(Span(source, SEND, task.op, start_s, end_s, int(task.size_bytes), destination))
        else:
            name = f"{task.op} {task.name}".strip()
            spans.extend(Span(rank, task.stream, name, start_s, end_s, int(task.size_bytes)) for rank in task.ranks)
    metadata = {"name": f"{model.name}, layer by layer", "source": "simulated", "ranks": refinement.ranks, "level": "layers"}
    return Trace(spans, [], metadata)


def _program(plan):
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
    """The `Link` between neighbouring stages. One stage a rank: Megatron-LM's 1F1B waits until what it sends is there."""
    latency_s, wire_s = cost.message_s()
    bandwidth = cost.message_bytes() / wire_s if wire_s > 0 else float("inf")
    return Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, overhead_s=0.0 if cost.plan.chunks > 1 else latency_s + wire_s)


# data parallelism ---------------------------------------------------------------------------------------------


def _rank_parameters(cost, program, layers):
    """[parameters of each stage] on one rank."""
    ends = program.stages - 1
    return [stage_parameters(cost.model, cost.plan, n, first=s == 0, last=s == ends) for s, n in enumerate(layers)]


def _sharded(cost, times, layers):
    """`times` with what ZeRO-3 adds, for every microbatch: each layer's communication runs next to another layer's computing, as far as
    that takes long enough; the first one's has nothing beside it. Without prefetch none has."""
    gather_s, backward_gather_s, scatter_s = cost.sharded_s()
    if not gather_s:
        return times
    hides = cost.plan.prefetch > 0

    def parts(of, communication_s, compute_s):
        exposed_s = communication_s + (layers - 1) * (max(0.0, communication_s - compute_s) if hides else communication_s)
        hidden_s = layers * communication_s - exposed_s
        return of._replace(dp=exposed_s, compute=of.compute + BESIDE * hidden_s)

    return times._replace(
        forward=parts(times.forward, gather_s, cost.layer.forward.total),
        input_grad=parts(times.input_grad, backward_gather_s + scatter_s, cost.layer.backward.total),
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
    if cost.model.tied_head and plan.pp > 1:  # the two copies of the embedding sum their gradients
        size = cost.model.vocab * cost.model.hidden / plan.tp * plan.gradient_bytes
        both_s = cost.collective_s("all_reduce", size, Group(2, 1 if plan.gpus > cost.cluster.gpus_per_node else 2))
        ends[0] = ends[-1] = max(ends[0], ends[-1]) + both_s
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
    host_s = tensors * OPTIMIZER_OPS_A_TENSOR.get(plan.precision, 1) * HOST_OP_S
    norm_s = 2 * cost.collective_s("all_reduce", 4, cost.groups.dp) if plan.gpus > 1 else 0.0
    seconds = max(memory_s(OPTIMIZER_BYTES[plan.precision] * own, cost.gpu), host_s) + norm_s
    if plan.offload in ("optimizer", "parameters"):
        moved_s = own * (plan.gradient_bytes + plan.element_bytes) / cluster.pcie_bytes_per_s
        return HOST_ADAM_S * own, moved_s
    return seconds, 0.0


HOST_ADAM_S = 1 / 1.2e9
"""Seconds per parameter of Adam on the host: DeepSpeed's CPU-Adam does about 1.2 billion a second (Ren et al. 2021, ZeRO-Offload)."""


# memory -------------------------------------------------------------------------------------------------------


def _peak(plan, program, trace, memory):
    """(rank, {category: bytes}) of the rank that holds most at its peak."""
    best, peaks = None, peak_memory(trace, ACTIVATIONS)
    for rank in range(plan.pp):
        mine = [memory[stage] for stage in program.stages_of(rank)]
        states = {name: sum(getattr(m, name) for m in mine) for name in ("parameters", "gradients", "optimizer")}
        states["activations"] = peaks[rank]
        states["buffers"] = max(m.buffers for m in mine)
        if best is None or sum(states.values()) > sum(best[1].values()):
            best = rank, states
    return best

"""What data parallelism, sharding, offload and the optimizer add to a pipeline's step."""

from simlab.cost.memory import OPTIMIZER_STATE_BYTES, layer_activations_bytes, stage_parameters
from simlab.cost.roofline import memory_s
from simlab.cost.stage_times import BESIDE
from simlab.trace import Span

TENSORS_A_LAYER = 12
"""Parameters (as tensors) of a layer with biases: two norms' two, four matrices' and their biases."""

OPTIMIZER_BYTES = {"fp16": 60, "bf16": 44, "fp8": 44, "fp32": 40}
"""Read and written per parameter in a step of Adam. fp32: 28 (gradient, weight and two moments read; three written), 4 for the gradients'
norm, 8 to clip them. bf16: 2 more for the 16-bit weight, 2 to clear its gradient. fp16: its gradient copied to fp32 (6), unscaled and
looked through for infinities (8), too."""

OPTIMIZER_OPS_A_TENSOR = {"fp16": 4}
"""{precision: ops that the host dispatches for each parameter tensor}: with a loss scaler its gradient is copied, checked and cleared one
by one; else 1, what calls that take lists of tensors come to."""


HOST_ADAM_S = 28 / 100e9
"""Seconds per parameter of Adam on a node's host: 28 bytes read and written, at 100 GB/s, half of what eight channels of DDR4-3200 carry.
An estimate; DeepSpeed's CPU-Adam is bound by the same (Ren et al. 2021, ZeRO-Offload, section 5.1)."""


def host_sharers(plan, cluster):
    """GPUs of a node that the plan uses: one host updates what all of them own, and its drives carry it."""
    return min(plan.gpus, cluster.gpus_per_node)


def rank_parameters(cost, program, layers):
    """[parameters of each stage] on one rank."""
    ends = program.stages - 1
    return [stage_parameters(cost.model, cost.plan, n, first=s == 0, last=s == ends) for s, n in enumerate(layers)]


def sharded(cost, times, layers, split):
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


def offloaded(cost, times, layers, split, *, first, last):
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
        bandwidth = min(bandwidth, cost.cluster.nvme_bytes_per_s / host_sharers(plan, cost.cluster))
    moved_s = size / bandwidth
    backward_s = times.again.total + times.input_grad.total + (0.0 if split else times.weight_grad.total)
    return times._replace(
        forward=times.forward._replace(offload=max(0.0, moved_s - times.forward.total)),
        input_grad=times.input_grad._replace(offload=max(0.0, moved_s - backward_s)),
    )


def reduced(cost, trace, parameters):
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
        buckets = cost.buckets(parameters[stage])
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


def before(cost, program, parameters, layers, trace):
    """Exposed seconds of gathering the parameters that ZeRO-1 and 2 updated in shards, at the step's begin.

    A rank gathers its stages in the order of their first forwards, which `trace` has without it. A forward begins with the first bucket
    and ends no earlier than the last one; later ranks have time until the pipeline reaches them. All wait for the worst.
    """
    plan = cost.plan
    if plan.zero not in (1, 2) or plan.shards == 1:
        return 0.0
    starts = {}
    for span in trace.compute():
        stage, is_forward, _ = span.op.partition("F")
        if is_forward:
            starts[int(stage)] = min(span.start_s, starts.get(int(stage), span.start_s))
    worst = 0.0
    for rank in range(plan.pp):
        gathered_s = 0.0
        for stage in sorted(program.stages_of(rank), key=starts.get):
            buckets = cost.buckets(parameters[stage])
            piece_s = cost.collective_s("all_gather", parameters[stage] * plan.element_bytes / buckets, cost.groups.shard)
            forward_s = layers[stage] * cost.layer.forward.total if plan.dp_overlap else 0.0
            first_s = piece_s if plan.dp_overlap else buckets * piece_s
            worst = max(worst, gathered_s + first_s - starts[stage], gathered_s + buckets * piece_s - starts[stage] - forward_s)
            gathered_s += buckets * piece_s
    return worst


def optimizer(cost, program, parameters, layers):
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
        in_node = host_sharers(plan, cluster)
        moved_s = own * (plan.gradient_bytes + back) / cluster.pcie_bytes_per_s
        if plan.offload_to == "nvme":  # all states there and back
            moved_s += in_node * own * 2 * OPTIMIZER_STATE_BYTES[plan.precision] / cluster.nvme_bytes_per_s
        return in_node * own * HOST_ADAM_S, moved_s
    return seconds, 0.0

"""What data parallelism, sharding, offload and the optimizer add to a pipeline's step."""

from simlab.cost.memory import layer_activations_bytes, state_bytes
from simlab.cost.parameters import stage_parameters
from simlab.cost.roofline import memory_s
from simlab.cost.stage_times import BESIDE
from simlab.trace import Span

TENSORS_A_LAYER = 12
"""Parameters (as tensors) of a layer with biases: two norms' two, four matrices' and their biases."""

OPTIMIZER_BYTES = {"fp16": 60, "bf16": 44, "fp8": 44, "fp32": 40}
"""Read and written per parameter in a step of Adam. fp32: 28 (gradient, weight and two moments read; three written), 4 for the gradients'
norm, 8 to clip them. bf16: 2 more for the 16-bit weight, 2 to clear its gradient. fp16: its gradient copied to fp32 (6), unscaled and
looked through for infinities (8), too."""

FOREACH_BYTES = 92
"""The same of torch's AdamW, which takes lists of tensors, op by op, in fp32 (torch/optim/adam.py, `_multi_tensor_adam`): weight decay 8,
first moment 12, second 8 and 12, root 8, its correction 8, epsilon 8, update 16; 4 for the norm, 8 to clip."""

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


def sharded(cost, times, layers, split, *, first, last):
    """`times` of a stage with what ZeRO-2 and 3 add for every microbatch: gathering each unit's parameters, scattering its gradients.
    A unit is a layer, the embedding or the head. What makes the gradients is followed by their scattering: the weight gradient where
    backwards are `split`."""
    units = ["embedding"] * first + ["layer"] * layers + ["head"] * last
    kinds = {unit: cost.sharded_s(unit, first=first) for unit in units}
    if not any(any(its) for its in kinds.values()):
        return times

    def parts(of, kind, gather, scatter):
        order = units if kind == "F" else units[::-1]
        gathers, scatters = ([kinds[unit][at] if at is not None else 0.0 for unit in order] for at in (gather, scatter))
        computes = [getattr(cost, unit).of(kind).total for unit in order]
        exposed_s = exposed_sharding_s(gathers, computes, scatters, cost)
        return of._replace(dp=exposed_s, compute=of.compute + BESIDE * max(0.0, sum(gathers) + sum(scatters) - exposed_s))

    times = times._replace(forward=parts(times.forward, "F", 0, None))
    if split:
        return times._replace(input_grad=parts(times.input_grad, "I", 1, None), weight_grad=parts(times.weight_grad, "W", None, 2))
    return times._replace(input_grad=parts(times.input_grad, "B", 1, 2))


def exposed_sharding_s(gathers, computes, scatters, cost):
    """Seconds that an op's units wait, by seconds of each unit in the op's order, with the rules of `simlab.instructions`: on one stream
    `Plan.prefetch` units are gathered ahead of the one that computes; a unit's gradients are scattered behind its computing, and it waits
    until those of the unit before the last have been. ZeRO-3's next op needs a gathering behind the last of them, so that is waited for."""
    ahead, beside = cost.plan.prefetch, cost.scatters_beside
    stream_s = now_s = 0.0
    arrived, scattering = [], []
    for at, compute_s in enumerate(computes):
        for gather_s in gathers[len(arrived) : at + ahead + 1]:
            stream_s = max(stream_s, now_s) + gather_s if gather_s else stream_s
            arrived.append(stream_s if gather_s else 0.0)
        now_s = max(now_s, arrived[at]) + compute_s
        if scatters[at]:
            now_s = max([now_s, *scattering[-2:-1]])
            stream_s = max(stream_s, now_s) + scatters[at]
            scattering.append(stream_s)
            now_s = now_s if beside else stream_s
    return max(now_s, stream_s if cost.plan.zero == 3 else 0.0) - sum(computes)


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

    A stage's gradients become ready evenly during its last backward, and are reduced in buckets, one after the other; from ZeRO-2 on each
    backward has scattered its own (`sharded`), but for its last unit's and, with `Plan.hybrid`, the sums between replicas. What a reduction
    runs beside takes longer (`BESIDE`), and the last bucket is ready so much later. Left out: that other ranks' last backwards wait for it.
    """
    plan = cost.plan
    last = {}
    for span in trace.compute():
        kind = span.op.lstrip("0123456789")[0]
        if kind in "BW":
            stage = int(span.op.split(kind)[0])
            if stage not in last or span.end_s > last[stage].end_s:
                last[stage] = span
    ends, slowed = [0.0] * plan.pp, [0.0] * plan.pp
    finished = [0.0] * plan.pp
    for span in trace.compute():
        finished[span.rank] = max(finished[span.rank], span.end_s)
    for stage in sorted(last, key=lambda s: last[s].end_s):
        span = last[stage]
        total_s = cost.last_reduce_s(parameters[stage])
        left_s = cost.sharded_s("layer" if stage else "embedding")[2] if plan.zero == 2 and cost.scatters_beside else 0.0
        if not total_s:
            ends[span.rank] = max(ends[span.rank], span.end_s + left_s)
            continue
        buckets = cost.buckets(parameters[stage])
        if plan.dp_overlap:
            first_s = span.start_s + (span.end_s - span.start_s) / buckets
            start_s = max(ends[span.rank], first_s)
            slowed[span.rank] += BESIDE * min(total_s, max(0.0, span.end_s - start_s))
            end_s = max(start_s + total_s, span.end_s + slowed[span.rank] + left_s + total_s / buckets)
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
    and ends no earlier than the last one, and what it gathers meanwhile slows it (`BESIDE`); later ranks have time until the pipeline
    reaches them. All wait for the worst.
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
            first_s, all_s = gathered_s + (piece_s if plan.dp_overlap else buckets * piece_s), gathered_s + buckets * piece_s
            slowed_s = BESIDE * min(forward_s, max(0.0, all_s - max(first_s, starts[stage])))
            worst = max(worst, slowed_s + max(0.0, first_s - starts[stage]), all_s - starts[stage] - forward_s)
            gathered_s = all_s
    return worst


def optimizer(cost, program, parameters, layers):
    """(seconds of the optimizer's step, of moving its states over PCIe) on the rank with most parameters."""
    plan, cluster = cost.plan, cost.cluster
    if plan.offload in ("optimizer", "parameters"):
        own = _own_parameters(plan, program, parameters)
        back = plan.element_bytes if plan.offload == "optimizer" else 0  # parameters that live there stay there
        in_node = host_sharers(plan, cluster)
        moved_s = own * (plan.gradient_bytes + back) / cluster.pcie_bytes_per_s
        if plan.offload_to == "nvme":  # all states there and back
            moved_s += in_node * own * 2 * state_bytes(plan).optimizer / cluster.nvme_bytes_per_s
        return in_node * own * HOST_ADAM_S, moved_s
    norm_s = 2 * cost.collective_s("all_reduce", 4, cost.groups.dp) if plan.gpus > 1 else 0.0
    return update_s(cost, program, parameters, layers) + norm_s, 0.0


def host_bytes(cost, program, parameters):
    """What is on a node's host of its GPUs' states: moments, the fp32 copy and gradients; parameters too if they are offloaded."""
    plan = cost.plan
    if plan.offload not in ("optimizer", "parameters") or plan.offload_to != "host":
        return 0.0
    states = state_bytes(plan)
    each = states.optimizer + states.gradient + (states.parameter if plan.offload == "parameters" else 0)
    return each * _own_parameters(plan, program, parameters) * host_sharers(plan, cost.cluster)


def update_s(cost, program, parameters, layers):
    """Seconds of the update alone, without the norm of all gradients, on the rank with most parameters."""
    plan = cost.plan
    tensors = TENSORS_A_LAYER * max(sum(layers[stage] for stage in program.stages_of(rank)) for rank in range(plan.pp))
    host_s = tensors * OPTIMIZER_OPS_A_TENSOR.get(plan.precision, 1) * cost.host_op_s
    moved = OPTIMIZER_BYTES[plan.precision] if plan.library == "megatron" else FOREACH_BYTES
    return max(memory_s(moved * _own_parameters(plan, program, parameters), cost.gpu), host_s)


def _own_parameters(plan, program, parameters):
    """Of those that a rank updates, the most."""
    return max(sum(parameters[s] for s in program.stages_of(rank)) for rank in range(plan.pp)) / (plan.shards if plan.zero else 1)

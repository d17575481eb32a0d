"""A training step of a model under a plan on a cluster, op by op (`predict`) or layer by layer
(`layer_trace`)."""

from collections.abc import Hashable, Mapping, Sequence
from functools import partial

from simlab.cost import OpMemory
from simlab.cost.optimizer import rank_parameters
from simlab.cost.rank_walk import RankWalk, op_parts
from simlab.cost.roofline import peak_flops
from simlab.cost.stage_times import StageCost, StageTimes, sends_block
from simlab.cost.walk import Parts
from simlab.engine import simulate
from simlab.engine.play import ClusterTimes, play
from simlab.errors import InputError, did_you_mean, require_positive
from simlab.lowering.build import program_of
from simlab.lowering.instructions import RankLowering
from simlab.lowering.kernels import kernel_names
from simlab.memory.step import StepWalk, held_by_rank
from simlab.program import Program
from simlab.spec.cluster import Cluster
from simlab.spec.hardware import Gpu, Link
from simlab.spec.model import Model
from simlab.spec.named import AnyCluster, AnyModel, named
from simlab.spec.plan import Plan
from simlab.trace import Trace
from simlab.training.prediction import Prediction
from simlab.training.walked import (
    end_spans,
    host_bytes,
    optimizer_s,
    rank_walks,
    shown_spans,
    step_end,
)


def predict(
    model: AnyModel,
    plan: Plan,
    cluster: AnyCluster,
    *,
    strict: bool = False,
    faster: Mapping[str, float] | None = None,
) -> Prediction:
    """`Prediction` of a step of `model` under `plan` on `cluster`; `InputError` if the plan cannot
    be, or (strict) does not fit.

    model, cluster: the objects, or their names in the catalogue: of a cluster as many nodes as the plan
    needs.
    faster: {kernel: how many times as fast}, see `simlab.cost.stage_times.StageCost`.

    The pipeline is simulated op by op. An op takes as long as a walk over its instructions does:
    its kernels, plus the communication that does not overlap with them. Gradients are reduced stage
    by stage, as they become ready in the last backward (or after it, without `Plan.dp_overlap`),
    from ZeRO-2 on in each. The optimizer starts on all ranks when the last one's gradients are
    there, for their norm is of all of them. Leaves out: reading data, evaluation, checkpoints,
    stragglers, and what contention beyond `Plan`'s own groups costs. The step is as long as that of
    `layer_trace`, except where GPUs of a node share a NIC: there a transfer slows those of other
    ranks that are under way, which only the layer trace sees (0.06% of a step in
    tests/simlab/engine/test_play.py).
    """
    model, plan, cluster = named(model, plan, cluster)
    plan.check(model, cluster.gpus)
    _check_kernels(faster or {}, model, plan)
    check_precision(plan, cluster)
    check_offload(plan.offload, plan.offload_to, cluster)
    program = program_of(plan)
    layers = plan.layers_of_stages(model.layers, program.stages)
    costs = _costs(model, plan, cluster, faster or {})
    links, memory = _links(costs[0], program), StepWalk(model, plan, program, layers)
    fresh_walks = partial(rank_walks, model, plan, program, costs)
    walks = fresh_walks()
    trace = _simulated(costs[0], program, walks, links, memory)
    trace.metadata["cluster"] = cluster.name
    last_s, spent = trace.end_s, [walk.parts for walk in walks]
    held_s = [{n: getattr(its, n) for n in ("tp", "cp", "ep") if getattr(its, n)} for its in spent]
    if any(held_s):
        trace.metadata["within_ops_s"] = held_s
    parameters = rank_parameters(model, plan, program, layers)
    end = step_end(walks, trace, optimizer_s(costs, program, parameters, layers), links)
    trace.spans.extend(shown_spans(walks))
    trace.spans.extend(end_spans(walks, end))
    held = held_by_rank(memory)
    peak_rank = max(range(plan.pp), key=lambda rank: sum(held[rank].values()))
    prediction = Prediction(
        model=model,
        plan=plan,
        cluster=cluster,
        stages=stage_times(costs, model, plan, program),
        trace=trace,
        step_s=end.end_s,
        after_s=end.reduced_s - last_s,
        optimizer_s=end.end_s - end.reduced_s - end.copying_s,
        offload_s=end.copying_s,
        memory_bytes=held[peak_rank],
        peak_rank=peak_rank,
        program=program,
        held=held,
        host_bytes=host_bytes(costs[0], program, parameters),
        spent=spent,
        walks=fresh_walks,
    )
    _check_memory(prediction, strict)
    return prediction


def _simulated(
    cost: StageCost,
    program: Program,
    walks: Sequence[RankWalk],
    links: dict[tuple[int, int], Link],
    memory: StepWalk,
) -> Trace:
    """The trace of the ops, with the activations that they hold in bytes."""
    activations, weight_grad = memory.activations()
    return simulate(
        program,
        walks,
        link=links,
        message_bytes=round(cost.message_bytes()),
        memory=OpMemory(activations=activations, weight_grad=weight_grad, unit="bytes"),
    )


def _check_memory(prediction: Prediction, strict: bool) -> None:
    """Where tensors exceed the memory, note how many bytes are left for activations; (strict) raise
    `InputError` where the prediction does not fit."""
    held = prediction.memory_bytes
    if (left := prediction.capacity_bytes - sum(held.values())) < 0:
        prediction.trace.metadata["activation_cap"] = left + held["activations"]
    if strict and not prediction.fit.fits:
        raise InputError(f"{prediction.fit}. {prediction.excess_text}".rstrip(" ."))


def layer_trace(
    model: AnyModel, plan: Plan, cluster: AnyCluster, *, collapsed: bool = True
) -> Trace:
    """The same step, instruction by instruction: a `Trace` whose spans are layers' kernels and
    collectives, on the streams compute, tp, cp, dp, replicas (of HSDP), offload out, offload in,
    drive, send and optimizer, of all GPUs or (collapsed) of one for each pipeline stage.

    A span's op names the op and the part of it: '2F0 layer 3'. Every GPU that takes part in a
    collective has a span of it. `Trace.whole_step_s` is the time of the step, with the reductions,
    the copies and the optimizer after the last op, as `Prediction.step_s` is; `Trace.step_s` ends
    with the last op.
    """
    model, plan, cluster = named(model, plan, cluster)
    plan.check(model, cluster.gpus)
    check_precision(plan, cluster)
    check_offload(plan.offload, plan.offload_to, cluster)
    program = program_of(plan)
    trace = play(
        model, plan, program, ClusterTimes(model, plan, cluster, program), collapsed=collapsed
    )
    trace.metadata |= {"name": f"{model.name}, layer by layer", "level": "layers"}
    trace.metadata["cluster"] = cluster.name
    return trace


def check_precision(plan: Plan, cluster: Cluster) -> None:
    """`InputError` unless every GPU of `cluster` has the plan's precision."""
    for part in cluster.parts:
        part.gpu.peak("fp8" if plan.precision.startswith("fp8") else plan.precision)


def check_offload(offload: str, to: str, cluster: Cluster) -> None:
    """`InputError` unless all figures of `cluster` are known that a plan uses with `Plan.offload` and
    `Plan.offload_to`."""
    if offload != "none":
        place = "nvme_bytes_per_s" if to == "nvme" else "host_memory_bytes"
        for part in cluster.parts:
            part.require_known("pcie_bytes_per_s", place)


def _check_kernels(faster: Mapping[str, float], model: Model, plan: Plan) -> None:
    known = kernel_names(model, plan)
    for name, factor in faster.items():
        require_positive(f"how many times as fast {name!r} is", factor)
        if name not in known:
            raise InputError(
                f"kernel {name!r}{did_you_mean(name, known) or ';'} there is {', '.join(known)}"
            )


def _costs(
    model: Model, plan: Plan, cluster: Cluster, faster: Mapping[str, float]
) -> list[StageCost]:
    """[`StageCost` of each pipeline rank]: of the slowest GPU among those that share its stages."""
    if not cluster.more:
        return [StageCost(model, plan, cluster, faster=faster)] * plan.pp
    kinds: list[set[Gpu]] = [set() for _ in range(plan.pp)]
    for rank, place in enumerate(plan.layout.all_coordinates()):
        for pp in plan.layout.same_stages(place.pp):
            kinds[pp].add(cluster.gpu_of(rank))
    slowest = [min(gpus, key=lambda gpu: peak_flops(gpu, plan.precision)) for gpus in kinds]
    costs = {gpu.name: StageCost(model, plan, cluster, gpu=gpu, faster=faster) for gpu in slowest}
    return [costs[gpu.name] for gpu in slowest]


def stage_times(
    costs: Sequence[StageCost], model: Model, plan: Plan, program: Program
) -> list[StageTimes]:
    """[`StageTimes` of each stage]: of ops that begin while nothing is in flight. costs:
    `StageCost` of each pipeline rank. Kinds of ops that the program does not have take no time
    here.

    An op stands for all of its kind on its stage, with what it does in every microbatch: the
    reductions of a last backward, and the waits of a first forward, are not among them.
    """
    kinds = model.kinds_of_stages(plan.layers_of_stages(model.layers, program.stages))
    found: dict[tuple[int, str], Parts] = {}
    alike: dict[tuple[Hashable, ...], Parts] = {}  # by what makes ops alike
    for rank, cost in enumerate(costs):
        lowering = None
        for op in {op[:2]: op for op in program.ranks[rank]}.values():
            received = any(program.rank_of[need] != rank for need in program.needs(op))
            ends = op.stage == 0, op.stage == program.stages - 1
            key = id(cost), op.kind, kinds[op.stage], *ends, received
            if key not in alike:
                if lowering is None:
                    lowering = RankLowering(model, plan, program, rank, kernels=cost.kernels)
                    lowering.last = {}
                alike[key] = op_parts(cost, lowering, op)
            found[op[:2]] = alike[key]
    return [
        StageTimes(*(found.get((stage, kind), Parts()) for kind in "FBIW"))
        for stage in range(program.stages)
    ]


def _links(cost: StageCost, program: Program) -> dict[tuple[int, int], Link]:
    """{(rank, other rank): the `Link` between them}, of those that hold neighbouring stages."""
    per_node, layout = cost.cluster.gpus_per_node, cost.plan.layout
    nodes = [layout.rank(pp=p) // per_node for p in range(cost.plan.pp)]
    links: dict[tuple[int, int], Link] = {}
    between: dict[bool, Link] = {}
    for op in {(rank, *op[:2]): op for op, rank in program.rank_of.items()}.values():
        user = program.user(op)
        if user is None:
            continue
        pair = program.rank_of[op], program.rank_of[user]
        if pair[0] == pair[1] or pair in links:
            continue
        in_node = nodes[pair[0]] == nodes[pair[1]]
        if in_node not in between:
            between[in_node] = _link(cost, in_node)
        links[pair] = between[in_node]
    return links


def _link(cost: StageCost, in_node: bool) -> Link:
    latency_s, wire_s = cost.message_s(in_node)
    bandwidth = cost.message_bytes() / wire_s if wire_s > 0 else float("inf")
    overhead_s = latency_s + wire_s if sends_block(cost.plan) else 0.0
    return Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth, overhead_s=overhead_s)

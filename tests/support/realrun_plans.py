"""Plans executed on processes, for the tests of the executor: the same model and text in one
process, what ought to be the same, memory."""

import math
from dataclasses import replace
from functools import cache
from itertools import combinations, product

import torch
import torch.distributed as dist

from realrun.comm.channels import Channels
from realrun.comm.mesh import Mesh
from realrun.model.gpt import Stage, loss
from realrun.model.reference import single_process
from realrun.model.sizes import model_of
from realrun.model.text import batch
from realrun.parallel.units import StageUnits
from realrun.run.conformance import Conformance
from realrun.run.executor import Executor
from simlab.lowering.build import program_of
from simlab.lowering.instructions import BEGIN, rank_instructions
from simlab.spec.plan import Plan

SIZES = {"layers": 4, "hidden": 32, "heads": 4, "seq": 16, "microbatch_size": 2}
EXPERTS = {"experts": 4, "experts_per_token": 2, "capacity": 16}
ERROR = {"float64": 1e-9, "float32": 1e-5}
TINY = 1e-12  # a part may be of bytes that do not occur, whose gradients are 0


def sizes_of(fields):
    """Those of the model that a plan with these fields trains: one with experts, if they say over
    how many ranks these are shared."""
    return SIZES | with_experts(*parts_of(fields)) if "ep" in fields else SIZES


def parts_of(fields):
    """(parts of a sequence that are routed by themselves, context-parallel ranks in zigzag): context-parallel
    ranks route their own tokens, and so do tensor-parallel ones with experts of their own."""
    parts = fields["cp"] * (fields["tp"] if fields.get("etp") == 1 else 1)
    return parts, 1 if fields.get("cp_layout") == "contiguous" else fields["cp"]


def with_experts(parts=1, zigzag=1):
    """The sizes of experts that take the tokens of so many parts of a sequence each by itself."""
    routed = {"routed_parts": parts, "routed_zigzag": zigzag}
    return EXPERTS | {"capacity": EXPERTS["capacity"] // parts} | routed


def plan_of(fields, sizes=SIZES):
    """The `Plan` with these fields and the sizes' microbatches."""
    return Plan(
        precision="fp32", microbatch_size=sizes["microbatch_size"], seq=sizes["seq"], **fields
    )


def world(fields):
    """How many processes it takes."""
    return math.prod(fields[name] for name in ("dp", "tp", "pp", "cp"))


def data(plan, step):
    """(tokens, targets) of all replicas in a step."""
    return batch(step, plan.dp * plan.microbatches, plan.microbatch_size, plan.seq)


@cache
def alone(microbatches, stages, dtype, stage_layers=None, parts=()):
    """(loss, [per stage {parameter name: gradient}]) of the first step in one process. parts: of a
    model with experts, see `with_experts`; () without."""
    tokens, targets = batch(0, microbatches, SIZES["microbatch_size"], SIZES["seq"])
    sizes = SIZES | with_experts(*parts) if parts else SIZES
    return single_process(sizes, stages, tokens, targets, dtype, stage_layers)


def loss_alone(fields, dtype_name):
    """The loss of the first step of a plan with these fields, in one process."""
    plan, parts = plan_of(fields), parts_of(fields) if "ep" in fields else ()
    dtype = getattr(torch, dtype_name)
    return alone(plan.dp * plan.microbatches, plan.stages, dtype, None, parts)[0]


def assert_alike(found, loss, dtype_name):
    """What `one_step` has found on each rank is as in one process, whose loss is given, and in fp32,
    which is what the list's bytes are for, they sent those."""
    most = ERROR[dtype_name]
    assert abs(sum(rank["loss"] for rank in found) / loss - 1) < most
    for rank in found:
        assert rank["gradients"] < most and rank["norm"] < most
        sent = rank["bytes"].values()
        assert dtype_name != "float32" or all(counted == listed for counted, listed in sent)


# plans
# ------------------------------------------------------------------------------------------------------

SHARDING = [
    *({"zero": zero, "dp_overlap": overlap} for zero in (0, 1, 2) for overlap in (True, False)),
    *({"zero": 3, "prefetch": prefetch, "dp_overlap": True} for prefetch in (0, 1, 2)), {"zero": 3, "dp_overlap": False},
    {"zero": 3, "reshard": False},
]  # fmt: skip


def all_plans(most=8):
    """[fields of a plan] of at most so many processes: every combination of what makes a difference
    where there is such a dimension."""
    plans = []
    for dp, tp, pp, cp in product((1, 2, 4), (1, 2), (1, 2), (1, 2)):
        if dp * tp * pp * cp > most:
            continue
        for sharding, schedule, recompute, sequence_parallel, cp_kind in product(
            SHARDING if dp * cp > 1 else [{}], ("gpipe", "1f1b", "zb-h1", "interleaved-1f1b") if pp > 1 else ("1f1b",), ("none", "full"),
            (False, True)[:tp], ("ring", "all-to-all")[:cp],
        ):  # fmt: skip
            names = {
                "schedule": schedule,
                "recompute": recompute,
                "sequence_parallel": sequence_parallel,
                "cp_kind": cp_kind,
            }
            plans.append(
                {
                    "dp": dp,
                    "tp": tp,
                    "pp": pp,
                    "cp": cp,
                    "microbatches": _microbatches(pp, schedule),
                    **sharding,
                    **names,
                }
            )
    return plans


def _microbatches(pp, schedule):
    """Interleaved schedules take groups of pp."""
    return 2 if pp == 1 else 4 if schedule == "interleaved-1f1b" else 3


def covering(plans):
    """Of `plans` some such that every two values that occur together in one of them do so in these,
    with few processes in all."""
    bits = {}
    pairs = [
        sum(1 << bits.setdefault(pair, len(bits)) for pair in combinations(plan.items(), 2))
        for plan in plans
    ]
    left, chosen = (1 << len(bits)) - 1, []
    while left:
        best = max(
            range(len(plans)),
            key=lambda at: (pairs[at] & left).bit_count() / (2 + world(plans[at])),
        )
        chosen.append(plans[best])
        left &= ~pairs[best]
    return chosen


# on a rank
# --------------------------------------------------------------------------------------------------


@cache
def _groups(rank, layout):
    """(`Mesh`, `Channels`): made once, for all plans of these degrees."""
    mesh = Mesh(layout, rank)
    return mesh, Channels(
        rank, torch.device("cpu"), {direction: dist.new_group() for direction in (1, -1)}
    )


def executor_of(
    rank, fields, dtype, optimizer, *, sizes=SIZES, conformance=Conformance, groups=None, **options
):
    """This rank's `Executor`; it checks every communication, and in fp32, which the plan has,
    its bytes. groups: its (`Mesh`, `Channels`); None: those of processes."""
    plan = plan_of(fields, sizes).check(model_of(sizes))
    program = program_of(plan)
    mesh, channels = groups or _groups(rank, replace(plan.layout, shards=None))
    mesh.traffic.clear()
    instructions = rank_instructions(
        model_of(sizes), plan, program, mesh["pp"].place, context_rank=mesh["cp"].place
    )

    def make_conformance(activations):
        return conformance(
            rank, instructions, check_bytes=dtype == torch.float32, activations=activations
        )

    return Executor(
        sizes,
        plan,
        program,
        mesh,
        channels,
        make_conformance,
        dtype=dtype,
        optimizer=optimizer,
        stage_layers=plan.layers_of_stages(sizes["layers"]),
        **options,
    )


class Gradients:
    """In an optimizer's place: keeps the gradients of its first step, and changes nothing."""

    def __init__(self, parameters):
        self.parameters = parameters

    def step(self):
        """All gradients are there."""
        self.found = [parameter.grad.clone() for parameter in self.parameters]

    def zero_grad(self, set_to_none=True):
        """As torch's."""
        for parameter in self.parameters:
            parameter.grad = None


def step_of(rank, fields, dtype_name):
    """What `one_step` finds on this rank, a process."""
    return one_step(*made_for_a_step(rank, fields, dtype_name))


def made_for_a_step(rank, fields, dtype_name, groups=None):
    """(this rank's `Executor`, the norm of the whole model's gradients, what its optimizer should be
    given). groups: see `executor_of`."""
    dtype = getattr(torch, dtype_name)
    executor = executor_of(
        rank, fields, dtype, Gradients, sizes=sizes_of(fields), limit=None, groups=groups
    )
    _, expected = alone(
        executor.plan.dp * executor.plan.microbatches,
        executor.program.stages,
        dtype,
        tuple(executor.stage_layers),
        parts_of(fields) if "ep" in fields else (),
    )
    gradients = [gradient for stage in expected for gradient in stage.values()]
    whole = sum(gradient.double().square().sum() for gradient in gradients).sqrt().item()
    return executor, whole, own_parts(executor, expected)


def one_step(executor, whole, expected):
    """{what: relative error} of this rank's gradients and the global norm; its part of the loss;
    bytes by dimension, sent and listed. See `made_for_a_step`."""
    _keep_traffic(executor.mesh)
    part, norm = executor.step(0, *data(executor.plan, 0))
    pairs = zip(executor.optimizer.found, expected, strict=True)
    return {
        "gradients": max(
            ((ours - theirs).norm() / theirs.norm().clamp(min=TINY)).item()
            for ours, theirs in pairs
        ),
        "norm": abs(norm / whole - 1),
        "loss": part if executor.mesh["tp"].place == 0 else 0.0,  # the others have the same
        "bytes": _bytes_by_dimension(executor),
    }


class _Kept(list):
    """The traffic of a mesh, which an executor empties when it has counted it."""

    def clear(self):
        """Keep it: it is compared with the list after the step."""


def _keep_traffic(mesh):
    mesh.traffic = _Kept()
    for group in mesh.groups.values():
        group.traffic = mesh.traffic


def own_parts(executor, gradients):
    """What this rank's optimizer should be given, in its order: [per stage {name: whole gradient}]
    cut as the parameters are."""
    stages = {}
    for number in executor.stages:
        whole = Stage(executor.sizes, number, executor.program.stages, executor.stage_layers).to(
            executor.dtype
        )
        for name, parameter in whole.named_parameters():
            parameter.data = gradients[number][name].clone()
        stages[number] = executor.stage(whole, number)
    units = StageUnits(
        stages,
        executor.plan,
        executor.mesh["dp"],
        executor.mesh["tp"],
        {},
        executor.gradient_type,
        executor.mesh.groups.get("edp"),
    )
    return [tensor.detach() for unit in units.all for tensor in unit.updated]


def _bytes_by_dimension(executor):
    """{dimension: (bytes of the collectives that the groups counted, of those that the list
    has)}"""
    sums = {}
    for one in executor.mesh.traffic:
        counted, listed = sums.get(one.dimension.partition("-")[0], (0, 0))
        sums[one.dimension.partition("-")[0]] = counted + one.size_bytes, listed
    for instruction in executor.log.instructions:
        if instruction.action == BEGIN and instruction.kind != "message":
            counted, listed = sums.get(instruction.dimension, (0, 0))
            sums[instruction.dimension] = counted, listed + instruction.size_bytes
    return sums


# training
# ---------------------------------------------------------------------------------------------------


def adam(parameters):
    """One that moves quickly."""
    return torch.optim.Adam(parameters, lr=3e-3, fused=True)


def shallow(fields):
    """Sizes of a model with few layers, that many steps of it may be quick."""
    return sizes_of(fields) | {"layers": max(2, plan_of(fields).stages)}


def losses_of(rank, fields, steps, limit):
    """[this process's part of the loss in each step]"""
    return losses_in(made_for_training(rank, fields, limit), steps)


def made_for_training(rank, fields, limit, groups=None):
    """This rank's `Executor` of a shallow model. groups: see `executor_of`."""
    sizes = shallow(fields)
    return executor_of(rank, fields, torch.float64, adam, sizes=sizes, limit=limit, groups=groups)


def losses_in(executor, steps):
    """[this rank's part of the loss in each step]"""
    losses = [executor.step(number, *data(executor.plan, number))[0] for number in range(steps)]
    return losses if executor.mesh["tp"].place == 0 else [0.0] * steps


def losses_alone(fields, steps, limit):
    """([loss of each step], [norm of its gradients]) of the same training in this process."""
    plan = plan_of(fields)
    stages = [Stage(shallow(fields), number, plan.stages).double() for number in range(plan.stages)]
    parameters = [parameter for stage in stages for parameter in stage.parameters()]
    optimizer, losses, norms = adam(parameters), [], []
    for number in range(steps):
        losses.append(0.0)
        for x, targets in zip(*data(plan, number)):
            for stage in stages:
                x = stage(x)
            part = loss(x, targets) / (plan.dp * plan.microbatches)
            part.backward()
            losses[-1] += part.item()
        norms.append(torch.nn.utils.clip_grad_norm_(parameters, limit).item())
        optimizer.step()
        optimizer.zero_grad()
    return losses, norms

"""What each dimension of a plan sends: bytes per GPU in a step, and how much of that crosses from node to node.

Collectives are counted as rings, in which every rank sends as much as the others: 2(n-1)/n S for an all-reduce of S bytes over n
ranks, (n-1)/n S for an all-gather or a reduce-scatter. Another algorithm sends about as much in other pieces.

It is the sum over `simlab.instructions`, but for what makes parts equal (a unit of parameters is padded by less than a number per rank)
and for the 16 bytes of the norm of all gradients, and in fp16 the 4 of whether one is infinite. Instructions have no tied heads; here
the sum of such a head's gradient with the embedding's is counted as pp's.
"""

from typing import NamedTuple

from simlab.collectives import busbw_factor
from simlab.cost.kernels import Communication, embedding_kernels, head_kernels, layer_kernels, message_kernels
from simlab.cost.parameters import partial_parameters, stage_parameters
from simlab.cost.stage_times import StageCost
from simlab.errors import require_whole
from simlab.training import program_of


class Traffic(NamedTuple):
    """One number per dimension."""

    tp: float
    cp: float
    dp: float
    """Over the ranks that hold the same part of the model, dp x cp of them: gradients and, with ZeRO, parameters."""
    pp: float

    @property
    def total(self):
        """Of all dimensions."""
        return sum(self)


def traffic(model, plan):
    """[`Traffic` of a GPU of each pipeline rank]: bytes that it sends in a step. All GPUs of a pipeline rank send as much."""
    plan.check(model)
    program = program_of(plan)
    layers, last = plan.layers_of_stages(model.layers, program.stages), program.stages - 1
    result = []
    for rank in range(plan.pp):
        sent = {"tp": 0.0, "cp": 0.0, "dp": 0.0, "pp": _messages(program, rank) * StageCost.message_bytes_of(model, plan)}
        for kernel in message_kernels(model, plan):
            sent[kernel.dimension] += _received(program, rank) * _sent_bytes(kernel, getattr(plan, kernel.dimension))
        for stage in program.stages_of(rank):
            ends = {"first": stage == 0, "last": stage == last}
            parts = [layer_kernels(model, plan)] * layers[stage]
            parts += [embedding_kernels(model, plan)] * ends["first"] + [head_kernels(model, plan)] * ends["last"]
            for kernel in (kernel for part in parts for kernels in part for kernel in kernels):
                if isinstance(kernel, Communication):
                    sent[kernel.dimension] += plan.microbatches * _sent_bytes(kernel, getattr(plan, kernel.dimension))
            sent["tp"] += _partial_gradients(plan, partial_parameters(model, plan, layers[stage], **ends))
            sent["dp"] += _data_parallel(plan, stage_parameters(model, plan, layers[stage], **ends))
        if model.tied_head and plan.pp > 1 and {0, last} & set(program.stages_of(rank)):  # both copies of the embedding sum their gradients
            sent["pp"] += model.vocab * model.hidden / plan.tp * plan.gradient_bytes
        result.append(Traffic(**sent))
    return result


def crossing(plan, gpus_per_node):
    """`Traffic` with the fraction of each dimension's hops, from a rank to the next of its group, that go from one node to another."""
    require_whole("gpus_per_node", gpus_per_node)
    at = {coordinate: rank for rank, coordinate in enumerate(plan.ranks())}
    groups = {"tp": {}, "cp": {}, "dp": {}, "pp": {}}
    for (d, c, p, t), rank in at.items():
        for dimension, key in (("tp", (d, c, p)), ("cp", (d, p, t)), ("dp", (p, t)), ("pp", (d, c, t))):
            groups[dimension].setdefault(key, []).append(rank)

    def share(dimension):
        hops = []
        for ranks in groups[dimension].values():
            after = ranks[1:] if dimension == "pp" else [*ranks[1:], *ranks[:1]]  # a ring is closed, a pipeline is not
            hops += [mine // gpus_per_node != its // gpus_per_node for mine, its in zip(ranks, after) if mine != its]
        return sum(hops) / len(hops) if hops else 0.0

    return Traffic(**{dimension: share(dimension) for dimension in groups})


def _sent_bytes(kernel, ranks):
    if kernel.kind == "ring":
        return kernel.steps * kernel.size_bytes
    return busbw_factor(kernel.kind.replace("_", "-"), ranks) * kernel.size_bytes


def _messages(program, rank):
    """How many messages `rank` sends in a step."""
    users = (program.user(op) for op in program.ranks[rank])
    return sum(user is not None and program.rank_of[user] != rank for user in users)


def _received(program, rank):
    """How many messages it receives."""
    return sum(program.rank_of[need] != rank for op in program.ranks[rank] for need in program.needs(op))


def _partial_gradients(plan, parameters):
    """With sequence parallelism: gradients of what meets only a rank's tokens, summed over tp before they are reduced."""
    return _reductions(plan) * 2 * _ring(plan.tp) * parameters * plan.gradient_bytes


def _reductions(plan):
    """How often gradients are reduced in a step: from ZeRO-2 on, which has no place for all of them, after each backward."""
    return plan.microbatches if plan.zero >= 2 else 1


def _data_parallel(plan, parameters):
    """Gradients, and the parameters that were updated in shards: gathered once a step, or with ZeRO-3 once or twice a microbatch."""
    gradients, shards = parameters * plan.gradient_bytes, plan.shards
    if plan.zero == 0:
        return _ring(plan.dp * plan.cp) * 2 * gradients
    gathers = plan.microbatches * (1 + plan.reshard) if plan.zero == 3 else 1
    sharded = _ring(shards) * (_reductions(plan) * gradients + gathers * parameters * plan.element_bytes)
    return sharded + _ring(plan.dp * plan.cp // shards) * 2 * gradients / shards


def _ring(ranks):
    """Of a buffer, what each rank sends in a reduce-scatter or an all-gather."""
    return (ranks - 1) / ranks

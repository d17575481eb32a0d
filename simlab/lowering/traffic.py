"""What each dimension of a plan sends: bytes per GPU in a step, and how much of that crosses from
node to node.

Bytes are summed from the lists of `simlab.lowering.instructions`. Collectives are counted as rings,
in which every rank sends as much as the others: 2(n-1)/n S for an all-reduce of S bytes over n
ranks, (n-1)/n S for an all-gather or a reduce-scatter. Another algorithm sends about as much in
other pieces.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import chain
from typing import NamedTuple

from simlab.collectives import busbw_factor
from simlab.errors import require_whole
from simlab.layer.units import UnitKind
from simlab.lowering.build import program_of
from simlab.lowering.instructions import Instruction, RankLowering, Work, group_of, group_size
from simlab.lowering.kernels import UnitKernels
from simlab.lowering.pieces import BEGIN, Piece, unit_pieces
from simlab.program import Op
from simlab.spec.named import AnyModel, model_of
from simlab.spec.plan import Plan

COUNTED_AS = {name: name for name in ("tp", "cp", "dp", "pp", "replicas", "ep", "edp")}
COUNTED_AS |= {"ends": "pp"}
"""{dimension of an instruction: field of `Traffic`}; copies to and from a host are none."""


class Traffic(NamedTuple):
    """One number per dimension."""

    tp: float
    cp: float
    dp: float
    """Over the ranks that hold the same part of the model, `Plan.holders` of them, or with `Plan.hybrid`
    over a shard group of them: gradients and, with ZeRO, parameters."""
    pp: float
    replicas: float = 0.0
    """Over the ranks that hold the same shard, with `Plan.hybrid`: what is left of the gradients."""
    ep: float = 0.0
    """Over the ranks that share experts: tokens, results and their gradients. With the dispatcher
    'once-a-node' the copies that ranks get; those that only pass on the way to another rank of a node
    are not counted."""
    edp: float = 0.0
    """Over the ranks that hold the same experts, with `Plan.ep`: these experts' gradients and
    parameters."""

    @property
    def total(self) -> float:
        """Of all dimensions."""
        return sum(self)


def traffic(model: AnyModel, plan: Plan) -> list[Traffic]:
    """[`Traffic` of a GPU of each pipeline rank]: bytes that it sends in a step. All GPUs of a
    pipeline rank send as much. Leaves out the norm of all gradients and the overflow flag, a few bytes
    each."""
    model = model_of(model)
    plan.check(model)
    program, kernels = program_of(plan), UnitKernels(model, plan)
    sums = _Sums(plan)
    return [
        sums.of_rank(RankLowering(model, plan, program, rank, kernels=kernels))
        for rank in range(plan.pp)
    ]


class _Sums:
    """Sums of what ranks send, {field of `Traffic`: bytes}. Units of a kind are summed once."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.of_units: dict[tuple[UnitKind, str], dict[str, float]] = {}

    def of_rank(self, lowering: RankLowering) -> Traffic:
        """`Traffic` of a rank, of whose ops that send the same only the first one is lowered."""
        alike: Counter[tuple[int, str, bool, bool]] = Counter()
        first: dict[tuple[int, str, bool, bool], Op] = {}
        for op in lowering.ops:
            is_last, gathers = op == lowering.last.get(op.stage), op in lowering.gathering
            key = op.stage, op.kind, is_last, gathers
            first.setdefault(key, op)
            alike[key] += 1
        sent = dict.fromkeys(Traffic._fields, 0.0)
        self.add(sent, lowering.begins())
        for key, op in first.items():
            # what it leaves to be summed over replicas is its own, not the next sample's
            its = chain(lowering.of_op(op), lowering.sharding.wait_for_all())
            self.add(sent, its, times=alike[key])
        self.add(sent, (i for i in lowering.ends() if i.unit or i.dimension == "ends"))
        return Traffic(**sent)

    def add(
        self, sent: dict[str, float], items: Iterable[Instruction | Work], times: int = 1
    ) -> None:
        """Add to `sent` what `items` send, so many times."""
        for item in items:
            if isinstance(item, Work):
                for name, size_bytes in self.of_unit(item).items():
                    sent[name] += times * size_bytes
            elif item.action == BEGIN and item.dimension in COUNTED_AS:
                sent[COUNTED_AS[item.dimension]] += times * communication_bytes(item, self.plan)

    def of_unit(self, work: Work) -> dict[str, float]:
        """What an op sends in a unit itself."""
        key = work.unit.type, work.op.kind
        if key not in self.of_units:
            sent: dict[str, float] = {}
            for piece in unit_pieces(work.unit.kernels, work.op.kind, self.plan):
                if piece.action == BEGIN:
                    size_bytes = communication_bytes(piece, self.plan)
                    sent[piece.dimension] = sent.get(piece.dimension, 0.0) + size_bytes
            self.of_units[key] = sent
        return self.of_units[key]


def crossing(plan: Plan, gpus_per_node: int) -> Traffic:
    """`Traffic` with the fraction of each dimension's hops, from a rank to the next of its group,
    that go from one node to another. With `Plan.hybrid` 'dp' stands for the shard groups."""
    require_whole("gpus_per_node", gpus_per_node)

    def share(dimension: str) -> float:
        hops: list[bool] = []
        if dimension == "edp" and plan.ep == 1:  # nothing travels there
            return 0.0
        for ranks in plan.layout.groups(group_of(plan, dimension)):
            # a ring is closed, a pipeline is not
            after = ranks[1:] if dimension == "pp" else [*ranks[1:], *ranks[:1]]
            hops += [
                mine // gpus_per_node != its // gpus_per_node
                for mine, its in zip(ranks, after)
                if mine != its
            ]
        return sum(hops) / len(hops) if hops else 0.0

    return Traffic(**{dimension: share(dimension) for dimension in Traffic._fields})


def sent_bytes(instructions: Iterable[Instruction], plan: Plan) -> dict[str, float]:
    """{dimension: bytes that a rank with these `instructions` sends}, copies to and from the host
    included."""
    sent: dict[str, float] = {}
    for item in instructions:
        if item.action == BEGIN:
            size_bytes = communication_bytes(item, plan)
            sent[item.dimension] = sent.get(item.dimension, 0.0) + size_bytes
    return sent


def communication_bytes(communication: Instruction | Piece, plan: Plan) -> float:
    """What a rank sends of an `Instruction`'s or a `Piece`'s communication: a message or a copy
    whole, a collective as a ring."""
    if communication.kind in ("message", "ring", "copy"):
        return communication.size_bytes
    ranks = group_size(plan, communication.dimension)
    return busbw_factor(communication.kind.replace("_", "-"), ranks) * communication.size_bytes

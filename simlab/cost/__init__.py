"""What an op costs: seconds, bytes moved, bytes held."""

from simlab.collectives.curves import CurvePoint, all_reduce_curve
from simlab.collectives.group_shape import GroupShape
from simlab.collectives.nccl import CollectiveTime, collective, collective_s, p2p_s
from simlab.cost.op_times import FIELD_OF_KIND, OpMemory, OpTimes
from simlab.lowering.context import context_chunks, ring_work

__all__ = [
    "FIELD_OF_KIND",
    "CollectiveTime",
    "CurvePoint",
    "GroupShape",
    "OpMemory",
    "OpTimes",
    "all_reduce_curve",
    "collective",
    "collective_s",
    "context_chunks",
    "p2p_s",
    "ring_work",
]

"""What an op costs: seconds, bytes moved, bytes held."""

from simlab.cost.communication import CollectiveTime, Group, collective, collective_s, p2p_s
from simlab.cost.context import context_chunks, ring_work
from simlab.cost.curves import CurvePoint, all_reduce_curve
from simlab.cost.op_times import FIELD_OF_KIND, OpMemory, OpTimes

__all__ = [
    "FIELD_OF_KIND",
    "CollectiveTime",
    "CurvePoint",
    "Group",
    "OpMemory",
    "OpTimes",
    "all_reduce_curve",
    "collective",
    "collective_s",
    "context_chunks",
    "p2p_s",
    "ring_work",
]  # fmt: skip

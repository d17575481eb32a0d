"""What an op costs: seconds, bytes moved, bytes held."""

from simlab.cost.op_times import FIELD_OF_KIND, OpMemory, OpTimes

__all__ = ["FIELD_OF_KIND", "OpMemory", "OpTimes"]

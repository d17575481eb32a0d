"""The program: for each rank, the ordered list of ops that it runs; its text form, and the rules
that it must keep."""

from simlab.program.op import Op
from simlab.program.program import BACKWARD, LIVE_CHANGE, WEIGHT_GRAD_MEMORY, Program

__all__ = ["BACKWARD", "LIVE_CHANGE", "WEIGHT_GRAD_MEMORY", "Op", "Program"]

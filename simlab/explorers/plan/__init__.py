"""The explorer of one plan of one model on one cluster."""

from simlab.explorers.plan.step import EXPLORER, WHOLE_OP, WHOLE_STEP, step_streams

__all__ = ["EXPLORER", "WHOLE_OP", "WHOLE_STEP", "step_streams"]

"""A training step of a model under a plan on a cluster: its time and what it is spent on, its
memory, its utilisation.

Ranks that differ only in their data, tensor or context coordinate do the same at the same time, so
one pipeline stands for all of
them: as many ranks are simulated as there are pipeline stages, and collectives take the time that
they take over all.
"""

from simlab.cost.groups import host_sharers
from simlab.cost.optimizer import HOST_ADAM_S
from simlab.training.prediction import Prediction, Waterfall
from simlab.training.step import layer_trace, predict

__all__ = [
    "HOST_ADAM_S",
    "Prediction",
    "Waterfall",
    "host_sharers",
    "layer_trace",
    "predict",
]

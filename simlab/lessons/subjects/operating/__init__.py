"""What lesson 12 asks, when a training has to be explained, kept running, deployed, and paid for."""

from simlab.lessons.subjects.operating import deploying, explaining
from simlab.lessons.subjects.operating.deploying import (
    found_alone,
    months,
    unlike_nodes,
    work_per_node,
)
from simlab.lessons.subjects.operating.explaining import (
    CAUSES,
    RANKS,
    graph_of,
    hidden,
    op_saves,
    works_of,
)

__all__ = [
    "CAUSES",
    "EXERCISES",
    "FIGURES",
    "PREDICTIONS",
    "RANKS",
    "TRIES",
    "found_alone",
    "graph_of",
    "hidden",
    "months",
    "op_saves",
    "unlike_nodes",
    "work_per_node",
    "works_of",
]

PREDICTIONS = explaining.PREDICTIONS + deploying.PREDICTIONS
EXERCISES = explaining.EXERCISES + deploying.EXERCISES
FIGURES = explaining.FIGURES | deploying.FIGURES
TRIES = explaining.TRIES | deploying.TRIES

"""Memory of one data-parallel training step: what a rank holds at each moment, by category, found
by walking the step's allocations.

`model_states` counts what a rank holds between two steps. This counts what comes on top while a
step runs, and when: activations, gathered layers, communication buffers, temporaries of the
backward and of the optimizer. Nothing here is fitted: each line of the walk is an allocation, or
the end of one, that PyTorch makes at that place.
"""

from simlab.memory.data_parallel import SHARDING, data_parallel_memory
from simlab.memory.ledger import CATEGORIES, STATES, Moment, StepMemory

__all__ = ["CATEGORIES", "SHARDING", "STATES", "Moment", "StepMemory", "data_parallel_memory"]

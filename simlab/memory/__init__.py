"""What a rank holds at each moment of a step, by category, found by walking the step's allocations.

The walk has three levels: `step.StepWalk` goes through the ops of a rank, `stage.StageWalk` through
the units of an op, and `units.forward` and `units.backward` through the allocations of one unit.
`units.sizes` has the bytes of each tensor, and `units.saved` what a library or a precision saves
instead of it. A `schemes.Scheme` adds what data parallelism gathers and reduces around a unit, and a
`ledger.Ledger` sums all of it up. `data_parallel_memory` is the same walk for one GPT in PyTorch.

Nothing here is fitted: each line of the walk is an allocation, or the end of one, that the library
makes at that place. What needs no walk has closed forms: `model_states` between two steps,
`activations` of a layer.
"""

from simlab.memory.data_parallel import SHARDING, data_parallel_memory
from simlab.memory.ledger import CATEGORIES, STATES, Moment, StepMemory

__all__ = ["CATEGORIES", "SHARDING", "STATES", "Moment", "StepMemory", "data_parallel_memory"]

"""It orders PipeDream, which is 1F1B without a flush.

Weights change after every backward, so a microbatch meets several versions of them.
"""

from simlab.program import Program
from simlab.schedules.one_f_one_b import one_f_one_b


def pipedream(stages: int, microbatches: int) -> Program:
    """PipeDream: m microbatches out of an endless run.

    The order of ops is 1F1B's. The difference is that no rank waits for the others at the end of a
    batch: each rank updates its weights after each of its backwards and goes on. So there is a
    bubble only at the very beginning and the very end of training. In return the weights are stale,
    see `simlab.staleness`. simlab can simulate this schedule, but realrun refuses it, because
    realrun trains with a flush.

    Sources: Harlap et al. 2018, arXiv 1806.03377; Narayanan et al. 2019, SOSP.
    """
    return Program(one_f_one_b(stages, microbatches).ranks, name="pipedream")

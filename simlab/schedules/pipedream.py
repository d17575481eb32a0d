"""PipeDream: 1F1B without a flush. Weights change after every backward, so a microbatch meets several versions of them."""

from simlab.program import Program
from simlab.schedules.one_f_one_b import one_f_one_b


def pipedream(stages, microbatches):
    """A window of m microbatches out of an endless run (Harlap et al. 2018, arXiv 1806.03377; Narayanan et al. 2019, SOSP).

    The order of ops is 1F1B's; what differs is that no rank waits for the others at the end of a batch: each updates its
    weights after each of its backwards and goes on. So there is no bubble but at the very beginning and end of training,
    and the price is in `simlab.staleness`. Only simulated: the executor trains with a flush.
    """
    return Program(one_f_one_b(stages, microbatches).ranks, name="pipedream")

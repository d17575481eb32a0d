"""GPipe, also called AFAB (all forward, all backward)."""

from simlab.program import Op, Program


def gpipe(stages, microbatches):
    """Every rank runs all its forwards, then all its backwards (Huang et al. 2019, arXiv 1811.06965, section 2.3).

    With equal stages and free communication the step takes (m + p - 1)(F + B), so (p - 1)(F + B) of it is bubble;
    each rank holds the activations of all m microbatches when its backwards begin. Leaves out: GPipe's
    re-materialisation, which is a choice of the stage (recompute), not of the order. The backwards run in the
    order of the forwards, as in torch and Megatron; the paper's figure draws them reversed, which takes as long.
    """
    return Program(
        [[Op(rank, kind, microbatch) for kind in "FB" for microbatch in range(microbatches)] for rank in range(stages)],
        name="gpipe",
    )

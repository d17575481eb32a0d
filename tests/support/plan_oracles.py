"""Random models, plans and clusters that go together, for the tests of whole steps."""

from contextlib import contextmanager
from dataclasses import fields, replace

import pytest
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.spec.cluster import load_cluster
from simlab.spec.model import Model
from simlab.spec.plan import Plan

SCHEDULES = ("1f1b", "gpipe", "interleaved-1f1b", "zb-h1", "zb-v")
TWO = ("interleaved-1f1b", "zb-v")
"""Those with two stages on each rank."""


def cluster_of(gpus, name="dgx-a100"):
    """So many GPUs: part of a node, or nodes of as many as divide them."""
    in_node = next(n for n in range(8, 0, -1) if gpus % n == 0)
    return replace(load_cluster(name), gpus_per_node=in_node, nodes=gpus // in_node)


@contextmanager
def nothing_is_slowed():
    """Inside, communication takes no multiprocessors from the kernels beside it, and no memory
    bandwidth."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("simlab.cost.roofline.CHANNELS", 0)
        patch.setattr("simlab.cost.communication_times.MOVED_A_BYTE", 0)
        yield


def plan_of(**given):
    """The `Plan` of these fields but for those that have no effect beside the others, which a plan
    refuses."""
    default = Plan()
    while True:
        try:
            return Plan(**given)
        except InputError as error:
            name, what = str(error).split(" = ", 1)
            if "has no effect" not in what:
                raise
            given[name] = getattr(default, name)


def changed(plan, **changes):
    """`plan` with these fields, but for those that then have no effect."""
    return plan_of(**{field.name: getattr(plan, field.name) for field in fields(plan)} | changes)


@st.composite
def steps(draw, seqs=(256, 1024, 4096), zeros=(0, 1, 2, 3), widths=(64, 128, 512), **fixed):
    """(`Model`, `Plan`, `Cluster`) of a step that can be simulated in milliseconds; `fixed`: fields
    of the plan."""
    schedule = draw(st.sampled_from(SCHEDULES))
    pp = draw(st.integers(1, 3))
    stages = pp * (2 if schedule in TWO else 1)
    gpt = draw(st.booleans())
    seq = draw(st.sampled_from(seqs))
    model = Model(
        name="random", layers=stages * draw(st.integers(1, 2)) + draw(st.integers(0, 1)), hidden=4 * draw(st.sampled_from(widths)), heads=4,
        vocab=draw(st.sampled_from([1000, 32000])), seq=seq, positions=seq if gpt else 0, bias=gpt, gated_mlp=not gpt,
        tied_head=draw(st.booleans()),
    )  # fmt: skip
    choices = {
        "dp": st.integers(1, 3), "tp": st.sampled_from([1, 2]), "cp": st.sampled_from([1, 2]), "zero": st.sampled_from(zeros),
        "microbatch_size": st.sampled_from([1, 4]), "microbatches": st.sampled_from([pp, 2 * pp, 3 * pp]),
        "recompute": st.sampled_from(["none", "selective", "per-op", "full"]), "sequence_parallel": st.booleans(),
        "attention": st.sampled_from(["flash", "unfused"]), "dp_overlap": st.booleans(), "prefetch": st.sampled_from([0, 1]),
        "tp_overlap": st.sampled_from(["none", "weight-grad", "pipelined"]), "library": st.sampled_from(["megatron", "torch", "fsdp1"]),
    }  # fmt: skip
    drawn = {name: draw(its) for name, its in choices.items() if name not in fixed}
    if (drawn | fixed)["cp"] > 1:
        drawn["attention"] = "flash"  # the only kind that context parallelism has
    plan = plan_of(pp=pp, schedule=schedule, stage_layers="uneven", **drawn | fixed)
    return model, plan, cluster_of(plan.gpus)

"""Sliding windows under context parallelism, held against pairs that are counted one by one."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lowering.context import context_chunks, window_shares
from simlab.lowering.kernels import Attention, Communication, layer_kernels

MODEL = sl.Model(
    name="W", layers=2, hidden=256, heads=8, kv_heads=4, ffn=512, vocab=1024, seq=512, gated_mlp=True,
    bias=False, window=96,
)  # fmt: skip
FULL = replace(MODEL, window=0)


def counted(rank, cp, layout, seq, window):
    """The pairs of a query at p, of those of a rank, and a key at most `window` - 1 before it; a query and
    its own key count as half a pair, for which figures without windows leave the diagonal out."""
    chunks = cp * len(context_chunks(0, cp, layout))
    size = seq // chunks
    own = {
        p
        for chunk in context_chunks(rank, cp, layout)
        for p in range(chunk * size, (chunk + 1) * size)
    }
    return sum(min(p + 1, window) for p in own)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize(("cp", "window"), [(2, 96), (4, 96), (4, 300), (2, 512), (4, 8)])
def test_each_rank_computes_the_pairs_of_its_queries(cp, window, layout):
    shares = window_shares(cp, layout, 512, window)
    for rank, share in enumerate(shares):
        pairs = share * 512 / cp * window / 2
        assert pairs == pytest.approx(
            counted(rank, cp, layout, 512, window), rel=0, abs=512 / cp / 2
        )
    assert shares[-1] == max(shares)  # the rank that stands for all of them
    alone = (2 - window / 512) * 512 * window / 2
    assert sum(shares) * 512 / cp * window / 2 == pytest.approx(alone)


@pytest.mark.parametrize("kind", ["all-gather", "all-to-all"])
def test_ranks_send_what_they_send_without_windows(kind):
    plan = sl.Plan(cp=2, cp_kind=kind)
    windows, full = (layer_kernels(its, plan) for its in (MODEL, FULL))
    for part in ("forward", "input_grad"):
        sent = [
            [k for k in getattr(its, part) if isinstance(k, Communication)]
            for its in (windows, full)
        ]
        assert sent[0] == sent[1] != []


def test_with_all_to_all_a_rank_has_its_heads_of_the_whole_sequence():
    (one,) = (k for k in layer_kernels(MODEL, sl.Plan()).forward if isinstance(k, Attention))
    its = layer_kernels(MODEL, sl.Plan(cp=2, cp_kind="all-to-all"))
    (two,) = (k for k in its.forward if isinstance(k, Attention))
    assert two == replace(one, heads=4)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_a_step_takes_as_long_walked_as_played(layout):
    model = replace(MODEL, kinds={"full": {"window": 0}}, pattern=["layer", "full"])
    plan = sl.Plan(cp=4, cp_kind="all-gather", cp_layout=layout, microbatches=2)
    cluster = replace(sl.load_cluster("dgx-h100", nodes=1), gpus_per_node=4)
    found, trace = sl.predict(model, plan, cluster), sl.layer_trace(model, plan, cluster)
    assert trace.whole_step_s == pytest.approx(found.step_s, rel=1e-9)
    longer = {"seq": 2**15}
    both = (sl.predict(replace(its, **longer), plan, cluster).step_s for its in (model, FULL))
    assert next(both) < next(both)

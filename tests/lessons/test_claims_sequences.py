"""What lesson 9 tells people to say holds over a sweep of what it depends on."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.lessons import book
from simlab.lowering.traffic import traffic

MODEL = replace(sl.load_model("llama-2-7b"), layers=2)


@pytest.mark.parametrize(
    "cp, kv_heads", [(cp, heads) for cp in (2, 4, 8) for heads in (4, 8, 16, 32) if heads >= cp]
)
def test_which_of_ring_and_all_to_all_sends_less_depends_on_key_heads_and_ranks(cp, kv_heads):
    """A ring sends 6 (c-1) k of a rank's part of q, an all-to-all 4 (c-1)/c (1 + k), for k key heads
    to a query head. Fewer key heads than ranks are left out: the all-to-all then sends copies."""
    model = replace(MODEL, kv_heads=kv_heads)
    ring, swapped = (
        traffic(model, sl.Plan(cp=cp, seq=8192, cp_kind=kind))[0].cp
        for kind in ("ring", "all-to-all")
    )
    share = kv_heads / model.heads
    assert swapped / ring == pytest.approx(2 * (1 + share) / (3 * cp * share), rel=0.01)
    if share == 1:
        assert swapped < ring
    if share == 1 / 8 and cp == 4:
        assert swapped > ring


@pytest.mark.parametrize("ffn", [4, 8])
def test_what_tensor_parallelism_leaves_whole_is_a_larger_part_the_more_ranks_there_are(ffn):
    kept = book.exercise("d16").oracle
    shares = [4 / kept(ffn=ffn, t=t, sequence_parallel=False) for t in (1, 2, 4, 8)]
    assert shares == sorted(shares)
    assert (shares[2] > 0.5) == (ffn == 4), "more than half with four ranks, in the lesson's layer"

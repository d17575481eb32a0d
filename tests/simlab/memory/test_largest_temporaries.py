"""The most that one layer's ops hold besides activations where attention holds most, counted by
hand."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.memory.schemes import Use
from simlab.memory.stage import Shape, StageWalk
from simlab.memory.step import scheme_of

TOKENS = 128
GPT = sl.Model(layers=8, hidden=64, heads=8, vocab=512, positions=TOKENS, seq=TOKENS)
LLAMA = sl.Model(
    layers=8, hidden=64, heads=8, ffn=16, gated_mlp=True, bias=False, vocab=512, seq=TOKENS
)  # fmt: skip


def walk_of_layer(model, plan):
    shape = Shape(("layer",), False, False)
    return StageWalk(model, plan, shape, scheme_of(model, plan, shape))


def largest_temporaries(model, plan, kind):
    """Bytes of the most temporaries that an op of one layer ever has."""
    return walk_of_layer(model, plan).op(Use(kind)).largest["temporaries"]


@pytest.mark.parametrize("kv_heads", [8, 2])
def test_a_ring_has_room_for_arriving_keys_and_values_and_backward_for_their_gradients(kv_heads):
    """Where attention holds most, beside a narrow MLP. Backward are there, of a token: the gradients
    of the skipped path and of attention's result, those of queries, keys and values, and the keys,
    the values and both gradients that arrive."""
    model = replace(LLAMA, kv_heads=kv_heads)
    plan = sl.Plan(cp=2, seq=2 * TOKENS, dropout=False)
    forward, backward = (largest_temporaries(model, plan, kind) for kind in "FB")
    hidden, kv = 2 * TOKENS * model.hidden, 2 * TOKENS * kv_heads * model.head_size
    assert forward == 2 * kv
    assert backward == 2 * hidden + (hidden + 2 * kv) + 4 * kv


def test_stored_scores_have_two_gradients_at_once_beside_what_softmax_left():
    """Softmax's backward reads its result and that one's gradient, and makes that of the scores:
    with a long sequence nothing else counts."""
    long = 4096
    model = replace(GPT, positions=long, seq=long)
    plan = sl.Plan(attention="unfused", dropout=False, seq=long)
    scores = model.heads * long**2
    forward = walk_of_layer(model, plan).op(Use("F"))
    assert forward.end["activations"] == pytest.approx(2 * scores, rel=0.05)
    assert largest_temporaries(model, plan, "B") == pytest.approx(2 * 2 * scores, rel=0.05)

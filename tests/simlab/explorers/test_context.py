"""Context parallelism's explorer: bytes by closed forms, and when a ring hides its messages."""

import pytest

from simlab.explorers import explorer
from simlab.explorers.context import KINDS, TOKENS, Setting, held, layer, ring_step, sent_bytes

CONTEXT = explorer("context")
LAYERS, HEADS, HEAD_SIZE, WIDTH = 32, 32, 128, 2  # of Llama 3 8B in bf16
START = Setting(*CONTEXT.start().values())


@pytest.mark.parametrize("kv_heads", [1, 8, 32])
@pytest.mark.parametrize("cp", [2, 4, 8])
def test_bytes_are_those_of_the_papers(cp, kv_heads):
    """Ring attention (arXiv 2310.01889): keys and values cp - 1 times, and in the backward again
    with their gradients. Llama 3 (2407.21783, 3.3.2): gathered, and their gradients scattered.
    Ulysses (2309.14509): queries, keys, values and the result, there and back."""
    setting = START._replace(cp=cp, kv_heads=kv_heads)
    head = setting.tokens / cp * HEAD_SIZE * WIDTH
    keys_and_values = 2 * kv_heads * head
    assert sent_bytes(setting, "ring") == 3 * (cp - 1) * keys_and_values
    assert sent_bytes(setting, "all-gather") == 2 * (cp - 1) * keys_and_values
    exchanged = 2 * HEADS + 2 * max(kv_heads, cp)  # a rank needs a key head for its query heads
    assert sent_bytes(setting, "all-to-all") == pytest.approx(2 * (cp - 1) / cp * exchanged * head)


def test_gathered_keys_and_values_are_held_of_every_layer():
    setting = START._replace(recompute="none")
    ring, gathered = (sum(held(setting, kind).values()) for kind in ("ring", "all-gather"))
    whole = LAYERS * 2 * setting.kv_heads * setting.tokens * HEAD_SIZE * WIDTH
    assert gathered - ring == pytest.approx(whole)


def test_compute_grows_with_the_square_of_the_tokens_and_messages_with_the_tokens():
    short, long = (ring_step(START._replace(tokens=tokens)) for tokens in TOKENS[-2:])
    assert long.compute_s / short.compute_s == pytest.approx(4, rel=0.05)
    assert long.message_s / short.message_s == pytest.approx(2, rel=0.05)


def test_the_note_says_from_where_on_the_ring_is_hidden():
    steps = {tokens: ring_step(START._replace(tokens=tokens)) for tokens in TOKENS}
    first = next(tokens for tokens, its in steps.items() if its.compute_s >= its.message_s)
    assert f"From {first:,} tokens on" in CONTEXT.answer(CONTEXT.start()).note.en
    fewer = CONTEXT.answer(CONTEXT.start(kv_heads=1)).note.en
    assert int(fewer.split("From ")[1].split()[0].replace(",", "")) < first


@pytest.mark.parametrize("kind", KINDS)
def test_curves_and_bars_show_what_is_computed(kind):
    exposed, _, memory = CONTEXT.answer(CONTEXT.start()).pictures
    line = next(mark for mark in exposed.marks if mark.name.en == kind)
    its = layer(START, kind)
    share = 100 * its.exposed_s / (its.compute_s + its.exposed_s)
    assert line.y[line.x.index(START.tokens)] == pytest.approx(share)
    row = list(KINDS).index(kind)
    end = max(mark.x1[row] for mark in memory.marks if hasattr(mark, "x1"))
    assert end * 2**30 == pytest.approx(sum(held(START, kind).values()))

"""Real English text without a download: the language reference that every Python carries (about 700 KB)."""

from functools import cache
from pydoc_data.topics import topics

import torch


@cache
def corpus():
    """The text as a uint8 tensor of bytes, topics in alphabetical order."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)


def batch(step, microbatches, microbatch_size, seq):
    """(tokens, targets) of training step `step`: int64, each (microbatches, microbatch_size, seq).

    The windows are drawn at random, the same ones on every rank and in every process for the same `step`; the
    target of a byte is the byte that follows it.
    """
    data = corpus()
    generator = torch.Generator().manual_seed(1_000_003 * (step + 1))
    starts = torch.randint(len(data) - seq - 1, (microbatches, microbatch_size, 1), generator=generator)
    window = data[starts + torch.arange(seq + 1)].long()
    return window[..., :-1], window[..., 1:]

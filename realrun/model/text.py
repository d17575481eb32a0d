"""English text for a training without a download: the language reference that every Python carries,
about 700 KB."""

from functools import cache
from pydoc_data.topics import topics

import torch
from torch import Tensor


@cache
def corpus() -> Tensor:
    """The text as a uint8 tensor of bytes (about 700,000,), with its topics in alphabetical
    order."""
    text = "\n\n".join(topics[name] for name in sorted(topics))
    return torch.frombuffer(bytearray(text.encode("utf-8")), dtype=torch.uint8)


def batch(step: int, microbatches: int, microbatch_size: int, seq: int) -> tuple[Tensor, Tensor]:
    """The (tokens, targets) of training step `step`: int64, each of shape (microbatches,
    microbatch_size, seq).

    The windows of text are drawn at random, and are the same on every rank and in every process for
    the same `step`. The target of a byte is the byte that follows it.
    """
    data = corpus()
    generator = torch.Generator().manual_seed(1_000_003 * (step + 1))
    starts = torch.randint(
        len(data) - seq - 1, (microbatches, microbatch_size, 1), generator=generator
    )
    window = data[starts + torch.arange(seq + 1)].long()
    return window[..., :-1], window[..., 1:]

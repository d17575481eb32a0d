"""Ping-pong between pairs of ranks, apart from any pipeline, and the link that it tells."""

import time
from collections.abc import Iterable, Sequence
from statistics import mean

import torch
import torch.distributed as dist

from realrun.comm.channels import Channels
from realrun.comm.clock import now
from simlab.spec.hardware import UNSEEN

LINK_ROUNDS, LINK_WARMUP = 10, 1
PAUSE_S = 0.02
"""Seconds that a process sleeps before it sends: as long as a typical op computes."""


Ping = tuple[int, list[float], list[float]]
"""(bytes, [one-way seconds], [seconds of the call that sends])"""


def link_times(
    channels: Channels,
    pairs: Iterable[tuple[int, int]],
    message_form: tuple[tuple[int, ...], torch.dtype],
    *,
    pause_s: float = PAUSE_S,
) -> dict[tuple[int, int], list[Ping]]:
    """{(a, b): a `Ping` of one number, one message and eight messages}, measured by rank a of each
    pair a < b. All ranks call it. message_form: (shape, type) of a message.

    The ranks play ping-pong through the same channels as the run's messages, one pair at a time.
    Before each send the sender sleeps for `pause_s`, as long as an op takes: a process that has
    slept is several times slower to send or receive than one that plays ping-pong without a break.
    One way is half of the round trip less b's sleep.
    """
    shape, dtype = message_form
    elements = torch.Size(shape).numel()
    measured = {}
    for a, b in pairs:
        dist.barrier()
        if channels.rank in (a, b):
            measured[a, b] = [
                ping_pong(channels, a, b, count, dtype, pause_s=pause_s)
                for count in (1, elements, 8 * elements)
            ]
    dist.barrier()
    return {pair: samples for pair, samples in measured.items() if pair[0] == channels.rank}


def typical(samples: Sequence[float]) -> float:
    """The mean of `samples` without the largest and the smallest tenth. It is what many of them add
    up to, if nothing odd happens."""
    out = len(samples) // 10
    return mean(sorted(samples)[out : len(samples) - out])


def ping_pong(
    channels: Channels,
    a: int,
    b: int,
    elements: int,
    dtype: torch.dtype,
    *,
    pause_s: float = PAUSE_S,
    rounds: int = LINK_ROUNDS,
) -> Ping:
    """The `Ping` of `elements` numbers between a and b, as a measures it; both call it. On b it has
    no seconds."""
    payload = torch.zeros(elements, dtype=dtype, device=channels.device)
    paused = torch.zeros(1, dtype=torch.float64)
    peer = b if channels.rank == a else a
    rounds += LINK_WARMUP
    inbox = channels.inbox(peer, range(rounds), (elements,), dtype)
    seconds, overheads = [], []
    for round_number in range(rounds):
        if channels.rank == a:
            time.sleep(pause_s)
            start_s = now()
            channels.send(payload, b)
            overheads.append(now() - start_s)
            inbox.take(round_number)
            _synchronize(channels.device)
            end_s = now()
            dist.recv(paused, b)
            seconds.append((end_s - start_s - paused.item()) / 2)
        else:
            inbox.take(round_number)
            _synchronize(channels.device)
            start_s = now()
            time.sleep(pause_s)
            paused[0] = now() - start_s
            channels.send(payload, a)
            dist.send(paused, a)
    channels.finish_sending()
    return elements * dtype.itemsize, seconds[LINK_WARMUP:], overheads[LINK_WARMUP:]


def _synchronize(device: torch.device) -> None:
    # this stream alone: the receives posted ahead are on others, and not to come yet
    if device.type == "cuda":
        torch.cuda.current_stream().synchronize()


def fit_link(samples: Sequence[Ping]) -> dict[str, float]:
    """The fields of `simlab.Link` for t(S) = latency + S / bandwidth, through what `link_times`
    measured of a pair.

    Least squares through the `typical` times. Where the slope comes out flat or negative, because
    the messages are too small for the bandwidth to matter, the bandwidth is infinite, written as
    `UNSEEN`, and the latency is the mean. The overhead is `typical` of all sizes together.
    """
    points = [(size, typical(seconds)) for size, seconds, _ in samples]
    mean_size = sum(size for size, _ in points) / len(points)
    mean_s = sum(seconds for _, seconds in points) / len(points)
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    slope = sum((size - mean_size) * (seconds - mean_s) for size, seconds in points) / spread
    overhead_s = typical([overhead for _, _, overheads in samples for overhead in overheads])
    if slope <= 1e-15:
        return {"latency_s": mean_s, "bandwidth_bytes_per_s": UNSEEN, "overhead_s": overhead_s}
    return {
        "latency_s": max(0.0, mean_s - slope * mean_size),
        "bandwidth_bytes_per_s": 1 / slope,
        "overhead_s": overhead_s,
    }

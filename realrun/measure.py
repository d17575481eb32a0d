"""Calibration: op times and link speeds, each measured apart from any pipeline and before it."""

import time
from itertools import cycle, pairwise
from statistics import mean

import torch
import torch.distributed as dist

from realrun.clock import now
from realrun.recorder import Recording
from simlab.program import Op

OP_ROUNDS, OP_WARMUP = 9, 3
LINK_ROUNDS, LINK_WARMUP = 10, 1
PAUSE_S = 0.02  # about as long as an op


def op_times(executor, tokens, targets, world, at_once, orders):
    """{stage: {op kind: [seconds of each round]}} of this rank's stages; called by all ranks together.

    Each of `orders` ("FB", "FIW") runs in turn on random inputs, through the executor's own functions, with no messages.
    The ranks take turns, `at_once` of them at a time: 1 where each shall have the machine to itself, as many as there are
    cores for padded ops, which sleep most of their time.
    """
    samples = {}
    for first in range(0, world, at_once):
        dist.barrier()
        if first <= executor.rank < first + at_once:
            for stage in executor.stages:
                samples[stage] = _stage_times(executor, stage, tokens, targets, orders)
    dist.barrier()
    for module in executor.stages.values():
        module.zero_grad(set_to_none=True)
    return samples


def _stage_times(executor, stage, tokens, targets, orders):
    marks, timer = {}, executor.timer
    ops = _ops_alone(executor, stage, tokens, targets, "".join(orders))
    for _ in range((OP_WARMUP + OP_ROUNDS) * len("".join(orders))):
        kind, *pair = next(ops)
        marks.setdefault(kind, []).append(pair)
    return {kind: [timer.seconds(end) - timer.seconds(start) for start, end in pairs[OP_WARMUP:]] for kind, pairs in marks.items()}


def _ops_alone(executor, stage, tokens, targets, kinds):
    """Run ops of `kinds` on `stage`, over and over, each on demand: yields (kind, mark of its start, mark of its end)."""
    executor.tokens, executor.targets, executor.saved, executor.kept, executor.losses = tokens, targets, {}, {}, []
    shape, dtype = executor.message_form
    timer = executor.timer
    timer.begin_step()
    for kind in cycle(kinds):
        x = torch.randn(shape, dtype=dtype, device=tokens.device)
        given = x if (kind == "F" and stage > 0) or (kind in "BI" and not executor.stages[stage].is_last) else None
        start = timer.begin(kind)
        executor.run_op(Op(stage, kind, 0), given)
        yield kind, start, timer.finish(kind, start)


def op_gaps(executor, tokens, targets):
    """[seconds between the end of an op and the start of the next], in a step of `executor`'s program, which sends nothing.

    That is what the executor needs to note what it did and to find out what is next. Called by all ranks together.
    """
    dist.barrier()
    executor.step(0, tokens, targets)
    records = Recording.parse(executor.recorder.contents()).records
    return [after.start_s - record.end_s for record, after in pairwise(records)]


def link_times(channels, pairs, message_form):
    """{(a, b): [(bytes, [one-way seconds], [seconds of the call that sends])]}, measured by a of each pair a < b.

    Called by all ranks. Ping-pong through the same channels as the run's messages, one pair at a time. Before each send the
    sender sleeps for a while: a process that has slept is several times slower to send or receive than one that plays
    ping-pong without a break. One way is half of the round trip less b's sleep.
    """
    shape, dtype = message_form
    elements = torch.Size(shape).numel()
    measured = {}
    for a, b in pairs:
        dist.barrier()
        if channels.rank in (a, b):
            measured[a, b] = [ping_pong(channels, a, b, count, dtype) for count in (1, elements, 8 * elements)]
    dist.barrier()
    return {pair: samples for pair, samples in measured.items() if pair[0] == channels.rank}


def typical(samples):
    """The mean of `samples` without the largest and smallest tenth: what many of them add up to, if nothing odd happens."""
    out = len(samples) // 10
    return mean(sorted(samples)[out : len(samples) - out])


def ping_pong(channels, a, b, elements, dtype, *, pause_s=PAUSE_S, rounds=LINK_ROUNDS):
    """(bytes, [one-way seconds], [seconds of the call that sends]) between a and b, as a measures them; called by both."""
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


def _synchronize(device):
    if device.type == "cuda":  # this stream alone: the receives posted ahead are on others, and not to come yet
        torch.cuda.current_stream().synchronize()


def fit_link(samples):
    """The fields of `simlab.Link` for t(S) = latency + S / bandwidth through what `link_times` measured of a pair.

    Least squares through the `typical` times; where the slope comes out flat or negative (messages too small for
    bandwidth to matter) bandwidth is infinite, written as 1e15, and latency the mean. The overhead is the median
    over all sizes.
    """
    points = [(size, typical(seconds)) for size, seconds, _ in samples]
    mean_size = sum(size for size, _ in points) / len(points)
    mean_s = sum(seconds for _, seconds in points) / len(points)
    spread = sum((size - mean_size) ** 2 for size, _ in points)
    slope = sum((size - mean_size) * (seconds - mean_s) for size, seconds in points) / spread
    overhead_s = typical([overhead for _, _, overheads in samples for overhead in overheads])
    if slope <= 1e-15:
        return {"latency_s": mean_s, "bandwidth_bytes_per_s": 1e15, "overhead_s": overhead_s}
    return {"latency_s": max(0.0, mean_s - slope * mean_size), "bandwidth_bytes_per_s": 1 / slope, "overhead_s": overhead_s}

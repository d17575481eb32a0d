"""How long each kind of op takes alone, and what lies between two ops."""

from collections.abc import Iterator, Sequence
from itertools import cycle, pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from realrun.record.recorder import Recorder, Recording
from realrun.record.step_log import OpLog, Timer
from realrun.run.executor import Executor
from simlab.program import Op

OP_ROUNDS, OP_WARMUP = 9, 3
OpSamples = dict[str, list[float]]
"""{op kind: [seconds of each round]}"""
Form = tuple[tuple[int, ...], torch.dtype]
"""(shape, type) of a message."""
Data = tuple[Tensor, Tensor]
"""(tokens, targets)"""


def op_times(
    executor: Executor, data: Data, form: Form, at_once: int, orders: Sequence[str]
) -> dict[int, OpSamples]:
    """{stage: {op kind: [seconds of each round]}} of this rank's stages. All ranks call it
    together.

    Each of `orders` ("FB", "FIW") runs in turn on random inputs, through the executor's own
    functions and with no messages. The ranks take turns, `at_once` of them at a time: 1 where each
    shall have the machine to itself, as many as there are cores for padded ops, which sleep most of
    their time.
    """
    samples: dict[int, OpSamples] = {}
    for first in range(0, dist.get_world_size(), at_once):
        dist.barrier()
        if first <= dist.get_rank() < first + at_once:
            for stage in executor.stages:
                samples[stage] = _stage_times(executor, stage, data, form, orders)
    dist.barrier()
    for module in executor.stages.values():
        module.zero_grad(set_to_none=True)
    return samples


def _stage_times(
    executor: Executor, stage: int, data: Data, form: Form, orders: Sequence[str]
) -> OpSamples:
    marks: dict[str, list[list[Any]]] = {}
    timer = _timer(executor)
    ops = _ops_alone(executor, stage, data, form, "".join(orders))
    for _ in range((OP_WARMUP + OP_ROUNDS) * len("".join(orders))):
        kind, *pair = next(ops)
        marks.setdefault(kind, []).append(pair)
    return {
        kind: [timer.seconds(end) - timer.seconds(start) for start, end in pairs[OP_WARMUP:]]
        for kind, pairs in marks.items()
    }


def _timer(executor: Executor) -> Timer:
    """The timer of an executor that notes ops."""
    assert isinstance(executor.log, OpLog)
    return executor.log.timer


def _ops_alone(
    executor: Executor, stage: int, data: Data, form: Form, kinds: str
) -> Iterator[tuple[Any, ...]]:
    """Run ops of `kinds` on `stage`, over and over, each on demand. Yields (kind, mark of its
    start, mark of its end)."""
    executor.begin(0, *data)
    shape, dtype = form
    timer = _timer(executor)
    for kind in cycle(kinds):
        x = torch.randn(shape, dtype=dtype, device=data[0].device)
        is_last = executor.stages[stage].is_last
        receives = (kind == "F" and stage > 0) or (kind in "BI" and not is_last)
        start = timer.begin(kind)
        executor.run_op(Op(stage, kind, 0), x if receives else None)
        yield kind, start, timer.finish(kind, start)


def op_gaps(executor: Executor, recorder: Recorder, tokens: Tensor, targets: Tensor) -> list[float]:
    """The seconds between the end of an op and the start of the next, in a step of `executor`'s
    program, which sends nothing. All ranks call it together.

    That is the time that the executor needs to note what it did and to find out what is next.
    """
    dist.barrier()
    executor.gradients(0, tokens, targets)
    recording = Recording.parse(recorder.contents())
    assert recording is not None  # the recorder has written it
    return [after.start_s - record.end_s for record, after in pairwise(recording.records)]

"""Our schedules against torch's own lists, op by op. torch needs no processes for that, only a
stage's numbers."""

from types import SimpleNamespace

import pytest
import torch
from torch.distributed.pipelining import schedules

from simlab import generate
from simlab.errors import InputError


def torch_order(name, ranks, microbatches, chunks):
    """[per rank] torch's text of the compute ops and pairs; None where torch refuses the
    numbers."""
    facts = {
        "group_rank": 0,
        "group_size": ranks,
        "num_stages": ranks * chunks,
        "submod": torch.nn.Identity(),
        "has_backward": True,
    }
    stages = [
        SimpleNamespace(
            stage_index=chunk * ranks, group=None, is_first=False, is_last=False, **facts
        )
        for chunk in range(chunks)
    ]
    try:
        order = getattr(schedules, name)(stages, microbatches).pipeline_order
    except ValueError:
        return None
    cells = [[str(action) for action in order[rank] if action] for rank in range(ranks)]
    return [[cell for cell in row if not cell.endswith("REDUCE_GRAD")] for row in cells]


def our_order(name, ranks, microbatches, **options):
    try:
        return generate(name, ranks, microbatches, **options).ranks_as_text
    except InputError:
        return None


@pytest.mark.parametrize("chunks", [2, 3, 4])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("interleaved-1f1b", "ScheduleInterleaved1F1B"), ("looped-bfs", "ScheduleLoopedBFS")],
)
def test_chunked_schedules_are_torchs_op_by_op(ours, theirs, chunks):
    for ranks in range(2, 9):
        for microbatches in range(1, 33):
            # torch has no ragged groups
            if expected := torch_order(theirs, ranks, microbatches, chunks):
                assert our_order(ours, ranks, microbatches, chunks=chunks) == expected, (
                    ranks,
                    microbatches,
                )


@pytest.mark.parametrize(
    ("ours", "theirs"), [("zb-v", "ScheduleZBVZeroBubble"), ("dualpipe-v", "ScheduleDualPipeV")]
)
def test_v_shaped_schedules_are_torchs_op_by_op(ours, theirs):
    for ranks in range(2, 9):
        for microbatches in range(1, 33):
            assert our_order(ours, ranks, microbatches) == torch_order(
                theirs, ranks, microbatches, 2
            ), (ranks, microbatches)

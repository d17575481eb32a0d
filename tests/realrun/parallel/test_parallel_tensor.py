"""Tensor and sequence parallelism on four processes against torch's own modules."""

import pytest
import torch
from realrun_ranks import ERROR, error
from torch import nn

from realrun.comm.group import Group
from realrun.parallel.layers.sequence import SequenceColumnLinear, SequenceRowLinear
from realrun.parallel.layers.tensor import ColumnLinear, RowLinear

WORLD = 4
BATCH, SEQ, HIDDEN, FFN = 2, 8, 16, 32


def numbers(*shape, seed=0):
    """Random ones, the same on all ranks."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def whole_mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(HIDDEN, FFN), nn.GELU(), nn.Linear(FFN, HIDDEN)).double()


def torchs_mlp(rank, by_tokens):
    """Error of our two matrices against torch's parallelize_module: output, input gradient, weight
    gradients."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    mesh, group = init_device_mesh("cpu", (WORLD,)), Group("tp", range(WORLD), rank)
    column, row = (
        (SequenceColumnLinear, SequenceRowLinear) if by_tokens else (ColumnLinear, RowLinear)
    )
    whole = whole_mlp()
    ours = nn.Sequential(column.of(whole[0], group), nn.GELU(), row.of(whole[2], group))
    layouts = ({"input_layouts": Shard(1)}, {"output_layouts": Shard(1)}) if by_tokens else ({}, {})
    theirs = parallelize_module(
        whole_mlp(), mesh, {"0": ColwiseParallel(**layouts[0]), "2": RowwiseParallel(**layouts[1])}
    )
    x, dy = numbers(BATCH, SEQ, HIDDEN, seed=1), numbers(BATCH, SEQ, HIDDEN, seed=2)
    x, dy = (group.own(tensor, 1).clone() if by_tokens else tensor for tensor in (x, dy))
    inputs, outputs = [x.clone().requires_grad_() for _ in range(2)], []
    for module, x in zip((ours, theirs), inputs):
        outputs.append(module(x))
        outputs[-1].backward(dy)
    whole = [
        outputs[1].to_local() if isinstance(outputs[1], DTensor) else outputs[1],
        inputs[1].grad,
    ]
    gradients = [theirs[index].weight.grad.to_local() for index in (0, 2)]
    actual = [outputs[0], inputs[0].grad, ours[0].weight.grad, ours[2].weight.grad]
    return [error(a, b) for a, b in zip(actual, whole + gradients)]


@pytest.mark.parametrize("by_tokens", [False, True])
def test_two_matrices_are_those_of_torchs_parallelize_module(ranks, by_tokens):
    assert max(max(errors) for errors in ranks(WORLD)(torchs_mlp, by_tokens)) < ERROR

"""A state space in the stead of attention: the mixer of Mamba-2 (Dao and Gu 2024, arXiv 2405.21060)."""

from typing import TYPE_CHECKING

from simlab.layer.operation import Cut, Operation, OperationKind, Tensor, Weight, linear

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes


def state_space(model: "ModelSizes", normed: Tensor, summed: Tensor) -> list[Operation]:
    """The operations from a norm's result to the output's.

    Each head of width p has a state of p x n numbers, which every token decays and adds to, and from
    which it reads: x of the head is added along the n directions B, and read along the n directions C,
    which the heads of a group have in common. One product makes x, B and C, the gate z and each head's
    step. A convolution over the last tokens, the scan over chunks, and the norm by groups that the gate
    enters, are one operation here, as they are one function of autograd's in mamba_ssm
    (`MambaSplitConv1dScanCombinedFn`): it saves what the product made and the scan's result, and makes
    the rest again. Tensor-parallel ranks have some groups each, with their heads
    (`MambaMixer` in megatron/core/ssm/mamba_mixer.py).
    """
    inner = model.state_inner
    gate = Tensor("gate", inner, Cut.HEADS)
    mixed = Tensor("x, B and C", model.state_channels, Cut.HEADS)
    steps = Tensor("steps", model.state_heads, Cut.HEADS)
    result = Tensor("output input", inner, Cut.HEADS)
    before = result._replace(name="before the gated norm")
    of_channels = Weight(mixed.numbers, cut=Cut.HEADS)
    convolution = of_channels._replace(rows=model.conv_size * mixed.numbers), of_channels
    of_heads = (Weight(model.state_heads, cut=Cut.HEADS),) * 3  # decay, step's bias, skipped path
    weights = (*convolution, *of_heads, Weight(inner, cut=Cut.HEADS))
    made = gate, mixed, steps
    return [
        linear(OperationKind.IN_PROJECTION, normed, made, cut=Cut.HEADS, joined=True),
        Operation(
            OperationKind.SCAN, made, (result, before), weights, saves=(*made, before, result)
        ),
        linear(OperationKind.OUTPUT, result, (summed,), cut=Cut.HEADS, by_columns=True),
    ]

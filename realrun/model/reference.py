"""The same model trained in one process without a pipeline. It says what losses and gradients ought
to be."""

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from realrun.model.gpt import Sizes, Stage, loss


def single_process(
    sizes: Sizes,
    stages: int,
    tokens: Tensor,
    targets: Tensor,
    dtype: torch.dtype,
    stage_layers: Sequence[int] | None = None,
) -> tuple[float, list[dict[str, Tensor]]]:
    """(mean loss, [{parameter name: gradient} of each stage]) of one training step, computed in
    this process alone.

    tokens, targets: int64, (microbatches, microbatch size, seq). stage_layers: see `Stage`.
    """
    modules = [
        Stage(sizes, stage, stages, stage_layers).to(tokens.device, dtype)
        for stage in range(stages)
    ]
    total = _forward_backward(modules, tokens, targets)
    return total, [
        {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        for module in modules
    ]


def _forward_backward(modules: Sequence[Stage], tokens: Tensor, targets: Tensor) -> float:
    """The mean loss of a step's microbatches, whose gradients are added up in the parameters."""
    total = 0.0
    for x, target in zip(tokens, targets):
        for module in modules:
            x = module(x)
        part = loss(x, target) / len(targets)
        part.backward()
        total += part.item()
    return total


def gradient_error(module: nn.Module, expected: Mapping[str, Tensor]) -> float:
    """The largest relative error of a parameter's gradient, ‖gradient - expected‖ / ‖expected‖. It
    is infinite where a gradient is missing or not finite."""
    worst = 0.0
    for name, parameter in module.named_parameters():
        if parameter.grad is None or not torch.isfinite(parameter.grad).all():
            return float("inf")
        norm = expected[name].norm().item()
        difference = (parameter.grad - expected[name]).norm().item()
        worst = max(worst, difference / norm if norm else difference)
    return worst


def single_training(
    sizes: Sizes,
    stages: int,
    batches: Iterable[tuple[Tensor, Tensor]],
    learning_rate: float,
    limit: float | None,
    stage_layers: Sequence[int] | None = None,
) -> list[float]:
    """The loss of each step of a training in this process alone, in fp32, with Adam and gradients
    clipped at the norm `limit`; None: they are not clipped.

    batches: the (tokens, targets) of each step, as `single_process` takes them. stage_layers: see
    `Stage`.
    """
    modules = [Stage(sizes, stage, stages, stage_layers) for stage in range(stages)]
    parameters = [p for module in modules for p in module.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=learning_rate)
    losses: list[float] = []
    for tokens, targets in batches:
        losses.append(_forward_backward(modules, tokens, targets))
        if limit is not None:
            torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return losses

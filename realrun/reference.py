"""The same model, in one process, without any pipeline: what loss and gradients ought to be."""

import torch

from realrun.model import Stage, loss


def single_process(sizes, stages, tokens, targets, dtype):
    """(loss, [per stage] {parameter name: gradient}) of one training step, computed in this process alone."""
    modules = [Stage(sizes, stage, stages).to(tokens.device, dtype) for stage in range(stages)]
    total = 0.0
    for x, target in zip(tokens, targets):
        for module in modules:
            x = module(x)
        part = loss(x, target) / len(targets)
        part.backward()
        total += part.item()
    return total, [{name: p.grad for name, p in module.named_parameters()} for module in modules]


def gradient_error(module, expected):
    """The largest relative error of a parameter's gradient: ‖gradient - expected‖ / ‖expected‖; inf if one is missing."""
    worst = 0.0
    for name, parameter in module.named_parameters():
        if parameter.grad is None or not torch.isfinite(parameter.grad).all():
            return float("inf")
        norm = expected[name].norm().item()
        difference = (parameter.grad - expected[name]).norm().item()
        worst = max(worst, difference / norm if norm else difference)
    return worst


def single_training(sizes, stages, batches, learning_rate, limit):
    """[loss of each step] of training in this process alone with Adam, gradients clipped at the norm `limit`; in fp32.

    batches: (tokens, targets) of each step, as `single_process` takes them.
    """
    modules = [Stage(sizes, stage, stages) for stage in range(stages)]
    parameters = [p for module in modules for p in module.parameters()]
    optimizer, losses = torch.optim.Adam(parameters, lr=learning_rate), []
    for tokens, targets in batches:
        total = 0.0
        for x, target in zip(tokens, targets):
            for module in modules:
                x = module(x)
            part = loss(x, target) / len(targets)
            part.backward()
            total += part.item()
        torch.nn.utils.clip_grad_norm_(parameters, limit)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        losses.append(total)
    return losses

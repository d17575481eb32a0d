"""Stages that stand on several ranks, as DualPipe's do. The gradients of their copies are added up
after a step."""

from collections.abc import Mapping

import torch
import torch.distributed as dist
from torch import nn

from simlab.program import Program


class Copies:
    """The groups of ranks that hold the same stages of `program`. All ranks make them together, as
    torch wants its groups."""

    def __init__(self, program: Program) -> None:
        holders: dict[int, list[int]] = {}
        for rank in range(len(program.ranks)):
            for stage in program.stages_of(rank):
                holders.setdefault(stage, []).append(rank)
        shared = {stage: tuple(ranks) for stage, ranks in holders.items() if len(ranks) > 1}
        self._stages_of = {
            ranks: [stage for stage in shared if shared[stage] == ranks]
            for ranks in sorted(set(shared.values()))
        }
        self._groups = {ranks: dist.new_group(list(ranks)) for ranks in self._stages_of}

    def counted_elsewhere(self, rank: int) -> list[int]:
        """The stages of `rank` that a lower rank holds as well: their gradients are the same on
        both, and belong to a norm once."""
        return [
            stage
            for ranks, stages in self._stages_of.items()
            if rank in ranks[1:]
            for stage in stages
        ]

    def sum_gradients(self, rank: int, stages: Mapping[int, nn.Module]) -> None:
        """Make the gradients of this rank's `stages`, {stage: module}, the sum over all of its
        copies. It takes one all-reduce for each group."""
        for ranks, group in self._groups.items():
            if rank in ranks:
                parameters = [
                    p for stage in self._stages_of[ranks] for p in stages[stage].parameters()
                ]
                gradients = []
                for parameter in parameters:
                    if parameter.grad is None:  # none of this step's microbatches came this way
                        parameter.grad = torch.zeros_like(parameter)
                    gradients.append(parameter.grad)
                flat = torch.cat([gradient.flatten() for gradient in gradients])
                dist.all_reduce(flat, group=group)
                for gradient, part in zip(gradients, flat.split([g.numel() for g in gradients])):
                    gradient.copy_(part.view_as(gradient))

    def close(self) -> None:
        """End the groups. All ranks call it together."""
        for group in self._groups.values():
            dist.destroy_process_group(group)

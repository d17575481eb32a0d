"""Stages that stand on several ranks, as DualPipe's do: the gradients of their copies are added up after a step."""

import torch
import torch.distributed as dist


class Copies:
    """The groups of ranks that hold the same stages of `program`. Made by all ranks together, as torch wants its groups."""

    def __init__(self, program):
        holders = {}
        for rank in range(len(program.ranks)):
            for stage in program.stages_of(rank):
                holders.setdefault(stage, []).append(rank)
        shared = {stage: tuple(ranks) for stage, ranks in holders.items() if len(ranks) > 1}
        self._stages_of = {ranks: [stage for stage in shared if shared[stage] == ranks] for ranks in sorted(set(shared.values()))}
        self._groups = {ranks: dist.new_group(list(ranks)) for ranks in self._stages_of}

    def sum_gradients(self, rank, stages):
        """Make the gradients of this rank's `stages`, {stage: module}, the sum over all of its copies: one all-reduce a group."""
        for ranks, group in self._groups.items():
            if rank in ranks:
                parameters = [p for stage in self._stages_of[ranks] for p in stages[stage].parameters()]
                for parameter in parameters:
                    if parameter.grad is None:  # none of this step's microbatches came this way
                        parameter.grad = torch.zeros_like(parameter)
                flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
                dist.all_reduce(flat, group=group)
                for parameter, part in zip(parameters, flat.split([parameter.numel() for parameter in parameters])):
                    parameter.grad.copy_(part.view_as(parameter))

    def close(self):
        """End the groups; by all ranks together."""
        for group in self._groups.values():
            dist.destroy_process_group(group)

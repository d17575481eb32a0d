"""Pipelines by torch.distributed.pipelining. Its runtime executes a `Program`, the list that our
own executor follows."""

import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime

from simlab.program import Op, Program

Timed = Callable[[Op], AbstractContextManager[None]]
"""The context in which an op is computed."""


class Pipeline:
    """This rank's `stages`, {number: module}, in the pipeline of `group`.

    loss: function of (output, target) of one microbatch, from which its backward starts. timed:
    function of an `Op` that returns the context in which it is computed. torch adds to the program
    what is sent, and when stages are gathered and their gradients reduced.
    """

    def __init__(
        self,
        program: Program,
        stages: Mapping[int, nn.Module],
        group: dist.ProcessGroup,
        device: torch.device,
        loss: Callable[[Tensor, Tensor], Tensor],
        timed: Timed,
    ) -> None:
        made = [
            TimedStage(timed, module, number, program.stages, device, group)
            for number, module in stages.items()
        ]
        self.runtime = _PipelineScheduleRuntime(
            list(made), program.microbatches, loss_fn=loss, scale_grads=False
        )
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.csv"
            program.to_csv(path)
            self.runtime._load_csv(str(path))  # the public classes have no way in for a list
        self.has_first, self.has_last = 0 in stages, program.stages - 1 in stages

    def step(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """The losses of all microbatches, after all forwards and backwards; none where the last
        stage is not. tokens, targets: (microbatches, batch, seq)."""
        losses: list[Tensor] = []
        inputs = [tokens.flatten(0, 1).contiguous()] if self.has_first else []
        wanted: dict[str, Any] = (
            {"target": targets.flatten(0, 1), "losses": losses} if self.has_last else {}
        )
        self.runtime.step(*inputs, **wanted)
        return [loss.detach() for loss in losses]


class TimedStage(PipelineStage):
    """A stage of torch's that runs each op inside `timed`."""

    def __init__(
        self,
        timed: Timed,
        module: nn.Module,
        number: int,
        stages: int,
        device: torch.device,
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__(module, number, stages, device, group=group)
        self.timed = timed

    def forward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.timed(Op(self.stage_index, "F", args[0])):
            return super().forward_one_chunk(*args, **kwargs)

    def backward_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        kind = "B" if kwargs.get("full_backward", True) else "I"
        with self.timed(Op(self.stage_index, kind, args[0])):
            return super().backward_one_chunk(*args, **kwargs)

    def backward_weight_one_chunk(self, *args: Any, **kwargs: Any) -> Any:
        with self.timed(Op(self.stage_index, "W", args[0])):
            return super().backward_weight_one_chunk(*args, **kwargs)

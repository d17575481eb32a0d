"""Pipelines by torch.distributed.pipelining: its runtime executes a `Program`, the list that our own executor follows."""

import tempfile
from pathlib import Path

from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineScheduleRuntime


class Pipeline:
    """This rank's `stages`, {number: module}, in the pipeline of `group`.

    loss(output, target) is of one microbatch, and what its backward starts from. timed(op): a context that is told of '0F3', '0B3', '0I3'
    or '0W3'. What is sent, and when stages are gathered and their gradients reduced, torch adds to the program.
    """

    def __init__(self, program, stages, group, device, loss, timed):
        made = [TimedStage(module, number, program.stages, device, group=group) for number, module in stages.items()]
        for stage in made:
            stage.timed = timed
        self.runtime = _PipelineScheduleRuntime(made, program.microbatches, loss_fn=loss, scale_grads=False)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.csv"
            program.to_csv(path)
            self.runtime._load_csv(str(path))  # the public classes have no way in for a list
        self.has_first, self.has_last = 0 in stages, program.stages - 1 in stages

    def step(self, tokens, targets):
        """[losses], empty where the last stage is not, of all forwards and backwards. tokens, targets: (microbatches, batch, seq)."""
        losses = []
        inputs = [tokens.flatten(0, 1).contiguous()] if self.has_first else []
        wanted = {"target": targets.flatten(0, 1), "losses": losses} if self.has_last else {}
        self.runtime.step(*inputs, **wanted)
        return [loss.detach() for loss in losses]


class TimedStage(PipelineStage):
    """Tells `timed` of each op."""

    def forward_one_chunk(self, number, *args, **kwargs):
        with self.timed(f"{self.stage_index}F{number}"):
            return super().forward_one_chunk(number, *args, **kwargs)

    def backward_one_chunk(self, number, *args, full_backward=True, **kwargs):
        with self.timed(f"{self.stage_index}{'B' if full_backward else 'I'}{number}"):
            return super().backward_one_chunk(number, *args, full_backward=full_backward, **kwargs)

    def backward_weight_one_chunk(self, number, *args, **kwargs):
        with self.timed(f"{self.stage_index}W{number}"):
            return super().backward_weight_one_chunk(number, *args, **kwargs)

"""What a rank's ops hand on to other ops: messages between stages, on this rank or another."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from realrun.comm.channels import Channels, Inbox
from realrun.comm.mesh import Mesh
from realrun.parallel.stage import ParallelStage
from realrun.record.step_log import StepLog
from realrun.run.ops import ExecutionError, too_early
from simlab.program import Op, Program
from simlab.program.steps import Step


class Exchange:
    """Hands the results of one rank's ops to the ops that need them.

    sizes, program, mesh, channels, log, dtype: as `realrun.run.executor.Executor` has them.
    sent_bytes: sent to other ranks so far, in all steps.
    """

    def __init__(
        self,
        sizes: Mapping[str, int],
        program: Program,
        mesh: Mesh,
        channels: Channels,
        log: StepLog,
        dtype: torch.dtype,
    ) -> None:
        self._sizes, self._program, self._mesh = sizes, program, mesh
        self._channels, self._log, self._dtype = channels, log, dtype
        self._place = mesh["pp"].place
        self._handed_over: dict[Op, torch.Tensor | None] = {}
        self._inboxes: dict[int, Inbox] = {}
        self.sent_bytes = 0

    def open_inboxes(self, stage: ParallelStage) -> None:
        """Post the receives of a step, in the order in which other ranks send; stage: one of this
        rank's, whose messages have the shape that all have."""
        shape = stage.message_shape(self._sizes["microbatch_size"], self._sizes["seq"])
        self._handed_over, self._inboxes = {}, {}
        for source, steps in enumerate(self._program.lowered):
            sent = self._in_order_of_sending(steps)
            messages = [step.op for step in sent if step.destination == self._place]
            if messages:
                rank = self._mesh["pp"].ranks[source]
                self._inboxes[source] = self._channels.inbox(rank, messages, shape, self._dtype)

    def _in_order_of_sending(self, steps: Sequence[Step]) -> Iterator[Step]:
        """The `steps` of a rank; of two ops side by side the backward sends first."""
        its = iter(steps)
        for step in its:
            if step.op in self._program.paired:
                yield next(its)
            yield step

    def receive(self, op: Op, stage: ParallelStage) -> torch.Tensor | None:
        """What `op` of `stage` needs of the neighbouring stage, waited for; None at the pipeline's
        ends. `ExecutionError` if it never comes."""
        needs = [need for need in self._program.needs(op) if need.stage != op.stage]
        if not needs:
            return None
        (need,) = needs
        source, rank = self._program.rank_of.get(need), self._mesh.rank
        if source is None:
            raise ExecutionError(f"rank {rank}: {need} never runs, but {op} needs it")
        if source == self._place:
            if need not in self._handed_over:
                raise too_early(rank, op, need)
            return self._handed_over.pop(need)
        begun = self._log.awaits(need)
        try:
            received = self._inboxes[source].take(need)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise ExecutionError(
                f"rank {rank} waits at {op} for {need} from rank {self._mesh['pp'].ranks[source]}: {text}"
            ) from error
        self._log.ended(begun)
        return stage.incoming(received)

    def send(self, op: Op, stage: ParallelStage, result: torch.Tensor | None) -> None:
        """Hand the `result` of `op` of `stage` to the op that needs it, if there is one."""
        user = self._program.user(op)
        destination = None if user is None else self._program.rank_of.get(user)
        if destination is None:
            return
        if destination == self._place:
            self._handed_over[op] = result
            return
        if result is None:
            raise ExecutionError(f"rank {self._mesh.rank}: {op} made nothing to send")
        message = stage.outgoing(result)
        self.sent_bytes += message.nbytes
        self._log.sends(message.nbytes)
        self._channels.send(message, self._mesh["pp"].ranks[destination])

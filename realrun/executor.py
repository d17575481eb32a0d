"""The executor: walks one rank's part of a program, one function per op kind."""

import torch

from realrun.activations import SavedActivations
from realrun.model import loss
from realrun.recorder import DONE, EXECUTING, IDLE, RUNNING, WAITING, Record
from realrun.split import keeping_weight_gradients
from simlab.errors import SimlabError


class ExecutionError(SimlabError):
    """A rank met an op that it cannot run."""


class Executor:
    """One rank's stages, what autograd holds for them, and the loop over its ops.

    stages:       {stage: module} of this rank.
    channels:     `Channels` to the other ranks.
    timer:        `HostTimer` or `CudaTimer`.
    recorder:     `Recorder`.
    message_form: (shape, dtype) of an activation at a stage boundary; its gradient has the same.
    """

    def __init__(self, program, rank, stages, channels, timer, recorder, message_form):
        self.program = program
        self.rank = rank
        self.stages = stages
        self.channels = channels
        self.timer = timer
        self.recorder = recorder
        self.message_form = message_form
        self.activations = SavedActivations([p for module in stages.values() for p in module.parameters()])

    def step(self, number, tokens, targets):
        """Run the program once; gradients add up in the parameters.

        tokens, targets: int64, (microbatches, microbatch size, seq).
        Returns the part of the mean loss over microbatches that comes from those whose last stage was on this rank; None
        if none was. Gradients are of this rank's microbatches: see `realrun.copies` for a stage that stands on several ranks.
        """
        self.tokens, self.targets = self.activations.data = tokens, targets
        self.saved = {}  # (stage, microbatch): (input, output) of a forward whose backward is to come
        self.kept = {}  # (stage, microbatch): what I left for W
        self.handed_over = {}  # op: its result, for another op of this rank
        self.losses = []
        self.recorder.phase(EXECUTING)
        self.timer.begin_step()  # before any receive is posted: on CUDA it waits for the whole device
        self.inboxes = self._open_inboxes()
        unfinished = []
        for position, step in enumerate(self.program.lowered[self.rank]):
            unfinished.append(self._run(number, position, step))
            if self.timer.immediate:
                self._finish(*unfinished.pop())
        self.channels.finish_sending()
        for item in unfinished:
            self._finish(*item)
        self.recorder.phase(IDLE)
        return torch.stack(self.losses).sum().item() if self.losses else None

    def _run(self, number, position, step):
        """Wait for `step`'s inputs, run it, send its result. Returns its record and the marks of its start and end."""
        self.recorder.write(Record(number, position, WAITING))
        received = {need: self._receive(need, step.op) for need in self.program.needs(step.op) if need.stage != step.op.stage}
        self.recorder.write(Record(number, position, RUNNING))
        start = self.timer.begin(step.op.kind)
        result = self.run_op(step.op, *received.values())
        end = self.timer.finish(step.op.kind, start)
        if step.destination is not None:
            self.channels.send(result, step.destination)
        elif self.program.user(step.op) is not None:
            self.handed_over[step.op] = result
        return Record(number, position, DONE, self.activations.live, self.activations.bytes), start, end

    def run_op(self, op, received=None):
        """The result of `op` given what the neighbouring stage made: None at the pipeline's ends."""
        if (function := OP_FUNCTIONS.get(op.kind)) is None:
            raise ExecutionError(f"rank {self.rank}: {op}: no function for ops of kind {op.kind}; there is {', '.join(OP_FUNCTIONS)}")
        return function(self, op, received)

    def _receive(self, need, op):
        source = self.program.rank_of.get(need)
        if source == self.rank:
            if need not in self.handed_over:
                raise ExecutionError(f"rank {self.rank}: {op} comes before {need}, which it needs")
            return self.handed_over.pop(need)
        if source is None:
            raise ExecutionError(f"rank {self.rank}: {need} never runs, but {op} needs it")
        try:
            return self.inboxes[source].take(need)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise ExecutionError(f"rank {self.rank} waits at {op} for {need} from rank {source}: {text}") from error

    def _open_inboxes(self):
        """{source: Inbox} with what each other rank will send here, in its order."""
        expected = {}
        for source, steps in enumerate(self.program.lowered):
            messages = [step.op for step in steps if step.destination == self.rank]
            if messages:
                expected[source] = self.channels.inbox(source, messages, *self.message_form)
        return expected

    def _finish(self, record, start, end):
        self.recorder.write(record._replace(start_s=self.timer.seconds(start), end_s=self.timer.seconds(end)))


def forward(executor, op, received):
    """F: run the stage, keep its graph, give its output (the last stage: its part of the loss)."""
    module = executor.stages[op.stage]
    x = executor.tokens[op.microbatch] if op.stage == 0 else received.requires_grad_()
    with executor.activations.saving((op.stage, op.microbatch)):
        y = module(x)
        if module.is_last:
            y = loss(y, executor.targets[op.microbatch]) / len(executor.targets)
            executor.losses.append(y.detach())
    executor.saved[op.stage, op.microbatch] = x, y
    return y.detach()


def backward(executor, op, received):
    """B: add to the parameters' gradients, give the gradient of the stage's input; the graph is freed."""
    x, y = _graph(executor, op)
    y.backward(received)
    return x.grad


def input_grad(executor, op, received):
    """I: as B, but what the linear layers' weight gradients are made of is kept for W."""
    x, y = _graph(executor, op)
    key = op.stage, op.microbatch
    kept = executor.kept[key] = []

    def keep(layer, *tensors):
        kept.append((layer, [executor.activations.hold(tensor, key) for tensor in tensors]))

    with keeping_weight_gradients(executor.stages[op.stage], keep):
        y.backward(received)
    return x.grad


def weight_grad(executor, op, received):
    """W: the linear layers' weight gradients, from what I kept."""
    if (op.stage, op.microbatch) not in executor.kept:
        raise ExecutionError(f"rank {executor.rank}: {op} comes before {op.stage}I{op.microbatch}, which it needs")
    kept = executor.kept.pop((op.stage, op.microbatch))
    while kept:
        layer, held = kept.pop()
        layer.add_weight_gradient(*[item.tensor for item in held])


def _graph(executor, op):
    """(input, output) of the forward that `op` goes back through."""
    if (op.stage, op.microbatch) not in executor.saved:
        raise ExecutionError(f"rank {executor.rank}: {op} comes before {op.stage}F{op.microbatch}, which it needs")
    return executor.saved.pop((op.stage, op.microbatch))


OP_FUNCTIONS = {"F": forward, "B": backward, "I": input_grad, "W": weight_grad}

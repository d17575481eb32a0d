"""The executor of a whole plan: one rank's steps under dp x cp x tp x pp and ZeRO, instruction by instruction as simlab lists them."""

from contextlib import contextmanager
from functools import cached_property

import torch

from realrun.activations import SavedActivations
from realrun.executor import ExecutionError
from realrun.faults import Injector, check_finite, check_released, check_scale
from realrun.model import Stage
from realrun.parallel.clipping import clip
from realrun.parallel.context import positions
from realrun.parallel.group import Observer
from realrun.parallel.precision import LossScaler
from realrun.parallel.stage import Between, ParallelStage
from realrun.parallel.state import State
from realrun.parallel.units import StageUnits
from realrun.recorder import EXECUTING, IDLE
from realrun.split import keeping_weight_gradients


class PlanExecutor:
    """One rank of `plan`.

    sizes:    of the model, as `realrun.model.Stage` takes them.
    program:  of one pipeline; its ranks are places in this rank's pp group.
    mesh:     `Mesh` of the plan; channels: `Channels` to the other stages; make_cursor: a `SavedActivations` → `Cursor`.
    dtype:    in which it computes; in 16 bits with fp32 masters, and gradients as wide as the plan says.
    fault:    a `realrun.faults.Fault` to put in on purpose.
    optimizer: parameters → torch optimizer; limit: the global norm at which gradients are clipped, None: not at all (but it is computed).
    loss_scale: by which the loss is multiplied at first, for fp16, see `realrun.parallel.precision.LossScaler`.
    """

    def __init__(
        self, sizes, plan, program, mesh, channels, make_cursor, *, dtype, optimizer, device="cpu", limit=1.0, recorder=None, fault=None,
        loss_scale=2.0**16,
    ):  # fmt: skip
        self.sizes, self.plan, self.program, self.mesh, self.channels = sizes, plan, program, mesh, channels
        self.dtype, self.device, self.limit, self.recorder = dtype, device, limit, recorder
        self.injector = Injector(fault, mesh.rank)
        self.mesh = self.injector.tampered(mesh)
        self.place = mesh["pp"].place
        self.ops = program.ranks[self.place]
        numbers = program.stages_of(self.place)
        self.stages = {number: self.stage(Stage(sizes, number, program.stages).to(device, dtype), number) for number in numbers}
        last = {op.stage: str(op) for op in self.ops if op.kind in "BW"}
        self.gradient_type = torch.float32 if dtype.itemsize == 2 and plan.gradient_bytes == 4 else dtype
        self.units = StageUnits(self.stages, plan, mesh["dp-cp"], mesh["tp"], last, self.gradient_type)
        groups = [mesh["tp"], mesh["pp"], *([mesh["dp-cp"]] if plan.zero else [])]
        self.scaler = LossScaler(groups, scale=loss_scale) if dtype == torch.float16 else None
        self.forwards = list(dict.fromkeys(op.stage for op in self.ops if op.kind == "F"))
        self.backwards = list(dict.fromkeys(op.stage for op in reversed(self.ops) if op.kind in "BW"))
        self.optimizer = optimizer([parameter for unit in self.units.all for parameter in unit.updated])
        self.activations = SavedActivations([tensor for unit in self.units.all for tensor in unit.kept])
        self.message_bytes = 0  # sent to other stages, in all steps
        self.cursor = make_cursor(self.activations)
        for group in mesh.groups.values():
            group.observer = self.cursor
        self.mesh_device = torch.device(device).type

    def stage(self, whole, number):
        """This rank's part of `whole`, a `Stage`."""
        layers = self.plan.layers_of_stages(self.sizes["layers"], self.program.stages)
        return ParallelStage(whole, sum(layers[:number]), self.mesh, self.plan)

    # a step -------------------------------------------------------------------------------------------------

    def step(self, number, tokens, targets):
        """One training step. tokens, targets: int64, (dp x microbatches, microbatch size, seq), of all ranks.

        Returns the part of the mean loss that this rank's tokens make, 0 where there is no last stage, and the norm of all gradients: if
        that is not finite in fp16, nothing was updated.
        """
        self.gradients(number, tokens, targets)
        parts = self._norm_parts()
        finite = self.scaler is None or self.scaler.unscale([gradient for gradients, _ in parts for gradient in gradients])
        norm = clip(parts, self.limit or float("inf"))
        if self.scaler is not None:
            check_scale(self.scaler.scale, self.mesh.rank, number)
        if finite:
            self.optimizer.step()
            for unit in self.units.all:
                unit.from_masters()
        self.optimizer.zero_grad(set_to_none=True)
        self.cursor.end_step()
        check_released(self.activations, self.mesh.rank, number)
        self._phase(IDLE)
        return self.loss, norm.item()

    def gradients(self, number, tokens, targets):
        """The step up to where all gradients are complete."""
        self._phase(EXECUTING)
        self.number, self.op_number = number, 0
        self.tokens, self.targets = self.activations.data = [self._own(data) for data in (tokens, targets)]
        self.loss, self.saved, self.kept, self.handed_over = 0.0, {}, {}, {}
        self.inboxes = self._open_inboxes()
        self.cursor.begin_step(number)
        self.units.step_begins(self.forwards)
        for op in self.ops:
            self._run(op)
        self.channels.finish_sending()
        self.units.step_ends(self.backwards)

    def gradient_error(self, number, expected):
        """The largest relative error of a unit's gradients on this rank; `expected`: a `Stage` with the right ones in place of weights."""
        worst, wanted = 0.0, self.stage(expected, number).units
        for name, unit in self.units.of_stage[number].items():
            theirs = StageUnits.unit_of(wanted[name], name, unit.group, self.plan, self.gradient_type)
            for (_, _, gradient), (_, right, _) in zip(unit.pieces(), theirs.pieces()):
                norm = right.norm().item()
                difference = (gradient - right).norm().item()
                worst = max(worst, difference / norm if norm else difference)
        return worst

    def memory_bytes(self):
        """{"parameters", "gradients", "optimizer", "activations": bytes on this rank}: between steps, gradients as of the last step's end,
        activations at their peak in the last step."""
        return self.units.state_bytes(self.optimizer) | {"activations": self.activations.peak_bytes}

    @cached_property
    def state(self):
        """The `State` of this training. First asked for by all ranks together."""
        return State(self.stages, self.units, self.optimizer, self.mesh.layout, self.mesh_device)

    @contextmanager
    def unobserved(self):
        """Inside, what groups send belongs to no step: the cursor is not told, and nothing is counted."""
        counted = len(self.mesh.traffic)
        for group in self.mesh.groups.values():
            group.observer = Observer()
        try:
            yield
        finally:
            for group in self.mesh.groups.values():
                group.observer = self.cursor
            del self.mesh.traffic[counted:]

    def loss_gradient(self, y):
        """What the backward of the loss `y` begins with: None for 1."""
        return None if self.scaler is None else torch.full_like(y, self.scaler.scale)

    def _own(self, data):
        """This rank's microbatches and tokens of `data`."""
        layout, m = self.mesh.layout, self.plan.microbatches
        replica, cp = layout.coordinates(self.mesh.rank)["dp"], self.mesh["cp"]
        data = data[replica * m : (replica + 1) * m]
        return (
            data[..., positions(data.shape[-1] // cp.size, cp, self.plan.cp_layout)].to(self.device)
            if cp.size > 1
            else data.to(self.device)
        )

    def _norm_parts(self):
        """Gradients, and the groups whose ranks have different ones (`clipping.global_norm`): first those that tp ranks have parts of."""
        spread = [self.mesh["dp-cp"]] if self.plan.zero else []
        cut, whole = [], []
        replicated = {id(p) for stage in self.stages.values() for module in stage.units.values() for p in module.whole_on_tp()}
        for parameter, _, gradient in (piece for unit in self.units.all for piece in unit.pieces()):
            (whole if id(parameter) in replicated else cut).append(gradient)
        return [(cut, [self.mesh["tp"], self.mesh["pp"], *spread]), (whole, [self.mesh["pp"], *spread])]

    # an op --------------------------------------------------------------------------------------------------

    def _run(self, op):
        self.op, stage, kind = str(op), self.stages[op.stage], op.kind
        self.units.op_begins(op.stage, kind)
        received = self._receive(op, stage)
        names = list(stage.units) if kind == "F" else list(stage.units)[::-1]
        if kind != "W":
            self._unit_begins(op, names[0])
        self.injector.before(self.number, self.op_number)
        try:
            result = OP_FUNCTIONS[kind](self, op, stage, received)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise ExecutionError(f"rank {self.mesh.rank}: {op}: {text}") from error
        if kind == "F" or self.scaler is None:  # a scale that is too large makes infinite gradients, which the scaler finds
            check_finite(result, self.mesh.rank, op)
        self.op_number += 1
        if kind != "W":
            self._unit_ends(op, names[-1])
        if (user := self.program.user(op)) is not None:
            self._send(op, stage, result, self.program.rank_of[user])

    def _unit_begins(self, op, name):
        self.units.unit_begins(op.stage, op.kind, name)

    def _unit_ends(self, op, name):
        self.cursor.computed(str(op), name)
        self.units.unit_ends(op.stage, op.kind, name, str(op))

    def _between(self, op, backward):
        """What `ParallelStage.forward` calls between units; backward: () → the op whose backward passes."""

        def passes(before, after, op):
            self._unit_ends(op, before)
            self._unit_begins(op, after)

        return lambda x, before, after: Between.apply(x, lambda: passes(before, after, op), lambda: passes(after, before, backward()))

    def _receive(self, op, stage):
        (need,) = [n for n in self.program.needs(op) if n.stage != op.stage] or [None]
        if need is None:
            return None
        source = self.program.rank_of[need]
        if source == self.place:
            return self.handed_over.pop(need)
        begun = self.cursor.awaits(str(need), "message")
        received = self.inboxes[source].take(need)
        self.cursor.ended(begun)
        return stage.incoming(received)

    def _send(self, op, stage, result, destination):
        if destination == self.place:
            self.handed_over[op] = result
            return
        message = stage.outgoing(result)
        self.message_bytes += message.nbytes
        self.cursor.begins("pp", "message", message.nbytes)
        self.channels.send(message, self.mesh["pp"].ranks[destination])

    def _open_inboxes(self):
        shape = next(iter(self.stages.values())).message_shape(self.sizes["microbatch_size"], self.sizes["seq"])
        inboxes = {}
        for source, steps in enumerate(self.program.lowered):
            messages = [step.op for step in steps if step.destination == self.place]
            if messages:
                inboxes[source] = self.channels.inbox(self.mesh["pp"].ranks[source], messages, shape, self.dtype)
        return inboxes

    def _phase(self, phase):
        if self.recorder is not None:
            self.recorder.phase(phase)


def forward(executor, op, stage, received):
    """F: run the stage's units, keep the graph, give the output (the last stage: its part of the loss)."""
    x = executor.tokens[op.microbatch] if op.stage == 0 else received.detach().requires_grad_()
    key = op.stage, op.microbatch
    with executor.activations.saving(key):
        between = executor._between(op, lambda: executor.backward_op)
        y = stage(x, executor.targets[op.microbatch] if stage.is_last else None, between)
        y = executor.injector.made(executor.number, executor.op_number, key, y)
        if stage.is_last:
            y = y / executor.plan.microbatches
            executor.loss += y.item() / executor.mesh["dp-cp"].size
    executor.saved[key] = x, y
    return y.detach()


def backward(executor, op, stage, received):
    """B: add to the parameters' gradients, give the gradient of the stage's input."""
    executor.backward_op = op
    key = op.stage, op.microbatch
    x, y = executor.saved.pop(key)
    y.backward(executor.loss_gradient(y) if stage.is_last else received, retain_graph=key in executor.injector.kept)
    return x.grad


def input_grad(executor, op, stage, received):
    """I: as B, but what the linear layers' weight gradients are made of is kept for W."""
    executor.backward_op, key = op, (op.stage, op.microbatch)
    kept = executor.kept[key] = {}

    def keep(layer, *tensors):
        kept.setdefault(layer, []).append([executor.activations.hold(tensor, key) for tensor in tensors])

    x, y = executor.saved.pop(key)
    with keeping_weight_gradients(stage, keep):
        y.backward(executor.loss_gradient(y) if stage.is_last else received)
    return x.grad


def weight_grad(executor, op, stage, received):
    """W: the linear layers' weight gradients, from what I kept, unit by unit."""
    kept = executor.kept.pop((op.stage, op.microbatch))
    for name, unit in reversed(stage.units.items()):
        for layer in unit.modules():
            for held in kept.pop(layer, []):
                layer.add_weight_gradient(*[item.tensor for item in held])
        executor._unit_ends(op, name)


OP_FUNCTIONS = {"F": forward, "B": backward, "I": input_grad, "W": weight_grad}

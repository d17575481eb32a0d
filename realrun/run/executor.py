"""The executor: one rank's steps under dp x cp x tp x pp and ZeRO, op by op. A pipeline is a plan with
dp = tp = cp = 1."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from itertools import chain
from typing import Any

import torch

from realrun.checkpoint.state import State
from realrun.comm.channels import Channels
from realrun.comm.group import Observer
from realrun.comm.mesh import Mesh
from realrun.model.gpt import Stage, layer_range
from realrun.parallel.clipping import clip
from realrun.parallel.copies import Copies
from realrun.parallel.layers.block import ParallelBlock
from realrun.parallel.layers.context import positions
from realrun.parallel.precision import LossScaler
from realrun.parallel.side_by_side import HandsOver, SideBySide, turns_of
from realrun.parallel.stage import ParallelStage, Told
from realrun.parallel.units import StageUnits
from realrun.record.activations import Key, SavedActivations
from realrun.record.step_log import StepLog
from realrun.run.exchange import Exchange
from realrun.run.faults import Fault, Injector, check_finite, check_released, check_scale
from realrun.run.gradients import norm_parts, units_error
from realrun.run.ops import OP_FUNCTIONS, ExecutionError
from simlab.program import Op, Program
from simlab.spec.plan import Plan


class Executor:
    """One rank of `plan`: its stages, what autograd holds for them, and the loop over its ops.

    sizes:    of the model, as `realrun.model.gpt.Stage` takes them.
    program:  of one pipeline; its ranks are places in this rank's pp group.
    mesh:     `Mesh` of the plan; channels: `Channels` to the other stages; make_log: a
              `SavedActivations` → `realrun.record.step_log.StepLog`, such as `Conformance`.
    dtype:    in which it computes; in 16 bits with fp32 masters, and gradients as wide as the plan
              says.
    fault:    a `realrun.run.faults.Fault` to put in on purpose.
    optimizer: parameters → torch optimizer; limit: the global norm at which gradients are clipped,
    None: not at all (but it is computed).
    valid:    whether the program keeps the rules; nothing may then be held when a step ends.
    stage_layers: the layers of each stage; None: what `realrun.model.gpt.layer_range` says.
    copies:   the `Copies` of its stages, or None: each stage stands on one rank.
    loss_scale: by which the loss is multiplied at first, for fp16, see
    `realrun.parallel.precision.LossScaler`.
    """

    def __init__(
        self,
        sizes: dict[str, int],
        plan: Plan,
        program: Program,
        mesh: Mesh,
        channels: Channels,
        make_log: Callable[[SavedActivations], StepLog],
        *,
        dtype: torch.dtype,
        optimizer: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        device: torch.device | str = "cpu",
        limit: float | None = 1.0,
        fault: Fault | None = None,
        loss_scale: float = 2.0**16,
        valid: bool = True,
        stage_layers: Sequence[int] | None = None,
        copies: Copies | None = None,
    ) -> None:
        self.sizes, self.plan, self.program, self.channels = sizes, plan, program, channels
        self.dtype, self.device, self.limit = dtype, device, limit
        self.stage_layers = stage_layers
        self.injector = Injector(fault, mesh.rank)
        self.mesh, self.rank = self.injector.tampered(mesh), mesh.rank
        self.place = mesh["pp"].place
        self.ops = program.ranks[self.place]
        numbers = program.stages_of(self.place)
        self.stages = {number: self.stage(self._whole(number), number) for number in numbers}
        if all(op.kind != "I" for op in self.ops):
            for stage in self.stages.values():
                for layer in chain(*stage.split_layers.values()):
                    layer.is_split = False
        last = {op.stage: op for op in self.ops if op.kind in "BW"}
        self.gradient_type = (
            torch.float32 if dtype.itemsize == 2 and plan.gradient_bytes == 4 else dtype
        )
        experts = mesh.get("edp")
        self.units = StageUnits(
            self.stages, plan, mesh["dp"], mesh["tp"], last, self.gradient_type, experts
        )
        spread = "dp" if plan.zero else "ep"  # ranks of a dp group have the same without ZeRO
        groups = [group for name in ("tp", "pp", spread) if (group := mesh.get(name))]
        self.scaler = LossScaler(groups, scale=loss_scale) if dtype == torch.float16 else None
        self.forwards = list(dict.fromkeys(op.stage for op in self.ops if op.kind == "F"))
        self.backwards = list(
            dict.fromkeys(op.stage for op in reversed(self.ops) if op.kind in "BW")
        )
        self.optimizer = optimizer(
            [parameter for unit in self.units.all for parameter in unit.updated]
        )
        self.activations = SavedActivations(
            [tensor for unit in self.units.all for tensor in unit.kept]
        )
        self.valid, self.copies = valid, copies
        self.log = make_log(self.activations)
        self.exchange = Exchange(sizes, program, mesh, channels, self.log, dtype)
        for group in mesh.groups.values():
            group.observer = self.log.observer
        self.mesh_device = torch.device(device).type
        self._sent: dict[str, float] = {}
        self.losses: list[torch.Tensor] = []
        self.saved: dict[Key, tuple[torch.Tensor, torch.Tensor]] = {}
        self.kept: dict[Key, dict[Any, Any]] = {}
        self.backward_op: Op | None = None
        self.pair: SideBySide | None = None

    def stage(self, whole: Stage, number: int) -> ParallelStage:
        """This rank's part of `whole`, a `Stage`."""
        layers, stages = self.sizes["layers"], self.program.stages
        first, _ = layer_range(layers, number, stages, self.stage_layers)
        return ParallelStage(whole, first, self.mesh, self.plan)

    def _whole(self, number: int) -> Stage:
        whole = Stage(self.sizes, number, self.program.stages, self.stage_layers)
        return whole.to(self.device, self.dtype)

    # a step
    # -------------------------------------------------------------------------------------------------

    def step(self, number: int, tokens: torch.Tensor, targets: torch.Tensor) -> tuple[float, float]:
        """One training step. tokens, targets: int64, (dp x microbatches, microbatch size, seq), of
        all ranks.

        Returns the part of the mean loss that this rank's tokens make, 0 where there is no last
        stage, and the norm of all gradients: if that is not finite in fp16, nothing was updated.
        """
        self.gradients(number, tokens, targets)
        elsewhere = self.copies.counted_elsewhere(self.rank) if self.copies else ()
        parts, copied = norm_parts(self.units, self.stages, self.mesh, self.plan.zero, elsewhere)
        finite = self.scaler is None or self.scaler.unscale(
            chain(*(gradients for gradients, _ in parts), copied)
        )
        norm = clip(parts, self.limit or float("inf"), copied, self.plan.copies)
        if self.scaler is not None:
            check_scale(self.scaler.scale, self.rank, number)
        if finite:
            self.optimizer.step()
            for unit in self.units.all:
                unit.from_masters()
        self.optimizer.zero_grad(set_to_none=True)
        self.log.end_step()
        self._count_sent()
        if self.valid:
            check_released(self.activations, self.rank, number)
        return self.loss, norm.item()

    def gradients(self, number: int, tokens: torch.Tensor, targets: torch.Tensor) -> float:
        """The step up to where all gradients are complete; this rank's part of the loss."""
        self.begin(number, tokens, targets)
        self.exchange.open_inboxes(next(iter(self.stages.values())))
        self.units.step_begins(self.forwards)
        ops = iter(enumerate(self.ops))
        for position, op in ops:
            if op in self.program.paired:
                self._run_pair((position, op), next(ops))
            else:
                self._run(position, op)
        self.channels.finish_sending()
        self.log.ops_end()
        self.units.step_ends(self.backwards)
        if self.copies is not None:
            self.copies.sum_gradients(self.rank, self.stages)
        self.loss = sum(part.item() for part in self.losses) / self.mesh["dp"].size
        return self.loss

    def begin(self, number: int, tokens: torch.Tensor, targets: torch.Tensor) -> None:
        """Make ready for the ops of step `number`, none of which has been run."""
        self.number, self.op_number = number, 0
        self.tokens, self.targets = self._own(tokens), self._own(targets)
        self.activations.leave_out([self.tokens, self.targets])
        for held in (self.losses, self.saved, self.kept):
            held.clear()
        # before any receive is posted: on CUDA it may wait for the whole device
        self.log.begin_step(number)

    def gradient_error(self, expected: Sequence[Mapping[str, torch.Tensor]]) -> float:
        """The largest relative error of a unit's gradients on this rank; expected: of each stage,
        {parameter: the right one}."""
        worst = 0.0
        for number in self.stages:
            whole = self._whole(number)
            for name, parameter in whole.named_parameters():
                parameter.data = expected[number][name]
            worst = max(worst, units_error(self.units, number, self.stage(whole, number).units))
        return worst

    def memory_bytes(self) -> dict[str, int]:
        """{"parameters", "gradients", "optimizer", "activations": bytes on this rank}: between
        steps, gradients as of the last step's end, activations at their peak in the last step."""
        return self.units.state_bytes(self.optimizer) | {"activations": self.activations.peak_bytes}

    def sent_bytes(self, steps: int) -> dict[str, float]:
        """{dimension: bytes that this rank sent in a step}, after so many steps."""
        self._count_sent()
        sent = self._sent | {"pp": self._sent.get("pp", 0.0) + self.exchange.sent_bytes}
        # last: sums of thirds would not be exact
        return {dimension: size / steps for dimension, size in sent.items()}

    def _count_sent(self) -> None:
        """Add what the mesh's groups have sent: its list of that must not grow with the steps."""
        for entry in self.mesh.traffic:
            dimension = entry.dimension.partition("-")[0]
            self._sent[dimension] = self._sent.get(dimension, 0.0) + entry.sent_bytes
        self.mesh.traffic.clear()

    def vitals(self) -> dict[str, float] | None:
        """{"computed_s", "waited_s", "activations": peak bytes} of the last step; None where the
        log does not tell computing from waiting."""
        times = self.log.times()
        return times and times | {"activations": self.activations.peak_bytes}

    @cached_property
    def state(self) -> State:
        """The `State` of this training. First asked for by all ranks together."""
        return State(self.stages, self.units, self.optimizer, self.mesh.layout, self.mesh_device)

    @contextmanager
    def unobserved(self) -> Iterator[None]:
        """Inside, what groups send belongs to no step: the log is not told, and nothing is
        counted."""
        counted = len(self.mesh.traffic)
        for group in self.mesh.groups.values():
            group.observer = Observer()
        try:
            yield
        finally:
            for group in self.mesh.groups.values():
                group.observer = self.log.observer
            del self.mesh.traffic[counted:]

    def loss_gradient(self, y: torch.Tensor) -> torch.Tensor | None:
        """What the backward of the loss `y` begins with: None for 1."""
        return None if self.scaler is None else torch.full_like(y, self.scaler.scale)

    def _own(self, data: torch.Tensor) -> torch.Tensor:
        """This rank's microbatches and tokens of `data`."""
        layout, m = self.mesh.layout, self.plan.microbatches
        replica, cp = layout.coordinates(self.rank).dp, self.mesh["cp"]
        data = data[replica * m : (replica + 1) * m]
        return (
            data[..., positions(data.shape[-1] // cp.size, cp, self.plan.cp_layout)].to(self.device)
            if cp.size > 1
            else data.to(self.device)
        )

    # an op
    # --------------------------------------------------------------------------------------------------

    def _run(self, position: int, op: Op) -> None:
        result = self._computed(position, op, self._received(position, op))
        self.exchange.send(op, self.stages[op.stage], result)

    def _run_pair(self, ahead: tuple[int, Op], back: tuple[int, Op]) -> None:
        """A forward and a backward side by side, in the order of `RankLowering.of_pair`. ahead, back:
        (position, op)."""
        forward, backward = self.stages[ahead[1].stage], self.stages[back[1].stage]
        gradient, x = self._received(*back), self._received(*ahead)
        units = [*forward.units.values()], [*backward.units.values()][::-1]
        self.pair = SideBySide(turns_of(*units, lambda unit: isinstance(unit, ParallelBlock)))
        self.mesh["ep"].observer = HandsOver(self.log.observer, self.pair)
        try:
            made, passed_on = self.pair.results(
                lambda: self._computed(*ahead, x),
                lambda: self._computed(*back, gradient),
                self._use_device,
            )
        finally:
            self.pair, self.mesh["ep"].observer = None, self.log.observer
        self.exchange.send(back[1], backward, passed_on)
        self.exchange.send(ahead[1], forward, made)

    def _use_device(self) -> None:
        """Make a thread that was started here use this rank's GPU, if it has one."""
        if self.mesh_device == "cuda":
            torch.cuda.set_device(self.device)

    def _received(self, position: int, op: Op) -> torch.Tensor | None:
        """What `op` needs of the neighbouring stage, waited for."""
        self.log.op_waits(position)
        self.units.op_begins(op.stage, op.kind)
        return self.exchange.receive(op, self.stages[op.stage])

    def _computed(
        self, position: int, op: Op, received: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The result of `op`."""
        stage, kind = self.stages[op.stage], op.kind
        self.log.op_begins(position, kind)
        names = list(stage.units) if kind == "F" else list(stage.units)[::-1]
        if kind != "W":
            self._unit_begins(op, names[0])
        self.injector.before(self.number, self.op_number)
        try:
            result = self.run_op(op, received)
        except RuntimeError as error:
            text = " ".join(str(error).split())
            raise ExecutionError(f"rank {self.rank}: {op}: {text}") from error
        # a scale that is too large makes infinite gradients, which the scaler finds
        if self.log.immediate and (kind == "F" or self.scaler is None):
            check_finite(result, self.rank, op)
        self.op_number += 1
        if kind != "W":
            self.unit_ends(op, names[-1])
        self.log.op_ends(position, kind)
        return result

    def run_op(self, op: Op, received: torch.Tensor | None = None) -> torch.Tensor | None:
        """The result of `op` given what the neighbouring stage made: None at the pipeline's
        ends."""
        if op.kind not in OP_FUNCTIONS:
            raise ExecutionError(
                f"rank {self.rank}: {op}: no function for ops of kind {op.kind}; there is {', '.join(OP_FUNCTIONS)}"
            )
        return OP_FUNCTIONS[op.kind](self, op, self.stages[op.stage], received)

    def _unit_begins(self, op: Op, name: str) -> None:
        if self.pair is not None:
            self.pair.begins()
        self.units.unit_begins(op.stage, op.kind, name)

    def unit_ends(self, op: Op, name: str) -> None:
        """The unit `name` of `op` has been computed."""
        self.log.unit_ends(op, name)
        if self.pair is not None:
            self.pair.ends()
        self.units.unit_ends(op, name)

    def between(self, op: Op, backward: Callable[[], Op | None]) -> Told | None:
        """What `ParallelStage.forward` calls between units; backward: () → the op whose backward
        passes. Of no use where nobody asks for units, and none comes and goes."""
        asked = self.log.by_unit or self.pair is not None
        if not (asked or self.plan.zero or self.units.shared):
            return None

        def passes(before: str, after: str, op: Op | None) -> None:
            assert op is not None  # some backward has begun
            self.unit_ends(op, before)
            self._unit_begins(op, after)

        def told(x: torch.Tensor, before: str, after: str) -> None:
            passes(before, after, op)
            x.register_hook(lambda gradient: passes(after, before, backward()))

        return told

"""One rank's training of a plan by torch's own parallelism."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from realrun.backends.torch.model import TorchStage, cut_order, local, whole
from realrun.backends.torch.ops import Ops
from realrun.backends.torch.parallelize import microbatch, parallelized, wrapping
from realrun.backends.torch.pipeline import Pipeline
from realrun.backends.torch.state import TorchState
from realrun.backends.torch.traffic import Counted
from realrun.comm.group import OPERATIONS, Pending, nothing_to_do
from realrun.model.gpt import Stage, layer_range, loss
from realrun.parallel.precision import TYPES, LossScaler
from realrun.record.step_log import OpLog
from realrun.run.faults import check_finite, check_scale
from realrun.run.job import Job
from realrun.run.session import LEARNING_RATE
from simlab.program import Op
from simlab.spec.layout import Layout
from simlab.trace import OPTIMIZER


class TorchTraining:
    """A `realrun.run.backend.Training`.

    layout:    of `job`'s plan; mesh: torch's `DeviceMesh` of it.
    log:       the `OpLog` of this rank's `ops`, see `ops_of`.
    dtype:     of the weights; precision: of what is computed.
    """

    def __init__(
        self,
        job: Job,
        rank: int,
        device: torch.device,
        layout: Layout,
        mesh: DeviceMesh,
        log: OpLog,
        ops: Ops,
        *,
        dtype: torch.dtype,
        precision: str,
    ) -> None:
        self.job, self.rank, self.device, self.mesh, self.log = job, rank, device, mesh, log
        self.plan, self.place = job.executed, layout.coordinates(rank)
        self.positions = {op: position for position, op in enumerate(ops)}
        self.wrapping = wrapping(self.plan, precision)
        self.stages, modules = self._stages(dtype, precision)
        self.model = next(iter(modules.values()))
        self.scaler = (
            LossScaler([Everyone()], scale=job.loss_scale) if precision == "fp16" else None
        )
        self.pipeline: Pipeline | None = None
        if job.program.stages > 1:
            group = mesh["pp"].get_group()
            self.pipeline = Pipeline(
                job.program, modules, group, device, self._part_of_loss, self._timed
            )
        self.optimizer = self._optimizer()
        dimensions = ("dp", "tp", "pp")
        self.traffic = Counted(
            {name: dist.get_process_group_ranks(mesh[name].get_group()) for name in dimensions}
        )
        self.first, self.gradient_bytes = True, 0

    def _stages(
        self, dtype: torch.dtype, precision: str
    ) -> tuple[dict[int, TorchStage], dict[int, nn.Module]]:
        """({number: `TorchStage`}, {number: the module that computes it})."""
        job, plan = self.job, self.plan
        tokens: tuple[int, int] | None = None
        autocast: torch.dtype | None = None
        if precision != "fp32" and self.wrapping in ("", "ddp"):
            autocast = TYPES[precision]
        if plan.sequence_parallel:
            own = job.sizes["seq"] // plan.tp
            tokens = self.place.tp * own, (self.place.tp + 1) * own
        stages: dict[int, TorchStage] = {}
        modules: dict[int, nn.Module] = {}
        for number in job.program.stages_of(self.place.pp):
            plain = Stage(job.sizes, number, job.program.stages, job.stage_layers)
            stages[number] = TorchStage(
                plain.to(self.device, dtype),
                plan.tp,
                recompute=plan.recompute,
                tokens=tokens,
                autocast=autocast,
            )
            modules[number] = parallelized(
                stages[number], plan, self.mesh, precision, self.wrapping
            )
        return stages, modules

    def _optimizer(self) -> torch.optim.Optimizer:
        if self.plan.zero != 1 or self.plan.dp == 1:
            return torch.optim.Adam(self._parameters(), lr=LEARNING_RATE)
        from torch.distributed.optim import ZeroRedundancyOptimizer

        dp = self.mesh["dp"].get_group()
        return ZeroRedundancyOptimizer(
            self._parameters(), torch.optim.Adam, process_group=dp, lr=LEARNING_RATE
        )

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        """The Adam of this rank's parameters. ZeroRedundancyOptimizer has one for its own part."""
        optimizer: Any = self.optimizer
        return optimizer.optim if self.plan.zero == 1 and self.plan.dp > 1 else optimizer

    def _parameters(self) -> list[nn.Parameter]:
        return [parameter for stage in self.stages.values() for parameter in stage.parameters()]

    def _own_gradients(self) -> list[Tensor]:
        return [p.grad for p in self._parameters() if p.grad is not None]

    def step(self, number: int, tokens: Tensor, targets: Tensor) -> tuple[float, float]:
        """See `Training`. What is sent is counted in the first step, which slows that step."""
        with self.traffic if self.first else nullcontext():
            part = self._gradients(number, tokens, targets)
            norm = self._update(number)
        self.first = False
        self.log.write_records()
        self.gradient_bytes = sum(local(gradient).nbytes for gradient in self._own_gradients())
        self.optimizer.zero_grad(set_to_none=True)
        return part, norm

    def gradients(self, number: int, tokens: Tensor, targets: Tensor) -> float:
        """See `Training`."""
        part = self._gradients(number, tokens, targets)
        self.log.write_records()
        return part

    def _gradients(self, number: int, tokens: Tensor, targets: Tensor) -> float:
        m, first = self.plan.microbatches, self.place.dp * self.plan.microbatches
        self.log.begin_step(number)
        tokens, targets = (data[first : first + m].to(self.device) for data in (tokens, targets))
        losses = (
            self.pipeline.step(tokens, targets)
            if self.pipeline
            else self._one_after_the_other(tokens, targets)
        )
        for parameter in self._parameters():
            gradient = parameter.grad
            if isinstance(gradient, DTensor) and isinstance(parameter, DTensor):
                wanted = parameter.placements
                if gradient.placements != wanted:  # a sum over tp was put off
                    parameter.grad = gradient.redistribute(placements=wanted)
        scale = self.scaler.scale if self.scaler else 1.0
        return sum(part.item() for part in losses) / scale / self.plan.dp

    def _one_after_the_other(self, tokens: Tensor, targets: Tensor) -> list[Tensor]:
        """The loss of each microbatch, without a pipeline."""
        losses = []
        for i in range(self.plan.microbatches):
            with microbatch(self.model, self.plan, self.wrapping, i == self.plan.microbatches - 1):
                with self._timed(Op(0, "F", i)):
                    part = self._part_of_loss(self.model(tokens[i]), targets[i])
                with self._timed(Op(0, "B", i)):
                    part.backward()
            losses.append(part.detach())
        return losses

    def _part_of_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """The tensor from which the backward of a microbatch begins: its part of the replica's mean
        loss, times the scale of fp16."""
        scale = self.scaler.scale if self.scaler else 1.0
        return loss(logits, targets) / self.plan.microbatches * scale

    def _update(self, number: int) -> float:
        """Clip by the global norm, and update, unless a number of fp16 overflowed. Returns the
        norm."""
        with self._timed(OPTIMIZER):
            finite = not self.scaler or self.scaler.unscale(
                [local(gradient) for gradient in self._own_gradients()]
            )
            norm = self._clip()
            if self.scaler:
                check_scale(self.scaler.scale, self.rank, number)
            else:
                check_finite(torch.tensor(norm), self.rank, f"the backward of step {number}")
            if finite:
                self.optimizer.step()
        return norm

    def _clip(self) -> float:
        """Clip by the global norm, and return it. torch does not mix DTensors of several meshes, so
        they are taken one mesh at a time."""
        kinds: dict[Any, list[nn.Parameter]] = defaultdict(list)
        for p in self._parameters():
            kinds[(p.device_mesh, p.placements) if isinstance(p, DTensor) else None].append(p)
        norms = [
            whole(nn.utils.get_total_norm([p.grad for p in its if p.grad is not None]))
            for its in kinds.values()
        ]
        norm = torch.stack(norms).norm()
        if self.plan.pp > 1:
            square = norm.square()
            dist.all_reduce(square, group=self.mesh["pp"].get_group())
            norm = square.sqrt()
        limit = self.job.clip_norm
        if limit is not None:
            for its in kinds.values():
                nn.utils.clip_grads_with_norm_(its, limit, norm)
        return norm.item()

    @contextmanager
    def _timed(self, op: Op | str) -> Iterator[None]:
        position, kind = self.positions[op], op if isinstance(op, str) else op.kind
        self.log.op_begins(position, kind)
        yield
        self.log.op_ends(position, kind)

    def gradient_error(self, expected: list[dict[str, Tensor]]) -> float:
        """See `Training`."""
        worst = 0.0
        for number, stage in self.stages.items():
            pieces = stage.pieces
            for name, parameter in stage.named_parameters():
                right = expected[number][name].to(self.device)
                if parameter.grad is None:
                    return float("inf")
                if name in pieces:
                    right = right[cut_order(len(right), self.plan.tp, pieces[name])]
                error = (whole(parameter.grad) - right).norm() / right.norm().clamp(min=1e-12)
                worst = max(worst, error.item())
        return worst

    @property
    def state(self) -> TorchState:
        """What a checkpoint holds, by the names that the native back-end has."""
        layers, stages = self.job.sizes["layers"], self.job.program.stages
        by_first_layer = {
            layer_range(layers, number, stages, self.job.stage_layers)[0]: stage
            for number, stage in self.stages.items()
        }
        return TorchState(by_first_layer, self.own_optimizer, self.plan.tp)

    def unobserved(self) -> AbstractContextManager[None]:
        """See `Training`: nothing is observed."""
        return nullcontext()

    def vitals(self) -> None:
        """See `Training`. What each rank computes and waits for is inside torch."""

    def sent_bytes(self, steps: int) -> dict[str, float]:
        """See `Training`. They are those of the first step."""
        return dict(self.traffic.sent)

    def memory_bytes(self) -> dict[str, int]:
        """See `Training`; activations are not counted."""
        moments = [
            value
            for state in self.own_optimizer.state.values()
            for value in state.values()
            if torch.is_tensor(value) and value.dim()
        ]
        return {
            "parameters": sum(local(tensor).nbytes for tensor in self._parameters()),
            "optimizer": sum(local(tensor).nbytes for tensor in moments),
            "gradients": self.gradient_bytes,
        }


class Everyone:
    """All ranks, as `LossScaler` knows a group."""

    def all_reduce(self, tensor: Tensor, operation: str = "sum") -> Pending:
        """See `realrun.comm.group.Group`. It is done when this returns."""
        reduced = tensor.cpu()
        dist.all_reduce(reduced, OPERATIONS[operation])
        return nothing_to_do(tensor.copy_(reduced))

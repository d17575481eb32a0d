"""One rank's side of a `PlanJob` with engine 'torch': check, train, report, as `PlanSession` does for our own executor."""

import json
import logging
import math
import warnings
from collections import defaultdict
from contextlib import contextmanager, nullcontext

import torch
import torch.distributed as dist
from torch import nn

from realrun.allocator import begin_peak, peak_bytes
from realrun.checkpoints import Checkpoints
from realrun.clock import offset_from_rank_0
from realrun.compute import CudaTimer, HostTimer
from realrun.faults import check_finite, check_scale
from realrun.model import Stage, layer_range, loss
from realrun.parallel.mesh import device_mesh
from realrun.parallel.precision import TYPES, LossScaler
from realrun.plan_session import LEARNING_RATE, PlanSession
from realrun.recorder import CHECK_STEP, DONE, EXECUTING, IDLE, RUNNING, Record, Recorder
from realrun.reference import single_process
from realrun.session import device_name, gather_bytes
from realrun.torch_engine.model import TorchStage, local, qkv_order
from realrun.torch_engine.parallelize import microbatch, parallelized, wrapping
from realrun.torch_engine.pipeline import Pipeline
from realrun.torch_engine.state import TorchState
from realrun.torch_engine.traffic import Counted
from realrun.torch_engine.watch import ops_of
from simlab.trace import Span, Trace

LIMIT = 1.0
MESHES = {}


class TorchSession(PlanSession):
    """`groups` are not used: torch makes its own."""

    def run(self):
        """The facts of the run on rank 0; None elsewhere."""
        job = self.job
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # that no op in place may follow the head: none does
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # the check's full tensors may be slow
        self.offset_s, _ = offset_from_rank_0(self.rank, job.ranks)
        self.mesh = mesh_of(self.layout, self.device.type)
        self.timer = CudaTimer() if self.device.type == "cuda" else HostTimer()
        self.say("\n".join(self.layout.cube().splitlines()))
        self._predict_on_machine()
        ops = ops_of(job, self.rank)
        self.positions = {op: position for position, op in enumerate(ops)}
        self.recorder = Recorder(job.folder / f"rank{self.rank}.records", (1 + job.warmup + job.steps) * len(ops), self.offset_s)
        own = (self._check() if job.check else {}) | self._train()
        parts = [json.loads(data) for data in gather_bytes(json.dumps(own).encode())]
        self.recorder.close()
        return None if self.rank else self._result(parts)

    def _make(self, dtype, precision="fp32"):
        """A new training of weights in `dtype`, computed with in `precision`."""
        plan, program = self.plan, self.job.program
        self.wrapping = wrapping(plan, precision)
        tokens, autocast = None, TYPES[precision] if precision != "fp32" and self.wrapping in ("", "ddp") else None
        if plan.sequence_parallel:
            own = self.job.sizes["seq"] // plan.tp
            tokens = self._place("tp") * own, (self._place("tp") + 1) * own
        self.stages, modules = {}, {}
        for number in program.stages_of(self._place("pp")):
            whole = Stage(self.job.sizes, number, program.stages).to(self.device, dtype)
            self.stages[number] = TorchStage(whole, plan.tp, recompute=plan.recompute, tokens=tokens, autocast=autocast)
            modules[number] = parallelized(self.stages[number], plan, self.mesh, precision, self.wrapping)
        self.model = next(iter(modules.values()))
        self.scaler = LossScaler([Everyone()], scale=self.job.loss_scale) if precision == "fp16" else None
        self.pipeline = None
        if program.stages > 1:
            group = self.mesh["pp"].get_group()
            self.pipeline = Pipeline(program, modules, group, self.device, self._part_of_loss, self._timed)
        if plan.zero == 1 and plan.dp > 1:
            from torch.distributed.optim import ZeroRedundancyOptimizer

            dp = self.mesh["dp"].get_group()
            self.optimizer = ZeroRedundancyOptimizer(self._parameters(), torch.optim.Adam, process_group=dp, lr=LEARNING_RATE)
        else:
            self.optimizer = torch.optim.Adam(self._parameters(), lr=LEARNING_RATE)

    def _parameters(self):
        return [parameter for stage in self.stages.values() for parameter in stage.parameters()]

    def _place(self, dimension):
        return self.layout.coordinates(self.rank)[dimension]

    # a step -----------------------------------------------------------------------------------------------------

    def _gradients(self, number):
        """This rank's part of the mean loss of step `number`, all of which is done but the update. Steps of warm-up are below 0."""
        m, first = self.plan.microbatches, self._place("dp") * self.plan.microbatches
        self.marks, self.number = [], number
        self.timer.begin_step()
        tokens, targets = (data[first : first + m].to(self.device) for data in self._batch(max(0, number + self.job.warmup)))
        losses = self.pipeline.step(tokens, targets) if self.pipeline else self._one_after_the_other(tokens, targets)
        for parameter in self._parameters():
            gradient = parameter.grad
            if hasattr(gradient, "placements") and gradient.placements != parameter.placements:  # a sum over tp that was put off
                parameter.grad = gradient.redistribute(placements=parameter.placements)
        scale = self.scaler.scale if self.scaler else 1.0
        return sum(part.item() for part in losses) / scale / self.plan.dp

    def _one_after_the_other(self, tokens, targets):
        """[loss of each microbatch], without a pipeline."""
        losses = []
        for i in range(self.plan.microbatches):
            with microbatch(self.model, self.plan, self.wrapping, i == self.plan.microbatches - 1):
                with self._timed(f"0F{i}"):
                    part = self._part_of_loss(self.model(tokens[i]), targets[i])
                with self._timed(f"0B{i}"):
                    part.backward()
            losses.append(part.detach())
        return losses

    def _part_of_loss(self, logits, targets):
        """What the backward of a microbatch begins with: its part of the replica's mean loss, times the scale of fp16."""
        return loss(logits, targets) / self.plan.microbatches * (self.scaler.scale if self.scaler else 1.0)

    def _update(self):
        """Clip by the global norm, and update, unless a number of fp16 overflowed; the norm."""
        with self._timed("optimizer"):
            finite = not self.scaler or self.scaler.unscale([local(parameter.grad) for parameter in self._parameters()])
            norm = self._clip()
            if self.scaler:
                check_scale(self.scaler.scale, self.rank, self.number)
            else:
                check_finite(torch.tensor(norm), self.rank, f"the backward of step {self.number}")
            if finite:
                self.optimizer.step()
        return norm

    def _clip(self):
        """Clip by the global norm, and return it: DTensors of one mesh at a time, since torch does not mix them."""
        kinds = defaultdict(list)
        for parameter in self._parameters():
            kinds[getattr(parameter, "device_mesh", None), getattr(parameter, "placements", None)].append(parameter)
        norms = [nn.utils.get_total_norm([p.grad for p in its]) for its in kinds.values()]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        norm = torch.stack(norms).norm()
        if self.plan.pp > 1:
            square = norm.square()
            dist.all_reduce(square, group=self.mesh["pp"].get_group())
            norm = square.sqrt()
        for its in kinds.values():
            nn.utils.clip_grads_with_norm_(its, LIMIT, norm)
        return norm.item()

    @contextmanager
    def _timed(self, op):
        position = self.positions[op]
        self.recorder.write(Record(self.number, position, RUNNING))
        start = self.timer.begin(op)
        yield
        self.marks.append((op, start, self.timer.finish(op, start)))
        self.recorder.write(Record(self.number, position, DONE))

    # the run ----------------------------------------------------------------------------------------------------

    def _check(self):
        """As `PlanSession._check`: a step in float64 up to its gradients, against one process."""
        self.say(f"{self.job.name}: gradients against one process")
        self._make(torch.float64)
        sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
        expected_loss, expected = single_process(sizes, self.job.program.stages, *self._batch(0), torch.float64)
        self.recorder.phase(EXECUTING)
        part = self._gradients(CHECK_STEP)
        self.recorder.phase(IDLE)
        worst = 0.0
        for number, stage in self.stages.items():
            for name, parameter in stage.named_parameters():
                gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
                right = expected[number][name].to(self.device)
                if ".qkv." in name:
                    right = right[qkv_order(len(right), self.plan.tp)]
                worst = max(worst, ((gradient - right).norm() / right.norm().clamp(min=1e-12)).item())
        return {"gradient_error": worst, "loss": self._whole(part), "expected_loss": expected_loss}

    def _train(self):
        job, plan = self.job, self.plan
        self.say(f"{job.name}: {job.warmup} warm-up and {job.steps} measured steps, by torch")
        self._make(torch.float32, plan.precision)
        checkpoints = Checkpoints(job, self, self.rank, self.say)
        first = checkpoints.resume()
        losses, norms, steps = [], [], []
        counted = Counted({name: dist.get_process_group_ranks(self.mesh[name].get_group()) for name in ("dp", "tp", "pp")})
        for number in range(first, job.warmup + job.steps):
            if number <= max(first, job.warmup):
                begin_peak(self.device)
            self.recorder.phase(EXECUTING)  # from before ranks wait for each other until after
            dist.barrier()
            with counted if number == first else nullcontext():
                part = self._gradients(number - job.warmup)
                norm = self._update()
            norms.append(norm if math.isfinite(norm) else None)
            gradients = sum(local(p.grad).nbytes for p in self._parameters())
            self.optimizer.zero_grad(set_to_none=True)
            steps.append([(op, *(self.timer.seconds(mark) + self.offset_s for mark in ends)) for op, *ends in self.marks])
            losses.append(self._whole(part))
            self.recorder.phase(IDLE)
            checkpoints.after(number + 1)
        checkpoints.finish()
        measured = steps[max(0, job.warmup - first) :]
        return {
            "first_step": first, "losses": losses, "norms": norms, "loss_scale": self.scaler and self.scaler.scale,
            "sent_bytes": counted.sent, "memory_bytes": self._memory() | {"gradients": gradients}, "spans": measured, "vitals": [],
            "allocator_bytes": peak_bytes(self.device),
            "reference_losses": self._reference(len(losses), first) if job.reference else None,
        }  # fmt: skip

    @property
    def state(self):
        """What `Checkpoints` saves and loads."""
        layers, stages = self.job.sizes["layers"], self.job.program.stages
        by_first_layer = {layer_range(layers, number, stages)[0]: stage for number, stage in self.stages.items()}
        return TorchState(by_first_layer, getattr(self.optimizer, "optim", self.optimizer), self.plan.tp)

    unobserved = staticmethod(nullcontext)

    def _memory(self):
        states = getattr(self.optimizer, "optim", self.optimizer).state.values()  # ZeroRedundancyOptimizer has one for its own part
        moments = [value for state in states for value in state.values() if torch.is_tensor(value) and value.dim()]
        held = {"parameters": self._parameters(), "optimizer": moments}
        return {name: sum(local(tensor).nbytes for tensor in tensors) for name, tensors in held.items()}

    def _result(self, parts):
        from realrun.plan_report import result

        traces = []
        for step in range(len(parts[0]["spans"])):
            zero_s = min(part["spans"][step][0][1] for part in parts)
            spans = [
                Span(rank, "optimizer" if op == "optimizer" else "compute", op, start_s - zero_s, end_s - zero_s)
                for rank, part in enumerate(parts) for op, start_s, end_s in part["spans"][step]
            ]  # fmt: skip
            metadata = {"name": self.job.name, "source": "measured", "ranks": self.job.ranks, "level": "instructions", "step": step}
            traces.append(Trace(spans, [], metadata | {"device": device_name(self.device), "exposed_s": []}))
            traces[-1].save(self.job.folder / f"measured-step-{step}.json")
        for record in self.job.folder.glob("rank*.records"):
            record.unlink()
        return result(self.job, parts, traces)


def mesh_of(layout, device_type):
    """Its `DeviceMesh`, one for all runs of this process: DTensor remembers meshes, so that the groups of an equal one must live."""
    key = device_type, *layout.sizes.items()
    if key not in MESHES:
        MESHES[key] = device_mesh(layout, device_type, "nccl" if device_type == "cuda" else None)
    return MESHES[key]


class Everyone:
    """All ranks, as `LossScaler` knows a group."""

    def all_reduce(self, tensor, op):
        """Of one number; `op` is 'max'."""
        whole = tensor.cpu()
        dist.all_reduce(whole, getattr(dist.ReduceOp, op.upper()))
        tensor.copy_(whole)
        return self

    def wait(self):
        """It is done."""

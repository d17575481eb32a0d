"""The same plan with torch's own data, sharded and tensor parallelism: what a user would rather have, held to the same checks.

    ZeRO 0                DistributedDataParallel; with tensor parallelism, whose weights are DTensors, replicate
    ZeRO 1                and ZeroRedundancyOptimizer
    ZeRO 2, 3             fully_shard (FSDP2) of embedding, layers and head, as our units are; 2 keeps what it gathered until the backward
    tensor parallelism    parallelize_module: columns and rows, and both ends by the vocabulary

There is no list to be held against: what torch sends, and when, is torch's to decide. Its bytes are counted by dimension, in the first
step (without warm-up steps a measured one, which that slows), and stand beside those of the simulator's list.

Left out, and refused: pipelines and context parallelism, sequence parallelism, selective recomputation, 16 bits, checkpoints, faults,
boxes, ZeRO-1 with tensor parallelism (ZeroRedundancyOptimizer takes no DTensors).
"""

import json
import logging
import warnings
from collections import defaultdict
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from realrun.clock import now, offset_from_rank_0
from realrun.model import Block, Stage, loss
from realrun.parallel.mesh import Layout, device_mesh
from realrun.reference import single_process, single_training
from realrun.session import device_name, gather_bytes
from realrun.text import batch
from simlab.collectives import busbw_factor
from simlab.trace import Span, Trace

LEARNING_RATE, LIMIT = 1e-3, 1.0
KINDS = {
    "allreduce_": "all-reduce", "all_reduce": "all-reduce", "all_reduce_": "all-reduce", "broadcast_": "broadcast",
    "_allgather_base_": "all-gather", "all_gather_into_tensor": "all-gather",
    "_reduce_scatter_base_": "reduce-scatter", "reduce_scatter_tensor": "reduce-scatter",
}  # fmt: skip
"""{op of torch's dispatcher: what it is}"""


class TorchBlock(Block):
    """A `Block` of plain layers, with a tp-th of the heads."""

    def __init__(self, block, tp):
        nn.Module.__init__(self)  # the layers are those of `block`
        self.heads = block.heads // tp
        self.norm1, self.norm2 = block.norm1, block.norm2
        self.qkv = plain(block.qkv, qkv_order(block.qkv.out_features, tp))
        self.out, self.up, self.down = (plain(layer) for layer in (block.out, block.up, block.down))


class TorchModel(nn.Module):
    """`realrun.model.Stage` of all layers, of `TorchBlock`s: tokens (batch, seq) → logits (batch, seq, 256)."""

    def __init__(self, whole, tp, recompute):
        super().__init__()
        self.embed, self.position, self.norm, self.head = whole.embed, whole.position, whole.norm, plain(whole.head)
        self.blocks = nn.ModuleList(TorchBlock(block, tp) for block in whole.blocks)
        self.recompute = recompute

    def forward(self, tokens):
        x = self.embed(tokens) + self.position(torch.arange(tokens.shape[-1], device=tokens.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute == "full" else block(x)
        return self.head(self.norm(x))


def local(tensor):
    """This rank's part of it."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def plain(layer, rows=None):
    """An `nn.Linear` with the weights of `layer`, in the order `rows`."""
    made = nn.Linear(layer.in_features, layer.out_features, bias=layer.bias is not None).to(layer.weight)
    rows = slice(None) if rows is None else rows
    with torch.no_grad():
        for ours, theirs in zip(made.parameters(), layer.parameters()):
            ours.copy_(theirs[rows])
    return made


def qkv_order(rows, tp):
    """Rows of the product for queries, keys and values so that each of `tp` equal parts has all three of its heads."""
    return torch.arange(rows).view(3, tp, -1).transpose(0, 1).flatten()


def parallelized(model, plan, mesh):
    """`model` on torch's parallelism of `plan`; and what its backwards that are not a step's last run in."""
    if plan.tp > 1:
        from torch.distributed.tensor import Replicate
        from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

        ends = {"embed": RowwiseParallel(input_layouts=Replicate()), "head": ColwiseParallel(output_layouts=Replicate())}
        parallelize_module(model, mesh["tp"], ends)
        for block in model.blocks:
            columns, rows = dict.fromkeys(("qkv", "up"), ColwiseParallel()), dict.fromkeys(("out", "down"), RowwiseParallel())
            parallelize_module(block, mesh["tp"], columns | rows)
    if plan.dp == 1:
        return model, nullcontext
    if plan.zero >= 2:
        from torch.distributed.fsdp import fully_shard

        for unit in ([model.embed, model.position], *model.blocks, [model.norm, model.head], model):
            fully_shard(unit, mesh=mesh["dp"], reshard_after_forward=plan.zero == 3)
        return model, nullcontext
    if plan.tp > 1:
        from torch.distributed._composable.replicate_with_fsdp import replicate

        for unit in ([model.embed, model.position], *model.blocks, [model.norm, model.head], model):
            replicate(unit, mesh=mesh["dp"])
        return model, nullcontext
    wrapped = nn.parallel.DistributedDataParallel(model, process_group=mesh["dp"].get_group())
    return wrapped, wrapped.no_sync


class Counted(TorchDispatchMode):
    """Inside: {dimension: bytes that this rank sends in collectives}. tp: ranks of its group, which DTensors' collectives name, maybe by
    the name of an equal group that was made before; the others are dp's."""

    def __init__(self, tp, sizes):
        super().__init__()
        self.tp, self.sizes, self.sent = tp, sizes, defaultdict(float)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kind = KINDS.get(function._schema.name.partition("::")[2]) if function.namespace in ("c10d", "_c10d_functional") else None
        result = function(*args, **(kwargs or {}))
        if kind:
            dimension = "tp" if any(isinstance(a, str) and a.isdecimal() and ranks_of(a) == self.tp for a in args) else "dp"
            tensors = [a for a in (*args, result) if isinstance(a, torch.Tensor)]
            tensors = tensors or [a for arg in args if isinstance(arg, (list, tuple)) for a in arg if isinstance(a, torch.Tensor)]
            self.sent[dimension] += max(tensor.nbytes for tensor in tensors) * busbw_factor(kind, self.sizes[dimension])
        return result


def ranks_of(name):
    """[ranks of the process group of that name]"""
    return dist.get_process_group_ranks(dist.distributed_c10d._resolve_process_group(name))


class TorchSession:
    """One rank's side of a `PlanJob` with engine 'torch'. `groups` are not used: torch makes its own."""

    def __init__(self, job, rank, device, groups, say):
        self.job, self.rank, self.device, self.say = job, rank, device, say
        self.plan, self.layout = job.executed, Layout(job.executed, job.executed.order.split("-"))
        self.mesh = device_mesh(self.layout, device.type, "nccl" if device.type == "cuda" else None)

    def run(self):
        """The facts of the run on rank 0; None elsewhere."""
        job = self.job
        warnings.filterwarnings("ignore", "FSDP2-wrapped module")  # that no op in place may follow the head: none does
        logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)  # the check's full tensors may be slow
        self.offset_s, _ = offset_from_rank_0(self.rank, job.ranks)
        self.say("\n".join(self.layout.cube().splitlines()))
        own = (self._check() if job.check else {}) | self._train()
        parts = [json.loads(data) for data in gather_bytes(json.dumps(own).encode())]
        reference = self._reference() if job.reference else None
        return None if self.rank else self._result(parts, reference)

    def _make(self, dtype):
        whole = Stage(self.job.sizes, 0, 1).to(self.device, dtype)
        self.model, self.alone = parallelized(TorchModel(whole, self.plan.tp, self.plan.recompute), self.plan, self.mesh)
        if self.plan.zero == 1 and self.plan.dp > 1:
            from torch.distributed.optim import ZeroRedundancyOptimizer

            self.optimizer = ZeroRedundancyOptimizer(
                self.model.parameters(), torch.optim.Adam, process_group=self.mesh["dp"].get_group(), lr=LEARNING_RATE
            )  # fmt: skip
        else:
            self.optimizer = torch.optim.Adam(self.model.parameters(), lr=LEARNING_RATE)

    def _gradients(self, number):
        """(this rank's part of the mean loss, [(name, start_s, end_s)]) of a step up to its gradients."""
        plan, job = self.plan, self.job
        m, replica = plan.microbatches, self.layout.coordinates(self.rank)["dp"]
        tokens, targets = batch(number, plan.dp * m, plan.microbatch_size, job.sizes["seq"])
        total, times = 0.0, [now()]
        for i in range(m):
            if plan.zero == 2 and plan.dp > 1:
                self.model.set_reshard_after_backward(i == m - 1)  # gathered once a step
            x, y = (data[replica * m + i].to(self.device) for data in (tokens, targets))
            with self.alone() if i < m - 1 else nullcontext():
                part = loss(self.model(x), y) / m
                times.append(now())
                part.backward()
                times.append(now())
            total += part.item()
        names = [f"{kind}{i}" for i in range(m) for kind in "FB"]
        return total / plan.dp, [(name, *ends) for name, ends in zip(names, pairwise(times))]

    def _clip(self):
        """Clip by the global norm, and return it: DTensors of one mesh at a time, since torch does not mix them."""
        kinds = defaultdict(list)
        for parameter in self.model.parameters():
            kinds[getattr(parameter, "device_mesh", None), getattr(parameter, "placements", None)].append(parameter)
        norms = [nn.utils.get_total_norm([p.grad for p in its]) for its in kinds.values()]
        norms = [norm.full_tensor() if hasattr(norm, "full_tensor") else norm for norm in norms]
        norm = torch.stack(norms).norm()
        for its in kinds.values():
            nn.utils.clip_grads_with_norm_(its, LIMIT, norm)
        return norm.item()

    def _check(self):
        """As `PlanSession._check`: a step in float64 up to its gradients, against one process."""
        self.say(f"{self.job.name}: gradients against one process")
        self._make(torch.float64)
        part, _ = self._gradients(0)
        sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
        tokens, targets = batch(0, self.plan.dp * self.plan.microbatches, self.plan.microbatch_size, self.job.sizes["seq"])
        expected_loss, (expected,) = single_process(sizes, 1, tokens, targets, torch.float64)
        worst = 0.0
        for name, parameter in self.model.named_parameters():
            name = name.removeprefix("module.")
            gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
            right = expected[name]
            if ".qkv." in name:
                right = right[qkv_order(len(right), self.plan.tp)]
            worst = max(worst, ((gradient - right).norm() / right.norm().clamp(min=1e-12)).item())
        return {"gradient_error": worst, "loss": self._whole(part), "expected_loss": expected_loss}

    def _whole(self, part):
        """The mean loss of all tokens, from each replica's part."""
        total = torch.tensor([part if self.layout.coordinates(self.rank)["tp"] == 0 else 0.0], dtype=torch.float64)
        dist.all_reduce(total)
        return total.item()

    def _train(self):
        job, plan = self.job, self.plan
        self.say(f"{job.name}: {job.warmup} warm-up and {job.steps} measured steps, by torch")
        self._make(torch.float32)
        losses, norms, steps = [], [], []
        tp = dist.get_process_group_ranks(self.mesh["tp"].get_group()) if plan.tp > 1 else None
        counted = Counted(tp, {"tp": plan.tp, "dp": plan.dp})
        for number in range(job.warmup + job.steps):
            dist.barrier()
            with counted if number == 0 else nullcontext():
                part, spans = self._gradients(number)
                norms.append(self._clip())
                start_s = now()
                self.optimizer.step()
            gradients = sum(local(p.grad).nbytes for p in self.model.parameters())
            self.optimizer.zero_grad(set_to_none=True)
            steps.append([*spans, ("optimizer", start_s, now())])
            losses.append(self._whole(part))
        return {
            "losses": losses, "norms": norms, "sent_bytes": counted.sent, "memory_bytes": self._memory() | {"gradients": gradients},
            "spans": [[(name, a + self.offset_s, b + self.offset_s) for name, a, b in step] for step in steps[job.warmup :]],
        }  # fmt: skip

    def _memory(self):
        states = getattr(self.optimizer, "optim", self.optimizer).state.values()  # ZeroRedundancyOptimizer has one for its own part
        moments = [value for state in states for value in state.values() if torch.is_tensor(value) and value.dim()]
        held = {"parameters": self.model.parameters(), "optimizer": moments}
        return {name: sum(local(tensor).nbytes for tensor in tensors) for name, tensors in held.items()}

    def _reference(self):
        losses = None
        if self.rank == 0:
            sizes = self.job.sizes | {"microbatch_size": self.plan.microbatch_size}
            batches = (
                batch(number, self.plan.dp * self.plan.microbatches, self.plan.microbatch_size, self.job.sizes["seq"])
                for number in range(self.job.warmup + self.job.steps)
            )  # fmt: skip
            losses = single_training(sizes, 1, batches, LEARNING_RATE, limit=LIMIT)
        dist.barrier()
        return losses

    def _result(self, parts, reference):
        from realrun.plan_report import result

        traces = []
        for step in range(self.job.steps):
            zero_s = min(part["spans"][step][0][1] for part in parts)
            spans = [
                Span(rank, "optimizer" if name == "optimizer" else "compute", name, a - zero_s, b - zero_s)
                for rank, part in enumerate(parts) for name, a, b in part["spans"][step]
            ]  # fmt: skip
            metadata = {"name": self.job.name, "source": "measured", "ranks": self.job.ranks, "level": "instructions", "step": step}
            traces.append(Trace(spans, [], metadata | {"device": device_name(self.device), "exposed_s": []}))
            traces[-1].save(Path(self.job.folder) / f"measured-step-{step}.json")
        for part in parts:
            part |= {"first_step": 0, "reference_losses": reference, "vitals": []}
        return result(self.job, parts, traces)

"""A stage on torch's parallelism: which of torch's pieces a plan takes."""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from realrun.backends.torch.model import TorchStage
from realrun.model.layer import norms_of, products_of
from realrun.parallel.precision import TYPES
from simlab.spec.plan import Plan


def wrapping(plan: Plan, precision: str) -> str:
    """What of torch's holds the weights over dp: '' (nothing), 'ddp', 'replicate' or 'fully_shard'.

    In 16 bits the last two compute with a copy of the weights. One rank by itself is given one by
    replicate.
    """
    if plan.zero >= 2 and plan.dp > 1:
        return "fully_shard"
    if plan.tp == 1 and plan.stages == 1:
        return "ddp" if plan.dp > 1 else ""
    return "replicate" if plan.dp > 1 or precision != "fp32" else ""


def parallelized(
    stage: TorchStage, plan: Plan, mesh: DeviceMesh, precision: str, kind: str
) -> nn.Module:
    """`stage` on torch's parallelism of `plan`, in 'fp32' (or fp64), 'bf16' or 'fp16'. kind: see
    `wrapping`."""
    if plan.tp > 1:
        cut(stage, plan, mesh["tp"])
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(stage, process_group=mesh["dp"].get_group())
    if kind:
        shard(stage, plan, mesh["dp"], precision, kind)
    return stage


def microbatch(
    module: nn.Module, plan: Plan, kind: str, is_last: bool
) -> AbstractContextManager[None]:
    """The context in which a microbatch's forward and backward run, without a pipeline. After a
    step's last microbatch gradients are reduced, and weights that ZeRO-2 gathered are freed."""
    if isinstance(module, nn.parallel.DistributedDataParallel):
        return nullcontext() if is_last else module.no_sync()
    sharded: Any = module  # torch adds methods to the modules that it wraps in place
    if kind == "replicate":
        sharded.set_requires_gradient_sync(is_last)
    if kind == "fully_shard" and plan.zero == 2:
        sharded.set_reshard_after_backward(is_last)
    return nullcontext()


def cut(stage: TorchStage, plan: Plan, mesh: DeviceMesh) -> None:
    """Tensor parallelism over `mesh`: columns and rows of the layers, and both ends by the
    vocabulary. With sequence parallelism what lies between is cut by tokens, which are dimension 1
    for norms and dimension 0 for positions."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        ParallelStyle,
        RowwiseParallel,
        SequenceParallel,
        parallelize_module,
    )

    between = Shard(1) if plan.sequence_parallel else Replicate()
    columns, rows = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    styles: dict[str, ParallelStyle] = {
        name: rows if its.weights[0].by_columns else columns
        for name, its in products_of(stage.model).items()
    }
    ends: dict[str, ParallelStyle] = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if plan.sequence_parallel:
        styles |= {name: SequenceParallel() for name in norms_of(stage.model)}
        ends |= {
            "norm": SequenceParallel(),
            "position": SequenceParallel(sequence_dim=0, use_local_output=True),
        }
    parallelize_module(
        stage, mesh, {name: ends[name] for name, _ in stage.named_children() if name in ends}
    )
    for block in stage.blocks:
        parallelize_module(block, mesh, styles)


def shard(stage: TorchStage, plan: Plan, mesh: DeviceMesh, precision: str, kind: str) -> None:
    """Apply `kind`, see `wrapping`, over `mesh`, in place. What is computed with is then a copy in
    `precision`."""
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        reduced = TYPES["fp32" if plan.gradient_bytes == 4 else precision]
        policy = MixedPrecisionPolicy(param_dtype=TYPES[precision], reduce_dtype=reduced)
    reshard = plan.zero == 3 and plan.reshard
    for unit in (*stage.units, stage):
        if kind == "fully_shard":
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=reshard)
        else:
            replicate(unit, mesh=mesh, mp_policy=policy)

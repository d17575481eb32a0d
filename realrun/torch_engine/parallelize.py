"""A stage on torch's parallelism: which of its pieces a plan takes."""

from contextlib import nullcontext

from torch import nn

from realrun.parallel.precision import TYPES


def is_whole(plan):
    """Whether each rank has the whole model with weights that are plain tensors: what DistributedDataParallel is for."""
    return plan.tp == 1 and plan.pp == 1 and plan.zero < 2


def parallelized(stage, plan, mesh, precision):
    """`stage`, a `TorchStage`, on torch's parallelism of `plan`, in 'fp32' (or fp64), 'bf16' or 'fp16'; and what its backwards that are
    not a step's last run in."""
    if plan.tp > 1:
        cut(stage, plan, mesh["tp"])
    if not is_whole(plan):
        if plan.dp > 1 or precision != "fp32":
            shard(stage, plan, mesh["dp"], precision)
        return stage, nullcontext
    if plan.dp == 1:
        return stage, nullcontext
    wrapped = nn.parallel.DistributedDataParallel(stage, process_group=mesh["dp"].get_group())
    return wrapped, wrapped.no_sync


def cut(stage, plan, mesh):
    """Tensor parallelism over `mesh`: columns and rows of the layers, both ends by the vocabulary. With sequence parallelism what is
    between is cut by tokens, dimension 1, for norms; positions are tokens only, dimension 0."""
    from torch.distributed.tensor import Replicate, Shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, SequenceParallel, parallelize_module

    between = Shard(1) if plan.sequence_parallel else Replicate()
    columns, rows = ColwiseParallel(input_layouts=between), RowwiseParallel(output_layouts=between)
    styles = {"qkv": columns, "up": columns, "out": rows, "down": rows}
    ends = {
        "embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
        "head": ColwiseParallel(input_layouts=between, output_layouts=Replicate()),
    }
    if plan.sequence_parallel:
        styles |= {"norm1": SequenceParallel(), "norm2": SequenceParallel()}
        ends |= {"norm": SequenceParallel(), "position": SequenceParallel(sequence_dim=0, use_local_output=True)}
    parallelize_module(stage, mesh, {name: style for name, style in ends.items() if hasattr(stage, name)})
    for block in stage.blocks:
        parallelize_module(block, mesh, styles)


def shard(stage, plan, mesh, precision):
    """ZeRO over `mesh`, of no ranks but this one too: what is computed with is then a copy in `precision`."""
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        reduced = TYPES["fp32" if plan.gradient_bytes == 4 else precision]
        policy = MixedPrecisionPolicy(param_dtype=TYPES[precision], reduce_dtype=reduced)
    for unit in (*stage.units, stage):
        if plan.zero >= 2:
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=plan.zero == 3)
        else:
            replicate(unit, mesh=mesh, mp_policy=policy)

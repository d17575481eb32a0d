"""A stage on torch's parallelism: which of its pieces a plan takes."""

from contextlib import nullcontext

from torch import nn

from realrun.parallel.precision import TYPES


def wrapping(plan, precision):
    """What of torch's holds the weights over dp: '' (nothing), 'ddp', 'replicate' or 'fully_shard'.

    In 16 bits the last two compute with a copy of the weights: one rank by itself is given one by replicate."""
    if plan.zero >= 2 and plan.dp > 1:
        return "fully_shard"
    if plan.tp == 1 and plan.stages == 1:
        return "ddp" if plan.dp > 1 else ""
    return "replicate" if plan.dp > 1 or precision != "fp32" else ""


def parallelized(stage, plan, mesh, precision, kind):
    """`stage`, a `TorchStage`, on torch's parallelism of `plan`, in 'fp32' (or fp64), 'bf16' or 'fp16'. kind: see `wrapping`."""
    if plan.tp > 1:
        cut(stage, plan, mesh["tp"])
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(stage, process_group=mesh["dp"].get_group())
    if kind:
        shard(stage, plan, mesh["dp"], precision, kind)
    return stage


def microbatch(module, plan, kind, is_last):
    """What the forward and backward of a microbatch run in, without a pipeline: gradients are reduced, or weights that ZeRO-2 gathered are
    freed, after a step's last one."""
    if kind == "ddp":
        return nullcontext() if is_last else module.no_sync()
    if kind == "replicate":
        module.set_requires_gradient_sync(is_last)
    if kind == "fully_shard" and plan.zero == 2:
        module.set_reshard_after_backward(is_last)
    return nullcontext()


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


def shard(stage, plan, mesh, precision, kind):
    """`kind`, see `wrapping`, over `mesh`, in place; what is computed with is then a copy in `precision`."""
    from torch.distributed._composable.replicate_with_fsdp import replicate
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy()
    if precision != "fp32":
        reduced = TYPES["fp32" if plan.gradient_bytes == 4 else precision]
        policy = MixedPrecisionPolicy(param_dtype=TYPES[precision], reduce_dtype=reduced)
    for unit in (*stage.units, stage):
        if kind == "fully_shard":
            fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=plan.zero == 3)
        else:
            replicate(unit, mesh=mesh, mp_policy=policy)

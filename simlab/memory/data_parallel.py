"""It walks one data-parallel training step of a GPT in PyTorch, and gives the memory at each moment."""

from typing import NamedTuple

from simlab.errors import InputError, require_whole
from simlab.layer.units import is_layer
from simlab.lowering.zero import shards_of
from simlab.memory.fsdp import Gathered
from simlab.memory.ledger import Ledger, Moment, StepMemory
from simlab.memory.model_states import EVERY, RECIPES, Recipe, model_states
from simlab.memory.schemes import NumberBytes, Replicated, Scheme, Use
from simlab.memory.stage import Shape, StageWalk, sizes_of
from simlab.memory.units.sizes import TOKEN_BYTES
from simlab.spec.model import Model
from simlab.spec.named import AnyModel, model_of
from simlab.spec.plan import Plan
from simlab.units import MIB

SHARDING = {"ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}
"""{name: ZeRO's stage}"""


def data_parallel_memory(
    model: AnyModel,
    dp: int = 1,
    *,
    microbatch_size: int,
    seq: int | None = None,
    sharding: str = "ddp",
    reshard_after_forward: bool | None = True,
    recipe: str = "fp32",
    gradient_as_bucket_view: bool = False,
    bucket_bytes: float = 25 * MIB,
    optimizer_temporary_bytes: float = 4,
    sums_in_place: bool = True,
) -> StepMemory:
    """`StepMemory` of a rank of `dp` that trains a GPT on `microbatch_size` sequences of `seq`
    tokens, in one microbatch per step.

    sharding: 'ddp', 'zero1' (DDP with the optimizer sharded), 'zero2' (gradients too) or 'fsdp'
        (FSDP2, ZeRO-3: each block is a group of parameters that are gathered together; embeddings,
        the last norm and the head are the root's).
    reshard_after_forward: of 'fsdp'. True frees each group as soon as its forward is over. False
        frees none until its backward is over. None is torch's default: all groups but the root.
    recipe: a name in `RECIPES`, which says the bytes per parameter of each state. Weight gradients
        come in the recipe's size, and so do gathered parameters and buffers. Activations have as
        many bytes a number as a parameter.
    gradient_as_bucket_view: of 'ddp' and 'zero1'.
    bucket_bytes: of 'zero2', where the bucket is a copy that comes and goes. In DDP its size changes
        nothing, for all buckets exist always.
    optimizer_temporary_bytes: per parameter that the rank updates. Foreach Adam takes the root of
        all variances at once; fused Adam needs 0.
    sums_in_place: how autograd adds two gradients of one tensor. PyTorch does it in place, except
        under a dispatch mode, and MemTracker is one: it sees a third tensor that an undisturbed run
        does not make. False stands for what MemTracker sees.

    Derivation: every allocation of the step and its end, in order, by the same rules that
    `simlab.predict` follows. Those of the model are derived in `simlab.memory.units.forward` and
    `backward`, those of DDP, ZeRO and FSDP2 in `simlab.memory.schemes`. The optimizer's step comes
    last, when activations are gone and gradients are complete.

    Leaves out: Adam's counters of steps, the loss itself and other scalars; what the allocator
    wastes; communication libraries' own buffers; copies that autocast makes. For gradient
    accumulation, recomputation, offload and every other kind of parallelism ask `simlab.predict`.
    Raises `InputError` for a model that is no GPT (experts, gated MLP, grouped heads, no biases, no
    positions).
    """
    model = model_of(model)
    seq = model.seq if seq is None else seq
    _check(model, dp, microbatch_size, seq, sharding, recipe)
    plan = Plan(
        dp=dp,
        zero=SHARDING[sharding],
        microbatch_size=microbatch_size,
        seq=seq,
        library="torch",
        precision="fp32",
        reshard=sharding != "fsdp" or reshard_after_forward is not False,
    )
    if sharding == "fsdp":
        held = _fully_sharded(model, plan, RECIPES[recipe], reshard_after_forward is None)
    else:
        as_view = gradient_as_bucket_view and sharding != "zero2"
        held = _replicated(model, plan, recipe, as_view, bucket_bytes)
    number = RECIPES[recipe].parameters
    walk = StageWalk(
        model,
        plan,
        _shape(model),
        held.scheme,
        sizes=sizes_of(model, plan, number, number),
        sums_in_place=sums_in_place,
    )
    rest = held.rest | {"inputs": 2 * microbatch_size * seq * TOKEN_BYTES}
    return _step_memory(walk, rest, held.updated * optimizer_temporary_bytes)


class _Held(NamedTuple):
    """The states of a model on one rank."""

    scheme: Scheme
    rest: dict[str, float]
    """{category: bytes between two steps}."""
    updated: float
    """The parameters that the rank updates."""


def _shape(model: Model) -> Shape:
    return Shape(model.layer_kinds, True, True)


def _number_bytes(states: Recipe) -> NumberBytes:
    return NumberBytes(
        states.parameters,
        states.gradients,
        gathered=states.parameters,
        made=states.gradients,
        reduced=states.gradients,
    )


def _fully_sharded(model: Model, plan: Plan, states: Recipe, root_stays: bool) -> _Held:
    """FSDP2, with each tensor padded to equal parts."""
    shape = _shape(model)
    scheme = Gathered(_number_bytes(states), model, plan, shape.units, root_stays=root_stays)
    updated = scheme.numbers(shape.layers) // plan.dp
    rest = {"parameters": updated * states.parameters, "optimizer": updated * states.optimizer}
    return _Held(scheme, rest, updated)


def _replicated(model: Model, plan: Plan, recipe: str, as_view: bool, bucket_bytes: float) -> _Held:
    """DDP, whose buckets together are as large as all gradients, and ZeRO-1 and 2."""
    states = RECIPES[recipe]
    whole = model.parameters * states.gradients
    bucket, shards = (min(bucket_bytes, whole), plan.dp) if plan.zero == 2 else (whole, None)
    at_rest = model_states(model.parameters, plan.dp, zero=plan.zero, recipe=recipe)
    rest = {
        "parameters": at_rest.parameters,
        "optimizer": at_rest.optimizer,
        "gradients" if as_view else "buckets": bucket,
    }
    scheme = Replicated(_number_bytes(states), as_view=as_view, shards=shards)
    return _Held(scheme, rest, model.parameters / shards_of(plan, "optimizer"))


def _step_memory(walk: StageWalk, rest: dict[str, float], scratch: float) -> StepMemory:
    """`StepMemory` of one microbatch on one stage, which is the whole model."""
    ledger = Ledger(rest)
    moments = [Moment("between steps", dict(ledger.held))]
    kept = not walk.plan.reshard
    for name, use in (("forward", Use("F", stays=kept)), ("backward", Use("B", gathered=kept))):
        backwards, done = name == "backward", 0
        for piece in walk.pieces(use):
            for _ in range(piece.many):
                number = len(walk.shape.layers) - 1 - done if backwards else done
                done += is_layer(piece.unit)
                unit = f"block {number}" if is_layer(piece.unit) else piece.unit
                at_peak = {
                    part: size + piece.phase.at_peak[part] for part, size in ledger.held.items()
                }
                moments.append(Moment(f"{name} {unit}", at_peak))
                ledger.add(piece.phase)
    ledger.op(("temporaries", scratch))
    moments.append(Moment("optimizer step", dict(ledger.held)))
    return StepMemory(tuple(moments), ledger.largest)


def _check(
    model: Model, dp: int, microbatch_size: int, seq: int, sharding: str, recipe: str
) -> None:
    for name, value in (("dp", dp), ("microbatch_size", microbatch_size), ("seq", seq)):
        require_whole(name, value)
    if sharding not in SHARDING:
        raise InputError(f"sharding {sharding!r}: give one of {', '.join(SHARDING)}")
    fitting = [name for name, one in RECIPES.items() if one.stages == EVERY]
    if recipe not in fitting:
        raise InputError(
            f"recipe {recipe!r}: give one that is defined for all stages: {', '.join(fitting)}"
        )
    if (
        model.experts
        or model.gated_mlp
        or model.kv_heads != model.heads
        or not model.bias
        or model.positions < 1
    ):
        raise InputError(
            f"{model.name or 'model'}: memory is walked for GPTs: no experts, gated MLP, grouped heads; biases, positions"
        )
    if seq > model.positions:
        raise InputError(
            f"{model.name or 'model'}: seq = {seq} is more than its {model.positions} positions"
        )

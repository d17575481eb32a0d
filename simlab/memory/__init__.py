"""Memory of one data-parallel training step: what a rank holds at each moment, by category, found by walking the step's allocations.

`model_states` counts what a rank holds between two steps. This counts what comes on top while a step runs, and when: activations,
gathered layers, communication buffers, temporaries of the backward and of the optimizer. Nothing here is fitted: each line of the walk
is an allocation, or the end of one, that PyTorch makes at that place.
"""

from simlab.errors import InputError
from simlab.memory.gpt import GptStep
from simlab.memory.ledger import CATEGORIES, STATES, Ledger, Moment, StepMemory
from simlab.memory.schemes import Gathered, Replicated
from simlab.model_states import EVERY, RECIPES, model_states
from simlab.units import MIB

__all__ = ["CATEGORIES", "SHARDING", "STATES", "Moment", "StepMemory", "data_parallel_memory"]

SHARDING = {"ddp": 0, "zero1": 1, "zero2": 2, "fsdp": 3}
"""{name: ZeRO's stage}"""


def data_parallel_memory(
    model, dp=1, *, microbatch_size, seq=None, sharding="ddp", reshard_after_forward=True, recipe="fp32", activation_bytes=None,
    gradient_as_bucket_view=False, bucket_bytes=25 * MIB, optimizer_temporary_bytes=4, sums_in_place=True,
):  # fmt: skip
    """`StepMemory` of a rank of `dp` that trains a GPT on `microbatch_size` sequences of `seq` tokens, in one microbatch per step.

    sharding:  'ddp', 'zero1' (DDP; the optimizer sharded), 'zero2' (gradients too), 'fsdp' (FSDP2, ZeRO-3: each block is a group of
               parameters that are gathered together, embeddings, last norm and head are the root's).
    reshard_after_forward: of 'fsdp': True: each group, as soon as its forward is over; False: none, until its backward is over;
               None: torch's default, all groups but the root.
    recipe:    a name in `RECIPES`: bytes per parameter of each state. Weight gradients come in the recipe's size, gathered
               parameters and buffers likewise.
    activation_bytes: per number; None: as many as a parameter's.
    gradient_as_bucket_view: of 'ddp' and 'zero1'.
    bucket_bytes: of 'zero2', where the bucket is a copy that comes and goes. In DDP its size changes nothing: all buckets exist always.
    optimizer_temporary_bytes: per parameter that the rank updates: foreach Adam takes the root of all variances at once. 0: fused.
    sums_in_place: how autograd adds two gradients of one tensor. PyTorch does it in place, except under a dispatch mode, and MemTracker
               is one: it sees a third tensor that an undisturbed run does not make. False: as MemTracker sees it.

    Derivation: every allocation of the step and its end, in order. The model's are derived in `GptStep`, those of DDP and ZeRO in
    `Replicated`, of FSDP2 in `Gathered`. The optimizer's step comes last, when activations are gone and gradients complete.

    Leaves out: Adam's counters of steps, the loss itself and other scalars; what the allocator wastes; gradient accumulation, recompute,
    clipping, offload; communication libraries' own buffers; copies that autocast makes. Raises `InputError` for a model that is no GPT
    (experts, gated MLP, grouped heads, no biases, no positions).
    """
    seq = model.seq if seq is None else seq
    _check(model, dp, microbatch_size, seq, sharding, recipe)
    states, numbers = RECIPES[recipe], model.parameters
    ledger = Ledger()
    if sharding == "fsdp":
        scheme = Gathered(ledger, model, dp, states, reshard_after_forward)
        updated = scheme.updated
    else:
        whole = numbers * states.gradients
        bucket, shards = (min(bucket_bytes, whole), dp) if sharding == "zero2" else (whole, None)
        at_rest = model_states(numbers, dp, zero=SHARDING[sharding], recipe=recipe)
        scheme = Replicated(ledger, at_rest, bucket, gradient_as_bucket_view and sharding != "zero2", shards)
        updated = numbers / (1 if sharding == "ddp" else dp)
    sizes = {"number": activation_bytes or states.parameters, "gradient": states.gradients}
    GptStep(ledger, scheme, model, microbatch_size, seq, **sizes, sums_in_place=sums_in_place).walk()
    scratch = ("temporaries", updated * optimizer_temporary_bytes)
    with ledger.moment("optimizer step"):
        ledger.op(scratch, free=[scratch])
    return StepMemory(tuple(ledger.moments), ledger.largest)


def _check(model, dp, microbatch_size, seq, sharding, recipe):
    for name, value in (("dp", dp), ("microbatch_size", microbatch_size), ("seq", seq)):
        if not (isinstance(value, int) and value >= 1):
            raise InputError(f"{name} = {value!r}: give a whole number, at least 1")
    if sharding not in SHARDING:
        raise InputError(f"sharding {sharding!r}: give one of {', '.join(SHARDING)}")
    fitting = [name for name, one in RECIPES.items() if one.stages == EVERY]
    if recipe not in fitting:
        raise InputError(f"recipe {recipe!r}: give one that is defined for all stages: {', '.join(fitting)}")
    if model.experts or model.gated_mlp or model.kv_heads != model.heads or not model.bias or model.positions < 1:
        raise InputError(f"{model.name or 'model'}: memory is walked for GPTs: no experts, gated MLP, grouped heads; biases, positions")
    if seq > model.positions:
        raise InputError(f"{model.name or 'model'}: seq = {seq} is more than its {model.positions} positions")

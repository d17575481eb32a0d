"""The sizes of what is trained, and the model that they make: the one that is simulated, too."""

from dataclasses import fields
from typing import Any

from simlab.display import plain
from simlab.errors import InputError, require_whole
from simlab.layer.operation import Cut, Operation, OperationKind
from simlab.layer.units import layer_operations
from simlab.spec.model import Model
from simlab.spec.model.size_checks import OF_ALL_LAYERS

VOCAB = 256  # bytes
Sizes = dict[str, Any]
"""The sizes of a model: layers, hidden, heads and seq, and for a training microbatch_size. `layer`:
other fields of a `simlab.Model`, by which its layers differ from a GPT's. With experts also their
number `experts` in each layer, `experts_per_token`, `capacity`, the most tokens of a microbatch that
one of them takes, and `routed_parts` and `routed_zigzag`, into which parts a sequence is cut for that
(`realrun.model.experts.Experts`)."""
SIZE_NAMES = ("layers", "hidden", "heads", "seq", "experts", "experts_per_token")
NARROWED = ("ffn", "expert_ffn", "expert_rank", "state_head_size", "state_size")
"""Fields of a model that keep their proportion to `hidden` where layers are made narrower."""
OF_THE_WHOLE = (*OF_ALL_LAYERS, *SIZE_NAMES, "head_size", "expert_groups", "groups_per_token")
"""Fields that layers do not simply keep: what says nothing of a layer, what is asked for or found from it, and
groups of experts, of which there are few."""
HEAD = 8
"""The width of a head of a model that is made narrower, about."""
FEW = 8, 2
"""The most experts of a layer, and of a token, that a model that is made narrower has unless more are
asked for."""
NOT_EXECUTED = {
    "sinks": "attention with a score of each head's own",
    "clamped": "limits of the gate",
    "parallel": "attention and MLP side by side",
    "scaled_rotary": "rotary embedding with a factor",
}
"""{field of `Model`: what it says of a layer that is simulated only}"""
EXECUTED = (
    OperationKind.NORM,
    OperationKind.QKV,
    OperationKind.ROTARY,
    OperationKind.ATTENTION,
    OperationKind.IN_PROJECTION,
    OperationKind.SCAN,
    OperationKind.OUTPUT,
    OperationKind.RESIDUAL,
    OperationKind.ROUTER,
    OperationKind.PERMUTE,
    OperationKind.UP,
    OperationKind.ACTIVATION,
    OperationKind.DOWN,
    OperationKind.SHARED_UP,
    OperationKind.SHARED_DOWN,
)
"""Kinds of operations that are executed."""


def model_of(sizes: Sizes) -> Model:
    """The `simlab.Model` of what is trained: of these sizes, and in all else as they say in `layer`."""
    own = {name: sizes[name] for name in SIZE_NAMES if name in sizes}
    how = {"name": "byte-level GPT", "positions": sizes["seq"]} | sizes.get("layer", {})
    return Model(**own, **how, vocab=VOCAB)


def sizes_like(model: Model, asked: Sizes) -> Sizes:
    """Sizes of a model of bytes with the layers of `model`, of which `asked` has layers and seq, and
    perhaps hidden, heads, experts and experts_per_token. Where it is narrower, or a sequence shorter,
    widths and windows keep their proportions, about; a head's matrix is its own."""
    for name, value in asked.items():
        require_whole(name, value)
    hidden, seq = asked.get("hidden", model.hidden), asked["seq"]
    heads = asked.get("heads") or (
        model.heads if hidden == model.hidden else max(1, min(model.heads, hidden // HEAD))
    )
    head = _even(hidden / heads * model.heads * model.head_size / model.hidden)

    def own(field: str, value: Any) -> Any:
        if field in NARROWED:
            return -(-value * hidden // (model.hidden * HEAD)) * HEAD
        if field == "kv_heads":
            fitting = (n for n in range(min(2, value, heads), heads + 1) if heads % n == 0)
            return min(fitting, key=lambda n: abs(n - heads * value / model.heads))
        if field == "state_groups" and hidden < model.hidden:
            return min(value, 2)
        if field == "state_heads" and hidden < model.hidden:
            groups, size = own("state_groups", model.state_groups), model.state_head_size
            each = model.state_inner * hidden / model.hidden / max(1, own("state_head_size", size))
            return groups and groups * max(1, round(each / groups))
        if field == "rope_size":
            return _even(head * value / model.head_size) if value else 0
        if field == "window":
            return max(seq // 4, value * seq // model.seq) if value and seq < model.seq else value
        return value

    of_layers = [its.name for its in fields(model) if its.name not in OF_THE_WHOLE]
    how = {field: own(field, getattr(model, field)) for field in of_layers}
    how |= {"name": model.name, "pattern": model.pattern, "head_size": head}
    how["positions"] = seq if model.positions else 0
    how["dense_layers"] = min(model.dense_layers, asked["layers"] - 1)
    how["kinds"] = {
        kind: {field: own(field, value) for field, value in its} for kind, its in model.kinds
    }
    limits = (model.experts, model.experts_per_token) if hidden == model.hidden else FEW
    names = "experts", "experts_per_token"
    experts = {name: min(getattr(model, name), most) for name, most in zip(names, limits)}
    sizes = asked | {"hidden": hidden, "heads": heads, "layer": plain(how)}  # as JSON has it
    return (experts if model.experts else {}) | sizes


def _even(number: float) -> int:
    """The even number next to a number, at least 2."""
    return max(2, 2 * round(number / 2))


def refusal(model: Model) -> str | None:
    """What of the layers of `model` is simulated, but not executed; None: nothing."""
    for kind in model.counts:
        its = model.of_kind(kind)
        for field, what in NOT_EXECUTED.items():
            if getattr(its, field):
                return f"{model.name}'s {what}"
        for operation in layer_operations(its):
            if operation.kind not in EXECUTED:
                return f"{model.name}'s operation {operation.label!r}"
    return None


def of_copies(operation: Operation) -> bool:
    """Whether an operation is on copies of tokens, for experts."""
    tensors = *operation.reads, *operation.makes
    return any(tensor.cut in (Cut.COPIES, Cut.EXPERTS) for tensor in tensors)


def check_executed(model: Model) -> None:
    """`InputError` where `refusal` finds something."""
    if what := refusal(model):
        raise InputError(f"{what} is simulated, but not executed: take another model")

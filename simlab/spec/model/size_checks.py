"""Which sizes of a model go together, and which words its fields may have."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from simlab.errors import InputError, did_you_mean, shortened

if TYPE_CHECKING:
    from simlab.spec.model.sizes import ModelSizes

NORMS = ("before", "both", "behind")
QK_NORMS = (False, True, "whole", "weightless")
MIXERS = ("attention", "mamba", "none")
PARALLEL = (False, True, "two norms")
BIASES = ("qkv", "output", "mlp", "router", "norm", "head")
"""What of a model may have a bias; a norm's is its shift."""
OF_EXPERTS = ("expert_ffn", "shared_experts", "dense_layers", "expert_groups", "expert_rank")
"""Fields that say something of experts, so that a model without has none of them."""
DENSE = "dense layer"
"""The kind of layers without experts where others have them: the one that no model needs to say."""
NO_KINDS = ("layer", DENSE, "embedding", "head", "loss", "root", "module")
"""Names that a model cannot give to a kind of layers of its own."""
OF_ALL_LAYERS = (
    "name", "layers", "hidden", "vocab", "positions", "tied_head", "dense_layers", "kinds", "pattern",
    "mtp_layers",    "seq", "source", "ignored",
)  # fmt: skip
"""Fields that no kind of layers has for itself."""

Kinds = tuple[tuple[str, tuple[tuple[str, Any], ...]], ...]
"""((name of a kind of layers, ((field, value), ...)), ...)"""


def check_words(model: "ModelSizes") -> None:
    """Raise `InputError` if a field has none of its words."""
    if isinstance(model.biases, (list, tuple)):
        object.__setattr__(model, "biases", tuple(model.biases))
    its = model.biases if isinstance(model.biases, tuple) else (model.biases,)
    words: list[tuple[str, Any, Sequence[Any]]] = [("biases", one, BIASES) for one in its]
    named = ((its.name, its.metadata["choices"]) for its in fields(model))
    words += [(name, getattr(model, name), choices) for name, choices in named if choices]
    for field, value, known in words:
        if not any(value is one or (isinstance(value, str) and value == one) for one in known):
            near = did_you_mean(value, [one for one in known if isinstance(one, str)]) or ";"
            raise InputError(
                f"{model.name or 'model'}: {field} = {shortened(value)}{near} give one of {', '.join(map(str, known))}"
            )


def own_kinds(model: "ModelSizes") -> Kinds:
    """`kinds` as tuples, which can be hashed. Raises `InputError` if they name no fields of a layer."""
    name = model.name or "model"
    try:
        kinds = {its: dict(fields) for its, fields in dict(model.kinds).items()}
    except (TypeError, ValueError):
        raise InputError(
            f"{name}: kinds = {shortened(model.kinds)}: give {{name: {{field: value}}}}"
        ) from None
    known = sorted({*model.__dataclass_fields__} - {*OF_ALL_LAYERS})
    for its, own in kinds.items():
        if not isinstance(its, str) or not its or its in NO_KINDS:
            raise InputError(
                f"{name}: a kind of layers named {shortened(its)}: give a name that is none of {', '.join(NO_KINDS)}"
            )
        for field in own:
            if field not in known:
                near = did_you_mean(field, known) or ";"
                raise InputError(
                    f"{name}: kind {its!r}: {shortened(field)}{near} give fields of a layer: {', '.join(known)}"
                )
    return tuple((its, tuple(map(_hashable, fields.items()))) for its, fields in kinds.items())


def _hashable(pair: tuple[str, Any]) -> tuple[str, Any]:
    return pair[0], tuple(pair[1]) if isinstance(pair[1], list) else pair[1]


def own_pattern(model: "ModelSizes") -> tuple[str, ...]:
    """`pattern` as a tuple. Raises `InputError` if it names no kinds of layers."""
    name, known = model.name or "model", ["layer", *dict(model.kinds)]
    known += [DENSE] * (model.experts > 0)
    if isinstance(model.pattern, str) or not isinstance(model.pattern, Sequence):
        raise InputError(
            f"{name}: pattern = {shortened(model.pattern)}: give a list of kinds of layers"
        )
    for its in model.pattern:
        if its not in known:
            near = did_you_mean(its, known) or ";"
            raise InputError(
                f"{name}: pattern has {shortened(its)}{near} give one of {', '.join(known)}"
            )
    if unused := set(dict(model.kinds)) - set(model.pattern):
        raise InputError(
            f"{name}: no layer of pattern is a {sorted(unused)[0]!r}: add it there, or leave it out of kinds"
        )
    if model.pattern and model.dense_layers:
        raise InputError(
            f"{name}: dense_layers = {model.dense_layers} beside a pattern: say {DENSE!r} in the pattern"
        )
    return tuple(model.pattern)


def check_groups(model: "ModelSizes") -> None:
    """Raise `InputError` if no token's experts can be chosen from so many groups."""
    groups, taken = model.expert_groups, model.groups_per_token
    if not (groups or taken):
        return
    name = model.name or "model"
    if not groups or model.experts % groups:
        raise InputError(
            f"{name}: expert_groups = {groups} with groups_per_token = {taken} and experts = {model.experts}: give a "
            "number that divides the experts, or leave both out"
        )
    least = -(-model.experts_per_token * groups // model.experts) if model.experts else 1
    if not max(1, least) <= taken <= groups:
        raise InputError(
            f"{name}: groups_per_token = {taken} of {groups} groups, for {model.experts_per_token} of {model.experts} "
            f"experts: give {max(1, least)} to {groups}"
        )


def check_kinds(model: "ModelSizes") -> None:
    """Raise `InputError` if fields that belong to experts or to latent attention contradict
    each other."""
    name = model.name or "model"
    if not model.experts:
        for field in OF_EXPERTS:
            if value := getattr(model, field):
                raise InputError(
                    f"{name}: {field} = {value} without experts: give experts, or leave it out"
                )
    if model.dense_layers >= model.layers:
        raise InputError(
            f"{name}: dense_layers = {model.dense_layers} of {model.layers} layers: give fewer"
        )
    if model.q_rank and not model.kv_rank:
        raise InputError(
            f"{name}: q_rank = {model.q_rank} without latent attention: give kv_rank, or leave it out"
        )
    if model.value_size and not model.kv_rank:
        raise InputError(
            f"{name}: value_size = {model.value_size} without latent attention: give kv_rank, or "
            "leave it out"
        )
    if model.kv_rank and (
        model.bias or "qkv" in model.biases or model.positions or model.kv_heads != model.heads
    ):
        raise InputError(
            f"{name}: latent attention has bias = False, positions = 0 and as many kv_heads as "
            f"heads; give those, not bias = {model.bias}, positions = {model.positions} and "
            f"kv_heads = {model.kv_heads} beside heads = {model.heads}"
        )
    if model.scaled_rotary and (model.kv_rank or model.positions or not model.rotary):
        raise InputError(
            f"{name}: scaled_rotary without a rotary embedding of whole queries and keys (kv_rank ="
            f" {model.kv_rank}, positions = {model.positions}, rotary = {model.rotary}): leave it out"
        )
    if not model.rope_size < model.head_size:
        raise InputError(
            f"{name}: rope_size = {model.rope_size}: give less than head_size = {model.head_size}"
        )
    if model.parallel and (model.norms != "before" or model.experts):
        raise InputError(
            f"{name}: parallel = {model.parallel!r} with norms = {model.norms!r} and experts = {model.experts}: "
            "give norms = 'before' and no experts"
        )
    _check_parts(model, name)
    if model.tied_head and model.has_bias("head"):
        raise InputError(f"{name}: tied_head with a bias of the head: leave one out")
    if model.shared_experts and model.has_bias("mlp"):
        raise InputError(f"{name}: shared_experts with a bias of the mlp: leave one out")


def _check_parts(model: "ModelSizes", name: str) -> None:
    """Raise `InputError` if a layer has no part, or a state space not all of its sizes."""
    if not model.part_count:
        raise InputError(
            f"{name}: mixer = 'none' and has_mlp = False leave a layer empty: give one"
        )
    if model.parallel and model.part_count < 2:
        raise InputError(
            f"{name}: parallel = {model.parallel!r} with one part in a layer: give parallel = False"
        )
    if model.experts and not model.has_mlp:
        raise InputError(
            f"{name}: experts = {model.experts} with has_mlp = False: give experts = 0 for these layers"
        )
    if model.mixer != "mamba":
        return
    for field in ("state_heads", "state_head_size", "state_groups", "state_size", "conv_size"):
        if not getattr(model, field):
            raise InputError(f"{name}: mixer = 'mamba' without {field}: give at least 1")
    if model.state_heads % model.state_groups:
        raise InputError(
            f"{name}: state_groups = {model.state_groups} do not divide state_heads = {model.state_heads}"
        )
    if model.bias or model.biases:
        raise InputError(f"{name}: mixer = 'mamba' with biases: give bias = False and no biases")

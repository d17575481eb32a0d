"""A Hugging Face config.json → the sizes of a `simlab.Model`: of the model types that it can say,
and no others.

Types that look alike but are not, and so are refused: qwen2 (q, k and v have biases, nothing else
has), qwen3 (norms of q and k, whose inputs are kept for the backward), gemma2 and gemma3 (norms
behind attention and MLP), all with shared experts or experts of another width.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from simlab.errors import InputError, require_whole

_GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "ffn": "n_inner",
    "vocab": "vocab_size",
    "positions": "n_positions",
    "seq": "n_positions",
}
_LLAMA = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "kv_heads": "num_key_value_heads",
    "head_size": "head_dim",
    "ffn": "intermediate_size",
    "vocab": "vocab_size",
    "seq": "max_position_embeddings",
}
_EXPERTS = {"experts": "num_local_experts", "experts_per_token": "num_experts_per_tok"}


class _Kind(NamedTuple):
    """A model type: which key a `Model`'s field is, and what the type has where a key is missing
    (transformers' own default)."""

    architecture: str
    keys: dict[str, str]
    defaults: dict[str, Any]
    tied: bool
    """What a missing tie_word_embeddings means."""


KINDS = {
    "gpt2": _Kind("GPT2LMHeadModel", _GPT2, {"n_inner": None}, True),
    "llama": _Kind(
        "LlamaForCausalLM", _LLAMA, {"num_key_value_heads": None, "head_dim": None}, False
    ),
    "mistral": _Kind(
        "MistralForCausalLM", _LLAMA, {"num_key_value_heads": 8, "head_dim": None}, False
    ),
    "mixtral": _Kind(
        "MixtralForCausalLM", _LLAMA | _EXPERTS, {"num_key_value_heads": 8, "head_dim": None}, False
    ),
    "gemma": _Kind("GemmaForCausalLM", _LLAMA, {"num_key_value_heads": 16, "head_dim": 256}, True),
}
NULL_MEANS_DEFAULT = ("n_inner", "num_key_value_heads", "head_dim")
IGNORED = ("sliding_window", "rope_scaling", "quantization_config")
MORE_PARAMETERS = ("attention_bias", "mlp_bias", "add_cross_attention")


def read_config(path: Path) -> dict[str, Any]:
    """{field of `Model`: value} of the config.json at `path`; `InputError` where it is of a type,
    or says something, that is not read."""
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a model's config.json: {error}") from error
    if not isinstance(config, dict):
        raise InputError(
            f"{path}: not a model's config.json: give an object, not {str(config)[:40]!r}"
        )
    try:
        name = config.get("_name_or_path") or path.resolve().parent.name
        return _sizes(config) | {
            "name": str(name),
            "source": str(path),
            "ignored": _ignored(config),
        }
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _sizes(config: dict[str, Any]) -> dict[str, Any]:
    type_name = _type_of(config)
    kind = KINDS[type_name]
    for key, value in config.items():
        experts = "expert" in key or key.startswith("moe_")
        if value and (key in MORE_PARAMETERS or (experts and key not in kind.keys.values())):
            raise InputError(
                f"{key} = {value!r} is not read with model_type {type_name!r}: give a config.json without, or a simlab.Model"
            )
    sizes = {field: _count(config, key, type_name) for field, key in kind.keys.items()}
    tied = config.get("tie_word_embeddings", kind.tied)
    if not isinstance(tied, bool):
        raise InputError(f"tie_word_embeddings = {tied!r}: give true or false")
    return sizes | {
        "tied_head": tied,
        "bias": type_name == "gpt2",
        "gated_mlp": type_name != "gpt2",
    }


def _type_of(config: dict[str, Any]) -> str:
    """The key of `KINDS`: model_type, or what the architecture is called where that is missing."""
    given = config.get("model_type")
    if isinstance(given, str) and given in KINDS:
        return given
    architectures = config.get("architectures")
    named = [name for name, kind in KINDS.items() if [kind.architecture] == architectures]
    if given is None and named:
        return named[0]
    read = f"give one of {', '.join(KINDS)}, or a simlab.Model"
    if given is None:
        raise InputError(
            f"no model_type, and architectures = {architectures!r} does not say it: {read}"
        )
    raise InputError(f"model_type {given!r} is not read: {read}")


def _count(config: dict[str, Any], key: str, type_name: str) -> int | None:
    """The whole number that `key` has; None where a `Model` knows itself."""
    defaults = KINDS[type_name].defaults
    if key not in config and key not in defaults:
        raise InputError(
            f"no {key}, which a config.json with model_type {type_name!r} has: give a whole number, at least 1"
        )
    value = config.get(key, defaults.get(key))
    if value is None and key in NULL_MEANS_DEFAULT:
        return None
    require_whole(key, value)
    return value


def _ignored(config: dict[str, Any]) -> tuple[str, ...]:
    """What the file says that times or bytes would depend on a little, and that nothing is computed
    from."""
    return tuple(f"{key} = {config[key]!r}" for key in IGNORED if config.get(key))

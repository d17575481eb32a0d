"""A Hugging Face config.json → the sizes of a `simlab.Model`: of the model types that it can say,
and no others.

Types that look alike but are not, and so are refused: qwen2 (q, k and v have biases, nothing else
has), gemma2 and gemma3 (norms behind attention and MLP).
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from simlab.errors import InputError, require_whole, shortened
from simlab.input_files import read_text

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
_QWEN3_MOE = _LLAMA | {
    "experts": "num_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_ffn": "moe_intermediate_size",
}
_DEEPSEEK = {
    **{field: key for field, key in _LLAMA.items() if field not in ("head_size", "kv_heads")},
    "head_size": "qk_nope_head_dim",  # with the rotary part: see `_sizes`
    "rope_size": "qk_rope_head_dim",
    "value_size": "v_head_dim",
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_groups": "n_group",
    "groups_per_token": "topk_group",
    "expert_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
}


class _Kind(NamedTuple):
    """A model type: which key a `Model`'s field is, and what the type has where a key is missing
    (transformers' own default)."""

    architecture: str
    keys: dict[str, str]
    defaults: dict[str, Any]
    tied: bool
    """What a missing tie_word_embeddings means."""
    fixed: dict[str, Any] = {}
    """Which keys are read with one value only: any other would be another model."""
    qk_norm: bool = False


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
    "qwen3": _Kind(
        "Qwen3ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 32, "head_dim": 128},
        False,
        {"use_sliding_window": False},
        qk_norm=True,
    ),
    "qwen3_moe": _Kind(
        "Qwen3MoeForCausalLM",
        _QWEN3_MOE,
        {"num_key_value_heads": 4, "head_dim": None},
        False,
        {"decoder_sparse_step": 1, "mlp_only_layers": [], "use_sliding_window": False},
        qk_norm=True,
    ),
    "deepseek_v2": _Kind(
        "DeepseekV2ForCausalLM",
        _DEEPSEEK,
        {"q_lora_rank": 1536, "n_group": None, "topk_group": None},
        False,
        {"moe_layer_freq": 1},
    ),
    "deepseek_v3": _Kind(
        "DeepseekV3ForCausalLM",
        _DEEPSEEK,
        {"q_lora_rank": 1536, "n_group": 8, "topk_group": 4},
        False,
        {"moe_layer_freq": 1},
    ),
}
NULL_MEANS_DEFAULT = ("n_inner", "num_key_value_heads", "head_dim")
NULL_MEANS_NONE = (
    "q_lora_rank",
    "n_shared_experts",
    "first_k_dense_replace",
    "n_group",
    "topk_group",
)
"""Keys of parts that a model may be without: null and 0 say so."""
IGNORED = ("sliding_window", "rope_scaling", "quantization_config", "num_nextn_predict_layers")
MORE_PARAMETERS = ("attention_bias", "mlp_bias", "add_cross_attention")


def read_config(path: Path) -> dict[str, Any]:
    """{field of `Model`: value} of the config.json at `path`; `InputError` where it is of a type,
    or says something, that is not read."""
    text = read_text(path)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a model's config.json: {str(error)[:200]}") from error
    if not isinstance(config, dict):
        raise InputError(
            f"{path}: not a model's config.json: give an object, not {shortened(config)}"
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
        known = key in kind.keys.values() or key in kind.fixed
        if key in kind.fixed and value not in (kind.fixed[key], None):
            raise InputError(
                f"{key} = {shortened(value)} is not read with model_type {type_name!r}: give {kind.fixed[key]!r}, or a simlab.Model"
            )
        if value and (key in MORE_PARAMETERS or (experts and not known)):
            raise InputError(
                f"{key} = {shortened(value)} is not read with model_type {type_name!r}: give a config.json without, or a simlab.Model"
            )
    sizes = {field: _count(config, key, type_name) for field, key in kind.keys.items()}
    tied = config.get("tie_word_embeddings", kind.tied)
    if not isinstance(tied, bool):
        raise InputError(f"tie_word_embeddings = {shortened(tied)}: give true or false")
    if "kv_rank" in sizes:  # the two parts of a head
        parts = sizes["head_size"], sizes["rope_size"]
        sizes["head_size"] = sum(part for part in parts if part is not None)
    if config.get("topk_method") == "greedy":  # DeepSeek-V2-Lite: among all experts
        sizes |= {"expert_groups": 0, "groups_per_token": 0}
    return sizes | {
        "tied_head": tied,
        "qk_norm": kind.qk_norm,
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
            f"no model_type, and architectures = {shortened(architectures)} does not say it: {read}"
        )
    raise InputError(f"model_type {shortened(given)} is not read: {read}")


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
    if value is None and key in NULL_MEANS_NONE:
        return 0
    require_whole(key, value, 0 if key in NULL_MEANS_NONE else 1)
    return value


def _ignored(config: dict[str, Any]) -> tuple[str, ...]:
    """What the file says that times or bytes would depend on a little, and that nothing is computed
    from; a long value is cut."""
    given = {key: repr(config[key]) for key in IGNORED if config.get(key)}
    return tuple(
        f"{key} = {text if len(text) <= 300 else f'{text[:297]}...'}" for key, text in given.items()
    )

"""A Hugging Face config.json → the sizes of a `simlab.Model`: of the model types that it can say
(`model_types.TYPES`), and no others. Where a type is refused, the message says which part of its
layers cannot be said."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from simlab.errors import InputError, require_whole, shortened
from simlab.input_files import read_text
from simlab.spec.model.model_types import NESTED, TYPES, UNSAYABLE, ModelType
from simlab.spec.model.sizes import MOST_LAYERS

NULL_MEANS_DEFAULT = ("n_inner", "num_key_value_heads", "head_dim", "ffn_hidden_size")
MODULES = "num_nextn_predict_layers"
"""Modules that predict one more token each."""
NULL_MEANS_NONE = (
    MODULES,
    "q_lora_rank",
    "n_shared_experts",
    "first_k_dense_replace",
    "n_group",
    "topk_group",
)
"""Keys of parts that a model may be without: null and 0 say so."""
IGNORED = ("rope_scaling", "quantization_config", "vision_config")
MORE_PARAMETERS = ("attention_bias", "mlp_bias", "add_cross_attention", "lm_head_bias")
WINDOWS = ("sliding_attention", "chunked_attention", "full_attention")
"""What layer_types may have; the last one is attention to all keys before."""
LETTERS = {"M": "mamba layer", "*": "attention layer", "-": "mlp layer", "E": "expert layer"}
OF_NEMOTRONS = {
    "n_routed_experts": "experts",
    "num_experts_per_tok": "experts_per_token",
    "moe_intermediate_size": "expert_ffn",
    "moe_latent_size": "expert_rank",
    "n_shared_experts": "",
    "moe_shared_expert_intermediate_size": "",
    "moe_shared_expert_overlap": "",
}
"""{key of a Nemotron 3's config.json: field of a `Model`}; "" where it is read otherwise, or says nothing that
is computed."""
POSITIONS_BESIDE = {"opt": 2}
"""{model type: rows of its table of positions beside those of a sequence}"""


def read_config(path: Path) -> dict[str, Any]:
    """{field of `Model`: value} of the config.json at `path`, or of a JSON file that has such fields;
    `InputError` where it is of a type, or says something, that is not read."""
    text = read_text(path)
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: not a model's config.json: {str(error)[:200]}") from error
    if not isinstance(config, dict):
        raise InputError(
            f"{path}: not a model's config.json: give an object, not {shortened(config)}"
        )
    if "layers" in config and not {"model_type", "architectures"} & config.keys():
        return {"name": path.stem, "source": str(path)} | config
    try:
        name = config.get("_name_or_path") or (
            path.resolve().parent.name if path.name == "config.json" else path.stem
        )
        return sizes_of(config) | {"name": str(name), "source": str(path)}
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def sizes_of(config: dict[str, Any]) -> dict[str, Any]:
    """{field of `Model`: value} of a config.json's content, but for its name and source."""
    ignored = _ignored(config)
    type_name = _type_of(config)
    if type_name != config.get("model_type") and isinstance(config.get("text_config"), dict):
        config = config["text_config"]
        ignored += _ignored(config)
    its = TYPES[type_name]
    _check(config, type_name)
    sizes: dict[str, Any] = {
        field: _count(config, key, type_name) for field, key in its.keys.items()
    }
    if MODULES in config:
        sizes["mtp_layers"] = _count(config, MODULES, type_name)
    tied = config.get("tie_word_embeddings", its.tied)
    if not isinstance(tied, bool):
        raise InputError(f"tie_word_embeddings = {shortened(tied)}: give true or false")
    if "kv_rank" in sizes:  # the two parts of a head
        parts = sizes["head_size"], sizes["rope_size"]
        sizes["head_size"] = sum(part for part in parts if part is not None)
    if config.get("topk_method") == "greedy":  # DeepSeek-V2-Lite: among all experts
        sizes |= {"expert_groups": 0, "groups_per_token": 0}
    sizes["positions"] = (sizes.get("positions") or 0) + POSITIONS_BESIDE.get(type_name, 0)
    sizes |= {"tied_head": tied, "bias": False, "gated_mlp": True, "ignored": ignored}
    sizes |= its.fields | {"biases": _biases(config, its)}
    if config.get("use_qk_norm"):
        sizes["qk_norm"] = "weightless" if type_name == "llama4_text" else True
    if type_name in ("gpt_neox", "falcon"):
        sizes |= _beside(config, sizes)
    sizes |= _rotary(config, its, sizes)
    if "kv_rank" not in sizes and _scales_rotary(config):
        sizes["scaled_rotary"] = True
    if type_name in HYBRIDS:
        return sizes | HYBRIDS[type_name](config, sizes)
    return sizes | _pattern(config, its, sizes)


def _check(config: dict[str, Any], type_name: str) -> None:
    """Raise `InputError` if a key says what is not read."""
    its = TYPES[type_name]
    for key, value in config.items():
        experts = "expert" in key or key.startswith("moe_")
        known = key in (*its.keys.values(), *its.fixed, *its.biases, "moe_layers")
        known |= key in ("experts_per_token", "interleave_moe_layer_step")
        known |= type_name == "nemotron_h" and key in OF_NEMOTRONS
        if key in its.fixed and value not in (its.fixed[key], None):
            raise InputError(
                f"{key} = {shortened(value)} is not read with model_type {type_name!r}: give {its.fixed[key]!r}, or a simlab.Model"
            )
        if value and not known and (key in MORE_PARAMETERS or experts):
            raise InputError(
                f"{key} = {shortened(value)} is not read with model_type {type_name!r}: give a config.json without, or a simlab.Model"
            )


def _type_of(config: dict[str, Any]) -> str:
    """The key of `TYPES`: model_type, or what the architecture is called where that is missing; of a
    config.json with a text_config that of its transformer."""
    given = config.get("model_type")
    given = NESTED.get(given, given) if isinstance(given, str) else given
    if isinstance(given, str) and given in TYPES:
        return given
    if isinstance(given, str) and given in UNSAYABLE:
        raise InputError(
            f"a simlab.Model cannot say model_type {given!r}{_how_many(config)}: it has {UNSAYABLE[given]}"
        )
    architectures = config.get("architectures")
    named = [name for name, its in TYPES.items() if [its.architecture] == architectures]
    if given is None and named:
        return named[0]
    read = f"give one of {', '.join(TYPES)}, or a simlab.Model"
    if given is None:
        raise InputError(
            f"no model_type, and architectures = {shortened(architectures)} does not say it: {read}"
        )
    raise InputError(f"model_type {shortened(given)} is not read: {read}")


def _how_many(config: dict[str, Any]) -> str:
    """In how many of its layers, where layer_types says so."""
    types = config.get("layer_types")
    if not isinstance(types, list) or not types:
        return ""
    return f", {sum(its not in WINDOWS for its in types)} of its {len(types)} layers"


def _count(config: dict[str, Any], key: str, type_name: str) -> int | None:
    """The whole number that `key` has; None where a `Model` knows itself."""
    defaults = TYPES[type_name].defaults
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


def _flag(config: dict[str, Any], key: str, default: bool) -> bool:
    value = config.get(key, default)
    if value is not None and not isinstance(value, bool):
        raise InputError(f"{key} = {shortened(value)}: give true or false")
    return bool(value)


def _biases(config: dict[str, Any], its: ModelType) -> tuple[str, ...]:
    """What has a bias."""
    found = [*its.fields.get("biases", ())]
    for key, parts in its.biases.items():
        found += parts * _flag(config, key, its.bias_defaults.get(key, False))
    return tuple(found)


def _beside(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """{"parallel", "kv_heads"} of GPT-NeoX and Falcon: whether attention and MLP are side by side, by one
    norm or two. Falcon has one head of keys unless it says otherwise."""
    if config["model_type"] == "gpt_neox":
        return {"parallel": "two norms" if _flag(config, "use_parallel_residual", True) else False}
    new = _flag(config, "new_decoder_architecture", False)
    one = 1 if _flag(config, "multi_query", True) else sizes["heads"]
    kv_heads = config.get("num_kv_heads") or sizes["heads"] if new else one
    parallel: bool | str = new or _flag(config, "parallel_attn", True)
    if new and config.get("num_ln_in_parallel_attn") in (None, 2):
        parallel = "two norms"
    return {"parallel": parallel, "kv_heads": kv_heads}


def _scales_rotary(config: dict[str, Any]) -> bool:
    """Whether YaRN's rotary embedding has a factor: unless it is given as 1, or both of its parts alike."""
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    if not isinstance(rope, dict) or "yarn" not in (rope.get("rope_type"), rope.get("type")):
        return False
    parts = rope.get("mscale"), rope.get("mscale_all_dim")
    return rope.get("attention_factor") != 1 and (None in parts or parts[0] != parts[1])


def _rotary(config: dict[str, Any], its: ModelType, sizes: dict[str, Any]) -> dict[str, Any]:
    """The part of a head that has the rotary embedding, where that is not all of it."""
    head = (
        sizes["head_size"]
        if sizes.get("head_size")
        else (sizes["hidden"] or 0) // (sizes["heads"] or 1)
    )
    if sizes.get("rope_size") == head:
        return {"rope_size": 0}
    rope = config.get("rope_parameters")
    factor = rope.get("partial_rotary_factor") if isinstance(rope, dict) else None
    factor = config.get("partial_rotary_factor", config.get("rotary_pct", factor))
    factor = its.turned if factor is None else factor
    if factor == 1:
        return {}
    if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 < factor < 1:
        raise InputError(f"partial_rotary_factor = {shortened(factor)}: give a part, at most 1")
    return {"rope_size": int(head * factor)}


# which layers are of which kind
# ------------------------------------------------------------------------------------------------


def _pattern(config: dict[str, Any], its: ModelType, sizes: dict[str, Any]) -> dict[str, Any]:
    """{"window", "kinds", "pattern"} of layers that are not all alike: without window, without rotary
    embedding, or without experts where the others have them."""
    layers = sizes["layers"] or 0
    if layers > MOST_LAYERS:
        return {}  # the `Model` refuses it
    window, full = _windows(config, its, layers)
    turned, dense = _turned(config, its, layers, full), _dense(config, its, layers)
    if not any(full) and all(turned) and not any(dense):
        return {"window": window}
    kinds: dict[str, dict[str, Any]] = {}
    names = []
    for at in range(layers):
        fields: dict[str, Any] = {"experts": 0} if dense[at] else {}
        fields |= {"window": 0} if window and full[at] else {}
        if not turned[at]:
            fields |= {"rotary": False}
            fields |= {"qk_norm": False} if sizes.get("qk_norm") == "weightless" else {}
        words = ["dense"] * dense[at]
        words += ["full"] * bool(window and full[at]) or ["unturned"] * (not turned[at])
        names.append(" ".join([*words, "layer"]))
        if fields and names[-1] != "dense layer":
            kinds[names[-1]] = fields
    period = next(n for n in range(1, layers + 1) if names == (names[:n] * layers)[:layers])
    return {"window": window, "kinds": kinds, "pattern": tuple(names[:period])}


def _nemotron(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """{"kinds", "pattern", and what is of experts} of a Nemotron-H or a Nemotron 3, a layer of which is a
    state space, attention, an MLP, or experts: 'M', '*', '-' and 'E'. Its modules have attention and
    experts, as a layer has that is as the model says."""
    key, layers = "hybrid_override_pattern", sizes["layers"] or 0
    letters = config.get(key)
    if not isinstance(letters, str) or len(letters) != layers or set(letters) - {*LETTERS}:
        raise InputError(
            f"{key} = {shortened(letters)}: give one of {' '.join(LETTERS)} for each of {layers} layers"
        )
    experts = {"experts": 0} if "E" in letters else {}
    none: dict[str, Any] = {"mixer": "none"}
    kinds: dict[str, dict[str, Any]] = {
        "M": {"mixer": "mamba", "has_mlp": False} | experts,
        "*": {"has_mlp": False} | experts,
        "-": none | experts,
        "E": none,
    }
    found: dict[str, Any] = {
        "kinds": {LETTERS[one]: kinds[one] for one in dict.fromkeys(letters)},
        "pattern": tuple(LETTERS[one] for one in letters),
    }
    if not experts:
        return found
    counts = {field: config.get(of) or 0 for of, field in OF_NEMOTRONS.items() if field}
    for of, field in OF_NEMOTRONS.items():
        if field:
            require_whole(of, counts[field], 0)
    shared = config.get("moe_shared_expert_intermediate_size") or 0
    require_whole("moe_shared_expert_intermediate_size", shared, 0)
    if not counts["expert_ffn"] or shared % counts["expert_ffn"]:
        raise InputError(
            f"moe_shared_expert_intermediate_size = {shared}: give a multiple of moe_intermediate_size = {counts['expert_ffn']}"
        )
    return found | counts | {"shared_experts": shared // counts["expert_ffn"]}


def _bamba(config: dict[str, Any], sizes: dict[str, Any]) -> dict[str, Any]:
    """{"kinds", "pattern"} of a Bamba, each layer of which has an MLP, and a state space but for those with
    attention."""
    layers, given = sizes["layers"] or 0, config.get("attn_layer_indices") or []
    if not isinstance(given, list) or not {*given} <= {*range(layers)}:
        raise InputError(f"attn_layer_indices = {shortened(given)}: give numbers below {layers}")
    names = tuple("layer" if at in given else "mamba layer" for at in range(layers))
    return {"kinds": {"mamba layer": {"mixer": "mamba"}}, "pattern": names}


HYBRIDS: dict[str, Callable[[dict[str, Any], dict[str, Any]], dict[str, Any]]] = {
    "nemotron_h": _nemotron,
    "bamba": _bamba,
}
"""{model type with layers of which only some have attention: what reads which have}"""


def _windows(config: dict[str, Any], its: ModelType, layers: int) -> tuple[int, list[bool]]:
    """(keys of a window, whether each layer has none). 0 where no layer has one, and where the type says
    that its window is not used."""
    key = "attention_chunk_size" if "attention_chunk_size" in config else "sliding_window"
    size = config.get(key)
    if not size or "use_sliding_window" in its.fixed:
        return 0, [False] * layers
    require_whole(key, size)
    types = config.get("layer_types")
    if types is not None:
        _check_list("layer_types", types, layers)
        unknown = [one for one in types if one not in WINDOWS]
        if unknown:
            raise InputError(
                f"layer_types has {shortened(unknown[0])}: give a config.json with {', '.join(WINDOWS)}, or a simlab.Model"
            )
        full = [one == WINDOWS[-1] for one in types]
    else:
        period = config.get("sliding_window_pattern") or its.period or 0
        period = len(period) if isinstance(period, str) else period  # 'LLLG'
        require_whole("sliding_window_pattern", period, 0)
        full = [bool(period) and not (at + 1) % period for at in range(layers)]
        if isinstance(config.get("sliding_window_pattern"), str):
            full[-1:] = [True]  # Exaone's last layer has none, whatever the pattern
    return (0, [False] * layers) if all(full) else (size, full)


def _turned(
    config: dict[str, Any], its: ModelType, layers: int, full: Sequence[bool]
) -> list[bool]:
    """Whether each layer has a rotary embedding."""
    if its.architecture in ("Exaone4ForCausalLM", "Cohere2ForCausalLM"):
        return [not one for one in full]
    if its.architecture not in ("Llama4ForCausalLM", "SmolLM3ForCausalLM"):
        return [True] * layers
    given = config.get("no_rope_layers") or []  # 1 stands for a layer that has it
    if given:
        _check_list("no_rope_layers", given, layers)
        return [bool(one) for one in given]
    every = config.get("no_rope_layer_interval", 4)
    require_whole("no_rope_layer_interval", every)
    return [bool((at + 1) % every) for at in range(layers)]


def _dense(config: dict[str, Any], its: ModelType, layers: int) -> list[bool]:
    """Whether each layer has no experts although others have; layers that come first are said by
    first_k_dense_replace."""
    if its.architecture != "Llama4ForCausalLM":
        return [False] * layers
    step, given = config.get("interleave_moe_layer_step", 1), config.get("moe_layers")
    require_whole("interleave_moe_layer_step", step)
    if given is None:
        return [bool((at + 1) % step) for at in range(layers)]
    if not isinstance(given, list):
        raise InputError(f"moe_layers = {shortened(given)}: give a list of layers")
    return [at not in given for at in range(layers)]


def _check_list(key: str, given: Any, layers: int) -> None:
    if not isinstance(given, list) or len(given) != layers:
        raise InputError(f"{key} = {shortened(given)}: give one for each of {layers} layers")


def _ignored(config: dict[str, Any]) -> tuple[str, ...]:
    """What the file says that times or bytes would depend on a little, and that nothing is computed
    from; a long value is cut."""
    given = {key: repr(config[key]) for key in IGNORED if config.get(key)}
    return tuple(
        f"{key} = {text if len(text) <= 300 else f'{text[:297]}...'}" for key, text in given.items()
    )

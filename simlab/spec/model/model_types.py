"""The model types of Hugging Face's config.json that a `Model` can say: which key each field is, and
what a type has that no key says. Defaults are those of transformers' own configuration classes."""

from typing import Any, NamedTuple

_GPT2 = {
    "layers": "n_layer",
    "hidden": "n_embd",
    "heads": "n_head",
    "ffn": "n_inner",
    "vocab": "vocab_size",
    "positions": "n_positions",
    "seq": "n_positions",
}
_OPT = {
    "layers": "num_hidden_layers",
    "hidden": "hidden_size",
    "heads": "num_attention_heads",
    "ffn": "ffn_dim",
    "vocab": "vocab_size",
    "positions": "max_position_embeddings",
    "seq": "max_position_embeddings",
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
_ROUTED = {
    "experts": "n_routed_experts",
    "experts_per_token": "num_experts_per_tok",
    "expert_groups": "n_group",
    "groups_per_token": "topk_group",
    "expert_ffn": "moe_intermediate_size",
    "shared_experts": "n_shared_experts",
    "dense_layers": "first_k_dense_replace",
}
_DEEPSEEK = {
    **{field: key for field, key in _LLAMA.items() if field not in ("head_size", "kv_heads")},
    "head_size": "qk_nope_head_dim",  # with the rotary part: see `hugging_face`
    "rope_size": "qk_rope_head_dim",
    "value_size": "v_head_dim",
    "q_rank": "q_lora_rank",
    "kv_rank": "kv_lora_rank",
    **_ROUTED,
}
_GPTJ = {field: key for field, key in _GPT2.items() if field != "positions"} | {
    "rope_size": "rotary_dim"
}
_UNGROUPED = {field: key for field, key in _LLAMA.items() if field not in ("kv_heads", "head_size")}
_STATES = {"state_groups": "n_groups", "state_size": "state_size", "conv_size": "conv_kernel"}
_QKV_BIAS: dict[str, tuple[str, ...]] = {"attention_bias": ("qkv",)}
_ATTENTION_BIAS: dict[str, tuple[str, ...]] = {"attention_bias": ("qkv", "output")}
_BIASES = _ATTENTION_BIAS | {"mlp_bias": ("mlp",)}
_MLA: dict[str, int | None] = {"q_lora_rank": 1536, "n_group": 8, "topk_group": 4}
_BESIDE = {"parallel": True, "gated_mlp": False, "biases": ("norm", "mlp", "head")}


def _grouped(kv_heads: int | None = None, head_size: int | None = None) -> dict[str, int | None]:
    """What a missing number of heads of keys and values means, and a missing size of a head."""
    return {"num_key_value_heads": kv_heads, "head_dim": head_size}


class ModelType(NamedTuple):
    """A model type: which key a `Model`'s field is, and what the type has where a key is missing."""

    architecture: str
    keys: dict[str, str]
    defaults: dict[str, Any]
    tied: bool = False
    """What a missing tie_word_embeddings means."""
    fixed: dict[str, Any] = {}
    """Which keys are read with one value only: any other would be another model."""
    fields: dict[str, Any] = {}
    """What every model of the type has."""
    biases: dict[str, tuple[str, ...]] = {}
    """{key: what has a bias where it is true}"""
    bias_defaults: dict[str, bool] = {}
    """What a missing one of these keys means; False of those that are not here."""
    period: int = 0
    """Where no key says which layers have a window: of so many the last one has none. 0: of all or
    none of them."""
    turned: float = 1.0
    """Which part of a head has the rotary embedding where no key says it."""


TYPES = {
    "gpt2": ModelType(
        "GPT2LMHeadModel",
        _GPT2,
        {"n_inner": None},
        tied=True,
        fields={"bias": True, "gated_mlp": False},
    ),
    "llama": ModelType("LlamaForCausalLM", _LLAMA, _grouped(), biases=_BIASES),
    "opt": ModelType(
        "OPTForCausalLM",
        _OPT,
        {},
        tied=True,
        fixed={"do_layer_norm_before": True, "enable_bias": True},
        fields={"bias": True, "gated_mlp": False},
    ),
    "granite": ModelType("GraniteForCausalLM", _LLAMA, _grouped(), biases=_BIASES),
    "seed_oss": ModelType(
        "SeedOssForCausalLM",
        _LLAMA,
        _grouped(8, 128),
        biases=_QKV_BIAS | {"attention_out_bias": ("output",), "mlp_bias": ("mlp",)},
        bias_defaults={"attention_bias": True},
    ),
    "smollm3": ModelType(
        "SmolLM3ForCausalLM",
        _LLAMA,
        _grouped(4),
        tied=True,
        fixed={"use_sliding_window": False},
        biases=_BIASES,
    ),
    "mistral": ModelType("MistralForCausalLM", _LLAMA, _grouped(8)),
    "mixtral": ModelType("MixtralForCausalLM", _LLAMA | _EXPERTS, _grouped(8)),
    "phi3": ModelType("Phi3ForCausalLM", _LLAMA, _grouped()),
    "starcoder2": ModelType(
        "Starcoder2ForCausalLM",
        _LLAMA,
        _grouped(2),
        tied=True,
        fields={"gated_mlp": False, "biases": ("norm",)},
        biases={"use_bias": ("qkv", "output", "mlp")},
        bias_defaults={"use_bias": True},
    ),
    "stablelm": ModelType(
        "StableLmForCausalLM",
        _LLAMA,
        _grouped(32),
        fixed={"use_parallel_residual": False, "qk_layernorm": False},
        fields={"biases": ("norm",)},
        biases={"use_qkv_bias": ("qkv",)},
    ),
    "nemotron": ModelType(
        "NemotronForCausalLM",
        _LLAMA,
        _grouped(),
        fields={"gated_mlp": False, "biases": ("norm",)},
        biases=_BIASES,
    ),
    "gemma": ModelType("GemmaForCausalLM", _LLAMA, _grouped(16, 256), tied=True),
    "gemma2": ModelType(
        "Gemma2ForCausalLM",
        _LLAMA,
        _grouped(4, 256),
        tied=True,
        fields={"norms": "both"},
        biases=_ATTENTION_BIAS,
        period=2,
    ),
    "gemma3_text": ModelType(
        "Gemma3ForCausalLM",
        _LLAMA,
        _grouped(4, 256) | {"vocab_size": 262208, "max_position_embeddings": 131072},
        tied=True,
        fields={"norms": "both", "qk_norm": True},
        biases=_ATTENTION_BIAS,
        period=6,
    ),
    "qwen2": ModelType(
        "Qwen2ForCausalLM",
        _LLAMA,
        _grouped(32),
        fixed={"use_sliding_window": False},
        fields={"biases": ("qkv",)},
    ),
    "qwen3": ModelType(
        "Qwen3ForCausalLM",
        _LLAMA,
        _grouped(32, 128),
        fixed={"use_sliding_window": False},
        fields={"qk_norm": True},
        biases=_ATTENTION_BIAS,
    ),
    "qwen3_moe": ModelType(
        "Qwen3MoeForCausalLM",
        _QWEN3_MOE,
        _grouped(4),
        fixed={"use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
        fields={"qk_norm": True},
        biases=_ATTENTION_BIAS,
    ),
    "deepseek_v2": ModelType(
        "DeepseekV2ForCausalLM",
        _DEEPSEEK,
        _MLA | {"n_group": None, "topk_group": None},
        fixed={"moe_layer_freq": 1},
    ),
    "deepseek_v3": ModelType("DeepseekV3ForCausalLM", _DEEPSEEK, _MLA, fixed={"moe_layer_freq": 1}),
    "kimi_k2": ModelType("KimiK2ForCausalLM", _DEEPSEEK, _MLA, fixed={"moe_layer_freq": 1}),
    "glm": ModelType("GlmForCausalLM", _LLAMA, _grouped(2, 128), biases=_QKV_BIAS),
    "glm4": ModelType(
        "Glm4ForCausalLM", _LLAMA, _grouped(2, 128), fields={"norms": "both"}, biases=_QKV_BIAS
    ),
    "glm4_moe": ModelType(
        "Glm4MoeForCausalLM",
        _LLAMA | _ROUTED,
        _grouped(8) | {"n_group": 1, "topk_group": 1},
        biases=_QKV_BIAS,
    ),
    "gpt_oss": ModelType(
        "GptOssForCausalLM",
        _LLAMA | _EXPERTS,
        _grouped(8, 64),
        fields={
            "sinks": True,
            "clamped": True,
            "scaled_rotary": True,
            "biases": ("mlp", "router"),
        },
        biases=_ATTENTION_BIAS,
        bias_defaults={"attention_bias": True},
        period=2,
    ),
    "llama4_text": ModelType(
        "Llama4ForCausalLM",
        _LLAMA | _EXPERTS | {"ffn": "intermediate_size_mlp", "expert_ffn": "intermediate_size"},
        _grouped(8, 128),
        fields={"shared_experts": 1, "window_slides": False},
        biases=_ATTENTION_BIAS,
        period=4,
    ),
    "olmo2": ModelType(
        "Olmo2ForCausalLM",
        _LLAMA,
        _grouped(),
        fields={"norms": "behind", "qk_norm": "whole"},
        biases=_ATTENTION_BIAS,
    ),
    "olmo3": ModelType(
        "Olmo3ForCausalLM",
        _LLAMA,
        _grouped(),
        fields={"norms": "behind", "qk_norm": "whole"},
        biases=_ATTENTION_BIAS,
        period=4,
    ),
    "olmoe": ModelType(
        "OlmoeForCausalLM",
        _LLAMA | {"experts": "num_experts", "experts_per_token": "num_experts_per_tok"},
        _grouped(),
        fields={"qk_norm": "whole"},
        biases=_ATTENTION_BIAS,
    ),
    "gptj": ModelType(
        "GPTJForCausalLM", _GPTJ, {"n_inner": None, "rotary_dim": 64}, fields=_BESIDE
    ),
    "codegen": ModelType(
        "CodeGenForCausalLM", _GPTJ, {"n_inner": None, "rotary_dim": 64}, fields=_BESIDE
    ),
    "gpt_neox": ModelType(
        "GPTNeoXForCausalLM",
        _UNGROUPED,
        {},
        fields={"gated_mlp": False, "biases": ("norm", "mlp")},
        biases=_ATTENTION_BIAS,
        bias_defaults={"attention_bias": True},
        turned=0.25,
    ),
    "phi": ModelType(
        "PhiForCausalLM",
        _LLAMA,
        _grouped(),
        fixed={"qk_layernorm": False},
        fields={
            "parallel": True,
            "gated_mlp": False,
            "biases": ("qkv", "output", "mlp", "norm", "head"),
        },
        turned=0.5,
    ),
    "falcon": ModelType(
        "FalconForCausalLM",
        _UNGROUPED | {"ffn": "ffn_hidden_size"},
        {"ffn_hidden_size": None, "max_position_embeddings": 2048},
        tied=True,
        fixed={"alibi": False},
        fields={"gated_mlp": False, "biases": ("norm",)},
        biases={"bias": ("qkv", "output", "mlp")},
    ),
    "cohere": ModelType(
        "CohereForCausalLM",
        _LLAMA,
        _grouped(),
        tied=True,
        fixed={"use_qk_norm": False},
        fields={"parallel": True},
        biases=_BIASES,
    ),
    "cohere2": ModelType(
        "Cohere2ForCausalLM",
        _LLAMA,
        _grouped(),
        tied=True,
        fields={"parallel": True},
        biases=_BIASES,
        period=4,
    ),
    "exaone4": ModelType(
        "Exaone4ForCausalLM",
        _LLAMA,
        _grouped(),
        fields={"norms": "behind", "qk_norm": True},
        period=4,
    ),
    "mamba2": ModelType(
        "Mamba2ForCausalLM",
        {"layers": "num_hidden_layers", "hidden": "hidden_size", "vocab": "vocab_size"}
        | _STATES
        | {"state_heads": "num_heads", "state_head_size": "head_dim"},
        {},
        tied=True,
        fixed={"use_bias": False, "use_conv_bias": True, "rms_norm": True},
        fields={"mixer": "mamba", "has_mlp": False, "heads": 1, "gated_mlp": False},
    ),
    "bamba": ModelType(
        "BambaForCausalLM",
        _LLAMA
        | {
            "state_heads": "mamba_n_heads",
            "state_head_size": "mamba_d_head",
            "state_groups": "mamba_n_groups",
            "state_size": "mamba_d_state",
            "conv_size": "mamba_d_conv",
        },
        _grouped() | {"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4},
        fixed={
            "mamba_proj_bias": False,
            "mamba_conv_bias": True,
            "attention_bias": False,
            "mlp_bias": False,
        },
        turned=0.5,
    ),
    "nemotron_h": ModelType(
        "NemotronHForCausalLM",
        _LLAMA
        | _STATES
        | {"state_heads": "mamba_num_heads", "state_head_size": "mamba_head_dim"}
        | {"state_size": "ssm_state_size"},
        _grouped(),
        fixed={
            "use_bias": False,
            "use_conv_bias": True,
            "attention_bias": False,
            "mlp_bias": False,
            "mamba_proj_bias": False,
        },
        fields={"gated_mlp": False, "rotary": False},
    ),
}
LINEAR = "linear attention, of which a state stands in the stead of keys and values"
MAMBA = (
    "a state space of another kind, or in another place, than Mamba-2's in the stead of attention"
)
UNSAYABLE = {
    "bloom": "a norm of the embedding, and positions as biases of the scores (ALiBi)",
    "mpt": "positions as biases of the scores (ALiBi)",
    "qwen2_moe": "a gate before the shared expert",
    "phimoe": "a bias of the head",
    "apertus": "an activation function with parameters (xIELU)",
    "bitnet": "norms within attention and MLP, and weights of three values",
    "mamba": MAMBA,
    "falcon_mamba": MAMBA,
    "jamba": MAMBA,
    "zamba2": MAMBA,
    "falcon_h1": MAMBA,
    "granitemoehybrid": MAMBA,
    "recurrent_gemma": "recurrent layers (RG-LRU) in the stead of attention",
    "rwkv": LINEAR,
    "qwen3_next": LINEAR,
    "kimi_linear": LINEAR,
    "minimax": LINEAR,
    "lfm2": "short convolutions in the stead of attention",
    "gemma3n": "embeddings of each layer, and several streams beside each other (AltUp)",
    "t5": "an encoder, which a decoder attends to",
    "bert": "attention to what comes after, and no head that predicts the next token",
}
"""{model type: the part of it that a `Model` cannot say}"""
NESTED = {
    "gemma3": "gemma3_text",
    "llama4": "llama4_text",
    "mistral3": "mistral",
    "gemma3n": "gemma3n",
    "kimi_k25": "kimi_k2",
}
"""{model type whose config.json has its transformer in text_config, beside a tower for pictures: the
type of that}"""

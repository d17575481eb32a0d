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
_GROUPED = {"num_key_value_heads": None, "head_dim": None}
_STATES = {"state_groups": "n_groups", "state_size": "state_size", "conv_size": "conv_kernel"}
_BIASES = {"attention_bias": ("qkv", "output"), "mlp_bias": ("mlp",)}


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
    "llama": ModelType("LlamaForCausalLM", _LLAMA, _GROUPED, biases=_BIASES),
    "opt": ModelType(
        "OPTForCausalLM",
        _OPT,
        {},
        tied=True,
        fixed={"do_layer_norm_before": True, "enable_bias": True},
        fields={"bias": True, "gated_mlp": False},
    ),
    "granite": ModelType("GraniteForCausalLM", _LLAMA, _GROUPED, biases=_BIASES),
    "seed_oss": ModelType(
        "SeedOssForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 8, "head_dim": 128},
        biases={
            "attention_bias": ("qkv",),
            "attention_out_bias": ("output",),
            "mlp_bias": ("mlp",),
        },
        bias_defaults={"attention_bias": True},
    ),
    "smollm3": ModelType(
        "SmolLM3ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 4, "head_dim": None},
        tied=True,
        fixed={"use_sliding_window": False},
        biases=_BIASES,
    ),
    "mistral": ModelType(
        "MistralForCausalLM", _LLAMA, {"num_key_value_heads": 8, "head_dim": None}
    ),
    "mixtral": ModelType(
        "MixtralForCausalLM", _LLAMA | _EXPERTS, {"num_key_value_heads": 8, "head_dim": None}
    ),
    "phi3": ModelType("Phi3ForCausalLM", _LLAMA, _GROUPED),
    "starcoder2": ModelType(
        "Starcoder2ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 2, "head_dim": None},
        tied=True,
        fields={"gated_mlp": False, "biases": ("norm",)},
        biases={"use_bias": ("qkv", "output", "mlp")},
        bias_defaults={"use_bias": True},
    ),
    "stablelm": ModelType(
        "StableLmForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 32, "head_dim": None},
        fixed={"use_parallel_residual": False, "qk_layernorm": False},
        fields={"biases": ("norm",)},
        biases={"use_qkv_bias": ("qkv",)},
    ),
    "nemotron": ModelType(
        "NemotronForCausalLM",
        _LLAMA,
        _GROUPED,
        fields={"gated_mlp": False, "biases": ("norm",)},
        biases=_BIASES,
    ),
    "gemma": ModelType(
        "GemmaForCausalLM", _LLAMA, {"num_key_value_heads": 16, "head_dim": 256}, tied=True
    ),
    "gemma2": ModelType(
        "Gemma2ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 4, "head_dim": 256},
        tied=True,
        fields={"norms": "both"},
        biases={"attention_bias": ("qkv", "output")},
        period=2,
    ),
    "gemma3_text": ModelType(
        "Gemma3ForCausalLM",
        _LLAMA,
        {
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
        },
        tied=True,
        fields={"norms": "both", "qk_norm": True},
        biases={"attention_bias": ("qkv", "output")},
        period=6,
    ),
    "qwen2": ModelType(
        "Qwen2ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 32, "head_dim": None},
        fixed={"use_sliding_window": False},
        fields={"biases": ("qkv",)},
    ),
    "qwen3": ModelType(
        "Qwen3ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 32, "head_dim": 128},
        fixed={"use_sliding_window": False},
        fields={"qk_norm": True},
        biases={"attention_bias": ("qkv", "output")},
    ),
    "qwen3_moe": ModelType(
        "Qwen3MoeForCausalLM",
        _QWEN3_MOE,
        {"num_key_value_heads": 4, "head_dim": None},
        fixed={"use_sliding_window": False, "decoder_sparse_step": 1, "mlp_only_layers": []},
        fields={"qk_norm": True},
        biases={"attention_bias": ("qkv", "output")},
    ),
    "deepseek_v2": ModelType(
        "DeepseekV2ForCausalLM",
        _DEEPSEEK,
        {"q_lora_rank": 1536, "n_group": None, "topk_group": None},
        fixed={"moe_layer_freq": 1},
    ),
    "deepseek_v3": ModelType(
        "DeepseekV3ForCausalLM",
        _DEEPSEEK,
        {"q_lora_rank": 1536, "n_group": 8, "topk_group": 4},
        fixed={"moe_layer_freq": 1},
    ),
    "kimi_k2": ModelType(
        "KimiK2ForCausalLM",
        _DEEPSEEK,
        {"q_lora_rank": 1536, "n_group": 8, "topk_group": 4},
        fixed={"moe_layer_freq": 1},
    ),
    "glm": ModelType(
        "GlmForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 2, "head_dim": 128},
        biases={"attention_bias": ("qkv",)},
    ),
    "glm4": ModelType(
        "Glm4ForCausalLM",
        _LLAMA,
        {"num_key_value_heads": 2, "head_dim": 128},
        fields={"norms": "both"},
        biases={"attention_bias": ("qkv",)},
    ),
    "glm4_moe": ModelType(
        "Glm4MoeForCausalLM",
        _LLAMA | _ROUTED,
        {"num_key_value_heads": 8, "head_dim": None, "n_group": 1, "topk_group": 1},
        biases={"attention_bias": ("qkv",)},
    ),
    "gpt_oss": ModelType(
        "GptOssForCausalLM",
        _LLAMA | _EXPERTS,
        {"num_key_value_heads": 8, "head_dim": 64},
        fields={
            "sinks": True,
            "clamped": True,
            "scaled_rotary": True,
            "biases": ("mlp", "router"),
        },
        biases={"attention_bias": ("qkv", "output")},
        bias_defaults={"attention_bias": True},
        period=2,
    ),
    "llama4_text": ModelType(
        "Llama4ForCausalLM",
        _LLAMA | _EXPERTS | {"ffn": "intermediate_size_mlp", "expert_ffn": "intermediate_size"},
        {"num_key_value_heads": 8, "head_dim": 128},
        fields={"shared_experts": 1, "window_slides": False},
        biases={"attention_bias": ("qkv", "output")},
        period=4,
    ),
    "olmo2": ModelType(
        "Olmo2ForCausalLM",
        _LLAMA,
        _GROUPED,
        fields={"norms": "behind", "qk_norm": "whole"},
        biases={"attention_bias": ("qkv", "output")},
    ),
    "olmo3": ModelType(
        "Olmo3ForCausalLM",
        _LLAMA,
        _GROUPED,
        fields={"norms": "behind", "qk_norm": "whole"},
        biases={"attention_bias": ("qkv", "output")},
        period=4,
    ),
    "olmoe": ModelType(
        "OlmoeForCausalLM",
        _LLAMA | {"experts": "num_experts", "experts_per_token": "num_experts_per_tok"},
        _GROUPED,
        fields={"qk_norm": "whole"},
        biases={"attention_bias": ("qkv", "output")},
    ),
    "gptj": ModelType(
        "GPTJForCausalLM",
        _GPTJ,
        {"n_inner": None, "rotary_dim": 64},
        fields={"parallel": True, "gated_mlp": False, "biases": ("norm", "mlp", "head")},
    ),
    "codegen": ModelType(
        "CodeGenForCausalLM",
        _GPTJ,
        {"n_inner": None, "rotary_dim": 64},
        fields={"parallel": True, "gated_mlp": False, "biases": ("norm", "mlp", "head")},
    ),
    "gpt_neox": ModelType(
        "GPTNeoXForCausalLM",
        _UNGROUPED,
        {},
        fields={"gated_mlp": False, "biases": ("norm", "mlp")},
        biases={"attention_bias": ("qkv", "output")},
        bias_defaults={"attention_bias": True},
        turned=0.25,
    ),
    "phi": ModelType(
        "PhiForCausalLM",
        _LLAMA,
        _GROUPED,
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
        _GROUPED,
        tied=True,
        fixed={"use_qk_norm": False},
        fields={"parallel": True},
        biases=_BIASES,
    ),
    "cohere2": ModelType(
        "Cohere2ForCausalLM",
        _LLAMA,
        _GROUPED,
        tied=True,
        fields={"parallel": True},
        biases=_BIASES,
        period=4,
    ),
    "exaone4": ModelType(
        "Exaone4ForCausalLM",
        _LLAMA,
        _GROUPED,
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
        _GROUPED | {"mamba_n_groups": 1, "mamba_d_state": 256, "mamba_d_conv": 4},
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
        _GROUPED,
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

"""Models with experts and latent attention: parameters and operations against published totals and
against a sum over the matrices that their config.json files say."""

import json
from dataclasses import replace

import pytest

import simlab as sl
from simlab.errors import InputError
from simlab.lowering.kernels import UnitKernels
from simlab.spec.model import Model, catalogue, load_model

MIXTRAL = {
    "model_type": "mixtral", "num_hidden_layers": 56, "hidden_size": 6144, "num_attention_heads": 48,
    "num_key_value_heads": 8, "intermediate_size": 16384, "vocab_size": 32000, "num_local_experts": 8,
    "num_experts_per_tok": 2, "max_position_embeddings": 65536, "tie_word_embeddings": False,
    "router_aux_loss_coef": 0.001, "output_router_logits": False, "sliding_window": None,
}  # fmt: skip
QWEN = {
    "model_type": "qwen3_moe", "num_hidden_layers": 94, "hidden_size": 4096, "num_attention_heads": 64,
    "num_key_value_heads": 4, "head_dim": 128, "intermediate_size": 12288, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536, "mlp_only_layers": [],
    "decoder_sparse_step": 1, "norm_topk_prob": True, "attention_bias": False, "max_position_embeddings": 40960,
    "tie_word_embeddings": False, "use_sliding_window": False, "sliding_window": None, "rope_scaling": None,
}  # fmt: skip
SMALL_QWEN = QWEN | {
    "num_hidden_layers": 48, "hidden_size": 2048, "num_attention_heads": 32, "intermediate_size": 6144,
    "moe_intermediate_size": 768,
}  # fmt: skip
DEEPSEEK = {
    "model_type": "deepseek_v3", "num_hidden_layers": 61, "hidden_size": 7168, "num_attention_heads": 128,
    "num_key_value_heads": 128, "intermediate_size": 18432, "vocab_size": 129280, "q_lora_rank": 1536,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "n_routed_experts": 256, "num_experts_per_tok": 8, "n_shared_experts": 1, "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3, "moe_layer_freq": 1, "n_group": 8, "topk_group": 4, "ep_size": 1,
    "max_position_embeddings": 163840, "tie_word_embeddings": False, "num_nextn_predict_layers": 1,
    "attention_bias": False, "rope_scaling": {"type": "yarn"},
}  # fmt: skip
DEEPSEEK_2 = DEEPSEEK | {
    "model_type": "deepseek_v2", "num_hidden_layers": 60, "hidden_size": 5120, "intermediate_size": 12288,
    "vocab_size": 102400, "n_routed_experts": 160, "num_experts_per_tok": 6, "n_shared_experts": 2,
    "moe_intermediate_size": 1536, "first_k_dense_replace": 1, "num_nextn_predict_layers": 0,
}  # fmt: skip
CONFIGS = {
    "mixtral-8x22b": MIXTRAL,
    "qwen3-235b-a22b": QWEN,
    "qwen3-30b-a3b": SMALL_QWEN,
    "deepseek-v2": DEEPSEEK_2,
    "deepseek-v3": DEEPSEEK,
}
# billions, as printed: (all, of a token) by Mistral AI 2024 ("Cheaper, Better, Faster, Stronger"), Qwen Team
# 2025 (arXiv 2505.09388, section 2), DeepSeek-AI 2024 (arXiv 2405.04434 and 2412.19437, abstracts)
PRINTED = {
    "mixtral-8x7b": ("46.7", "12.9"), "mixtral-8x22b": ("141", "39"), "qwen3-235b-a22b": ("235", "22"),
    "qwen3-30b-a3b": ("30.5", "3.3"), "deepseek-v2": ("236", "21"), "deepseek-v3": ("671", "37"),
}  # fmt: skip
# what the safetensors of Hugging Face's checkpoints hold, of DeepSeek-V3 without a router's 58 x 256
# biases, which have no gradient, and without the module that predicts a second token
EXACT = {
    "mixtral-8x22b": 140_620_634_112, "qwen3-235b-a22b": 235_093_634_560, "qwen3-30b-a3b": 30_532_122_624,
    "deepseek-v2": 235_741_434_880, "deepseek-v3": 671_026_404_352,
}  # fmt: skip


def matrices(config):
    """[(rows, columns)] of (every layer's attention, a dense MLP, an expert, a router) of a config,
    written down from the papers' equations: DeepSeek-V2's (9) to (19) for latent attention."""
    h, a = config["hidden_size"], config["num_attention_heads"]
    if rank := config.get("kv_lora_rank"):
        nope, rope, value = (
            config[k] for k in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        )
        queries = config["q_lora_rank"]
        attention = [(queries, h), (a * nope, queries), (a * rope, queries), (rank, h), (rope, h),
                     (a * nope, rank), (a * value, rank), (h, a * value)]  # fmt: skip
    else:
        d = config.get("head_dim", h // a)
        kv = config["num_key_value_heads"]
        attention = [(a * d, h), (kv * d, h), (kv * d, h), (h, a * d)]
    inner = config.get("moe_intermediate_size", config["intermediate_size"])
    experts = next(
        config[k] for k in ("num_local_experts", "num_experts", "n_routed_experts") if k in config
    )
    dense = [(config["intermediate_size"], h)] * 3
    return attention, dense, [(inner, h)] * 3, [(experts, h)]


def entries(shapes):
    return sum(rows * columns for rows, columns in shapes)


def counted(config, experts):
    """(matrices' entries of a layer without experts, of one with so many, how many of each, the
    rest: the embedding, the head and norms)"""
    attention, dense, expert, router = matrices(config)
    shared, first = config.get("n_shared_experts", 0), config.get("first_k_dense_replace", 0)
    layers, h = config["num_hidden_layers"], config["hidden_size"]
    without = entries(attention) + entries(dense)
    with_experts = entries(attention) + entries(router) + (experts + shared) * entries(expert)
    norms = 2 * h + config.get("q_lora_rank", 0) + config.get("kv_lora_rank", 0)
    norms += 2 * 128 * (config["model_type"] == "qwen3_moe")
    rest = 2 * config["vocab_size"] * h + h + layers * norms
    return first * without + (layers - first) * with_experts, rest


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_are_those_of_the_matrices_and_of_the_checkpoint(name):
    config, model = CONFIGS[name], load_model(name)
    experts = matrices(config)[-1][0][0]
    assert model.parameters == sum(counted(config, experts)) == EXACT[name]
    assert model.active_parameters == sum(counted(config, config["num_experts_per_tok"]))


@pytest.mark.parametrize("name", PRINTED)
def test_parameters_are_the_printed_ones(name):
    """Those of a token are rounded by some and cut by others."""
    model, (total, active) = load_model(name), PRINTED[name]
    digits = [len(printed.partition(".")[2]) for printed in (total, active)]
    assert f"{model.parameters / 1e9:.{digits[0]}f}" == total
    assert model.active_parameters / 1e9 - float(active) + 0.5 * 10 ** -digits[1] >= 0
    assert model.active_parameters / 1e9 - float(active) < 10 ** -digits[1]


def test_deepseek_prints_the_active_parameters_without_the_embedding():
    """README_WEIGHTS.md of deepseek-ai/DeepSeek-V3: 36.6B, of which 0.9B are the output head's."""
    model = load_model("deepseek-v3")
    embedding = model.vocab * model.hidden
    assert round((model.active_parameters - embedding) / 1e9, 1) == 36.6
    assert round(embedding / 1e9, 1) == 0.9


@pytest.mark.parametrize("name", CONFIGS)
def test_operations_are_two_for_each_entry_that_a_token_meets_and_those_of_attention(name):
    config, model = CONFIGS[name], load_model(name)
    products, _ = counted(config, config["num_experts_per_tok"])
    head = config["vocab_size"] * config["hidden_size"]
    query = config.get("qk_nope_head_dim", 128) + config.get("qk_rope_head_dim", 0)
    pairs = 1000 * config["num_attention_heads"] * (query + config.get("v_head_dim", 128))
    forward = 2 * (products + head + config["num_hidden_layers"] * pairs)
    assert model.flops_per_token(1000) == 3 * forward


@pytest.mark.parametrize("name", CONFIGS)
def test_a_config_is_read_as_the_catalogues_model(tmp_path, name):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIGS[name]))
    read, known = load_model(str(path)), catalogue()[name]
    assert read.mtp_layers == (name == "deepseek-v3")
    read = replace(read, mtp_layers=0)  # as the catalogue's
    assert read.parameters == known.parameters == EXACT[name]
    assert read.active_parameters == known.active_parameters
    assert read.flops_per_token(4096) == known.flops_per_token(4096)
    assert read.layer_activations(1, 4096) == known.layer_activations(1, 4096)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (QWEN | {"decoder_sparse_step": 2}, "decoder_sparse_step = 2 is not read .*: give 1,"),
        (QWEN | {"mlp_only_layers": [0]}, r"mlp_only_layers = \[0\] is not read .*: give \[\],"),
        (QWEN | {"use_sliding_window": True}, "use_sliding_window = True is not read"),
        (QWEN | {"shared_expert_intermediate_size": 5632}, "shared_expert_intermediate_size = 5632 is not"),
        (DEEPSEEK | {"moe_layer_freq": 2}, "moe_layer_freq = 2 is not read"),
        (DEEPSEEK | {"first_k_dense_replace": 61}, "dense_layers = 61 of 61 layers: give fewer"),
        (DEEPSEEK | {"kv_lora_rank": "512"}, "kv_lora_rank = '512': give a whole number"),
        (DEEPSEEK | {"qk_rope_head_dim": None}, "qk_rope_head_dim = None: give"),
    ],
)  # fmt: skip
def test_a_config_that_says_another_model_is_refused(tmp_path, config, says):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match=says):
        load_model(str(path))


SIZES = {"layers": 4, "hidden": 64, "heads": 4, "vocab": 128, "bias": False}
LATENT = SIZES | {"kv_rank": 16, "rope_size": 4}


@pytest.mark.parametrize(
    ("sizes", "says"),
    [
        (SIZES | {"shared_experts": 1}, "shared_experts = 1 without experts: give experts"),
        (SIZES | {"dense_layers": 1}, "dense_layers = 1 without experts"),
        (SIZES | {"expert_ffn": 32}, "expert_ffn = 32 without experts"),
        (SIZES | {"q_rank": 4}, "q_rank = 4 without latent attention: give kv_rank"),
        (SIZES | {"value_size": 8}, "value_size = 8 without latent attention"),
        (LATENT | {"kv_heads": 2}, "as many kv_heads as heads; give those, not .* kv_heads = 2"),
        (LATENT | {"rope_size": 16}, "rope_size = 16: give less than head_size = 16"),
        (LATENT | {"bias": True}, "latent attention has bias = False"),
        (SIZES | {"qk_norm": 1}, "qk_norm = 1; give one of False, True, whole, weightless"),
    ],
)  # fmt: skip
def test_sizes_that_contradict_each_other_are_refused(sizes, says):
    with pytest.raises(InputError, match=says):
        Model(**sizes)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        (
            {"cp": 2},
            "cp = 2: deepseek-v3's latent attention is not cut over sequences; give cp = 1",
        ),
        ({"recompute": "per-op"}, "recompute = 'per-op': which products of deepseek-v3's"),
    ],
)
def test_a_plan_that_cuts_latent_attention_is_refused(plan, says):
    with pytest.raises(InputError, match=says):
        sl.Plan(**plan).check(load_model("deepseek-v3"))


@pytest.mark.parametrize("name", ["qwen3-30b-a3b", "deepseek-v3", "deepseek-v2"])
@pytest.mark.parametrize("attention", ["flash", "unfused"])
def test_kernels_of_both_kinds_of_layers_do_the_models_operations(name, attention):
    """The forward's once; the backward's twice as much, and fused attention's 2.5 times: it
    computes its scores, of the width of queries, once more."""
    model = load_model(name)
    plan = sl.Plan(seq=512, microbatch_size=2, attention=attention)
    units = UnitKernels(model, plan)
    assert ("dense layer" in units) == (model.dense_layers > 0)
    for unit, its in (("layer", model), ("dense layer", model.of_kind("dense layer"))):
        if unit not in units:
            continue
        flops = its.layer_flops(512)
        forward = sum(kernel.flops for kernel in units[unit].forward)
        assert forward == 1024 * sum(flops.values())
        kernels = [*units[unit].input_grad, *units[unit].weight_grad]
        again = flops["scores"] if attention == "flash" else 0
        assert sum(kernel.flops for kernel in kernels) == 2 * forward + 1024 * again


def test_stages_with_dense_layers_are_shorter_and_hold_less():
    """Of DeepSeek-V3 on four stages the first has three dense layers, which have a 31st of the
    parameters of the others."""
    model = load_model("deepseek-v3")
    plan = sl.Plan(dp=2, pp=4, microbatches=4, stage_layers=(15, 16, 15, 15))
    step = sl.predict(model, plan, sl.load_cluster("dgx-h100"))
    states = [
        sum(held[name] for name in ("parameters", "gradients", "optimizer")) for held in step.held
    ]
    h, expert = model.hidden, 3 * model.hidden * model.expert_ffn
    dense, other = 3 * h * model.ffn, 257 * expert + 256 * h
    saved = 3 * (other - dense)
    # the first has the embedding where the third has nothing
    assert states[2] - states[0] == 18 * (saved - model.vocab * h)
    assert states[1] - states[2] == 18 * (
        model.layer_parameters["attention"] + model.layer_parameters["norms"] + other
    )

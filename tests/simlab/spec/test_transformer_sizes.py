"""Sizes, operations and activations of models against published counts and formulas."""

import json
from pathlib import Path

import pytest

from simlab.errors import InputError
from simlab.spec.model import Model, catalogue, load_model
from simlab.spec.model.model_types import TYPES

PUBLISHED = json.loads(
    (
        Path(__file__).parents[2] / "published" / "korthikanti2022_table2_activation_memory.json"
    ).read_text()
)
# parameters as Hugging Face's checkpoints have them, counted by others
EXACT = {"gpt2": 124_439_808, "gpt2-xl": 1_557_611_200, "llama-2-7b": 6_738_415_616, "llama-2-13b": 13_015_864_320,
         "llama-2-70b": 68_976_648_192, "llama-3-8b": 8_030_261_248, "llama-3-70b": 70_553_706_496,
         "llama-3-405b": 405_853_388_800, "mixtral-8x7b": 46_702_792_704}  # fmt: skip
# Narayanan et al. 2021 (arXiv 2104.04473), Table 1, billions
MEGATRON = {"megatron-1.7b": 1.7, "megatron-3.6b": 3.6, "megatron-7.5b": 7.5, "megatron-18b": 18.4, "megatron-39b": 39.1,
            "megatron-76b": 76.1, "megatron-146b": 145.6, "megatron-310b": 310.1, "megatron-530b": 529.6,
            "megatron-1t": 1008.0}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_parameters_are_those_of_the_checkpoint(name):
    assert load_model(name).parameters == EXACT[name]


@pytest.mark.parametrize("name", MEGATRON)
def test_megatrons_models_have_the_printed_number_of_parameters(name):
    assert round(load_model(name).parameters / 1e9, 1) == MEGATRON[name]


@pytest.mark.parametrize(
    "field", sorted({*Model.__dataclass_fields__} - {"name", "source", "ignored"})
)
def test_a_field_that_has_another_type_is_refused_and_named(field):
    sizes = {"layers": 2, "hidden": 64, "heads": 4, "vocab": 100}
    with pytest.raises(InputError, match=field):
        Model(**sizes | {field: 1.5})


def test_mixtral_computes_a_token_with_two_of_eight_experts():
    assert load_model("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.002)


@pytest.mark.parametrize("name", [*MEGATRON, "gpt3-175b"])
def test_flops_of_the_gpt_kind_are_the_papers_formula(name):
    model = load_model(name)
    L, h, V, s = model.layers, model.hidden, model.vocab, model.seq
    assert model.flops_per_token() == pytest.approx(
        72 * L * h**2 * (1 + s / (6 * h) + V / (12 * h * L)), rel=1e-12
    )
    # forward of the layers twice, of the head once
    full = 96 * L * h**2 * (1 + s / (6 * h)) + 6 * h * V
    assert model.hardware_flops_per_token(recompute="full") == pytest.approx(full, rel=1e-12)
    assert (
        model.hardware_flops_per_token(recompute="selective") - model.flops_per_token()
        == L * 4 * s * h
    )


WAYS = {
    "no parallelism": {}, "tensor parallel": {"tp": 8}, "tensor+sequence": {"tp": 8, "sequence_parallel": True},
    "tensor+selective": {"tp": 8, "recompute": "selective"},
    "tensor+sequence+selective": {"tp": 8, "sequence_parallel": True, "recompute": "selective"}, "full recompute": {"recompute": "full"},
}  # fmt: skip


def test_every_row_of_korthikantis_table_is_tested():
    assert set(WAYS) == set(PUBLISHED["bytes_per_layer"])


@pytest.mark.parametrize("row", WAYS)
@pytest.mark.parametrize("name", ["megatron-22b", "gpt3-175b", "megatron-530b", "megatron-1t"])
def test_activations_of_a_layer_are_korthikantis(name, row):
    model, b = load_model(name), 4
    sizes = {
        "s": model.seq,
        "b": b,
        "h": model.hidden,
        "a": model.heads,
        "t": WAYS[row].get("tp", 1),
    }
    formula = eval(PUBLISHED["bytes_per_layer"][row], {}, sizes)
    assert sum(model.layer_activations(b, **WAYS[row]).values()) == pytest.approx(
        formula, rel=1e-12
    )


def test_flash_attention_stores_no_scores_and_selective_recompute_then_saves_nothing():
    model = load_model("llama-3-8b")
    plain, flash, selective = (
        sum(model.layer_activations(1, **how).values())
        for how in ({}, {"flash": True}, {"recompute": "selective"})
    )
    assert selective < flash < 1.02 * selective < plain


def test_grouped_heads_keep_less_for_keys_and_values():
    tensors = load_model("llama-3-8b").layer_activations(1)
    assert tensors["k"] == tensors["v"] == tensors["q"] / 4


LLAMA = {"num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "intermediate_size": 14336, "vocab_size": 32000,
         "max_position_embeddings": 8192, "num_key_value_heads": 8, "tie_word_embeddings": False}  # fmt: skip
LLAMA_3 = LLAMA | {"model_type": "llama", "vocab_size": 128256}
GPT_2 = {
    "model_type": "gpt2",
    "n_layer": 12,
    "n_embd": 768,
    "n_head": 12,
    "vocab_size": 50257,
    "n_positions": 1024,
}
MIXTRAL = LLAMA | {
    "model_type": "mixtral",
    "num_local_experts": 8,
    "num_experts_per_tok": 2,
    "sliding_window": None,
}
GEMMA = {"model_type": "gemma", "num_hidden_layers": 18, "hidden_size": 2048, "num_attention_heads": 8, "num_key_value_heads": 1,
         "head_dim": 256, "intermediate_size": 16384, "vocab_size": 256000, "max_position_embeddings": 8192}  # fmt: skip


def of_config(tmp_path, config):
    """The `Model` of `config`, in a file."""
    path = tmp_path / "config.json"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return load_model(str(path))


@pytest.mark.parametrize(("config", "parameters"), [
    (LLAMA_3, 8_030_261_248), (GPT_2, 124_439_808), (GPT_2 | {"n_inner": None}, 124_439_808), (MIXTRAL, 46_702_792_704),
    (LLAMA_3 | {"vocab_size": 32000, "num_key_value_heads": None, "intermediate_size": 11008}, 6_738_415_616),
    (LLAMA | {"model_type": "mistral", "head_dim": 128, "sliding_window": 4096}, 7_241_732_096),
    (LLAMA | {"architectures": ["MistralForCausalLM"]}, 7_241_732_096), (GEMMA, 2_506_172_416),
    (GEMMA | {"num_hidden_layers": 28, "hidden_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 16,
              "intermediate_size": 24576}, 8_537_680_896),
    (LLAMA_3 | {"num_hidden_layers": 16, "hidden_size": 2048, "intermediate_size": 8192, "head_dim": 64, "tie_word_embeddings": True},
     1_235_814_400),
], ids=["llama 3 8b", "gpt2", "gpt2 with null", "mixtral 8x7b", "llama 2 7b", "mistral 7b", "no model_type", "gemma 2b", "gemma 7b",
        "llama 3.2 1b"])  # fmt: skip
def test_a_hugging_face_config_gives_the_parameters_of_its_checkpoint(tmp_path, config, parameters):
    assert of_config(tmp_path, config).parameters == parameters


@pytest.mark.parametrize(
    ("config", "name"), [(LLAMA_3, "llama-3-8b"), (GPT_2, "gpt2"), (MIXTRAL, "mixtral-8x7b")]
)
def test_a_hugging_face_config_gives_the_catalogues_model(tmp_path, config, name):
    its, catalogues = of_config(tmp_path, config), load_model(name)
    assert its.flops_per_token(2048) == catalogues.flops_per_token(2048)
    assert its.layer_activations(1, 2048) == catalogues.layer_activations(1, 2048)
    assert its.active_parameters == catalogues.active_parameters


def test_where_a_config_is_silent_its_types_own_default_holds(tmp_path):
    silent = {
        key: value
        for key, value in LLAMA.items()
        if key not in ("num_key_value_heads", "tie_word_embeddings")
    }
    found = [
        of_config(tmp_path, silent | {"model_type": kind}) for kind in ("llama", "mistral", "gemma")
    ]
    assert [model.kv_heads for model in found] == [32, 8, 16]
    assert [model.tied_head for model in found] == [False, False, True]
    assert [model.head_size for model in found] == [128, 128, 256]


def test_a_model_says_what_of_its_config_is_ignored(tmp_path):
    scaling = {"type": "linear", "factor": 2.0}
    config = LLAMA | {"model_type": "mistral", "sliding_window": 4096, "rope_scaling": scaling}
    assert of_config(tmp_path, config).ignored == (f"rope_scaling = {scaling}",)
    assert of_config(tmp_path, config).window == 4096
    assert of_config(tmp_path, LLAMA_3 | {"rope_scaling": None}).ignored == ()


@pytest.mark.parametrize("model_type", [
    "xlnet", "Llama", "", 5, ["llama"],
])  # fmt: skip
def test_a_config_of_another_type_is_refused_with_the_types_that_are_read(tmp_path, model_type):
    with pytest.raises(InputError) as why:
        of_config(tmp_path, LLAMA | {"model_type": model_type})
    read = f"give one of {', '.join(TYPES)}, or a simlab.Model"
    assert (
        str(why.value) == f"{tmp_path}/config.json: model_type {model_type!r} is not read: {read}"
    )


@pytest.mark.parametrize(("config", "says"), [
    ({}, "no model_type, and architectures = None does not say it: give one of gpt2, llama"), ("[1]", "not a model's config.json: give an"),
    (LLAMA | {"architectures": ["BertModel"]}, r"architectures = \['BertModel'\]"), ("hello", "not a model's config.json: Expecting"),
    ({"model_type": "llama"}, "no num_hidden_layers, which a config.json with model_type 'llama' has"),
    (LLAMA_3 | {"n_routed_experts": 256}, "n_routed_experts = 256 is not read with model_type 'llama'"),
    (LLAMA_3 | {"num_local_experts": 8}, "num_local_experts = 8 is not read with model_type 'llama'"),
    (MIXTRAL | {"moe_intermediate_size": 768}, "moe_intermediate_size = 768 is not read with model_type 'mixtral'"),
    (MIXTRAL | {"attention_bias": True}, "attention_bias = True is not read"),
    (LLAMA_3 | {"mlp_bias": 1}, "mlp_bias = 1: give true or false"), (LLAMA_3 | {"lm_head_bias": True}, "lm_head_bias = True is not read"),
    (LLAMA_3 | {"head_dim": 0}, "head_dim = 0: give a whole number, at least 1"), (LLAMA_3 | {"head_dim": -128}, "head_dim = -128: give"),
    (LLAMA_3 | {"head_dim": "128"}, "head_dim = '128': give"), (MIXTRAL | {"num_local_experts": None}, "num_local_experts = None: give"),
    (MIXTRAL | {"num_local_experts": "8"}, "num_local_experts = '8': give"), (LLAMA_3 | {"hidden_size": "4096"}, "hidden_size = '4096'"),
    (LLAMA_3 | {"hidden_size": None}, "hidden_size = None"), (GPT_2 | {"n_embd": [768]}, r"n_embd = \[768\]"),
    (MIXTRAL | {"num_experts_per_tok": 9}, "9 of 8 experts per token"), (LLAMA_3 | {"vocab_size": True}, "vocab_size = True"),
    (LLAMA_3 | {"tie_word_embeddings": "false"}, "tie_word_embeddings = 'false': give true or false"),
    (LLAMA_3 | {"num_key_value_heads": 5}, "heads = 32 is not divisible by kv_heads = 5"),
])  # fmt: skip
def test_a_config_that_cannot_be_read_is_refused_with_the_key_and_its_value(tmp_path, config, says):
    with pytest.raises(InputError, match=f"^{tmp_path}/config.json: .*{says}"):
        of_config(tmp_path, config)


def test_a_config_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot read"):
        load_model(tmp_path / "none.json")


def test_an_unknown_model_is_refused_and_the_known_ones_named():
    with pytest.raises(
        InputError,
        match=r"^unknown model 'gpt-5', did you mean 'gpt3-175b'\? there is gpt2, .*llama-3-405b",
    ):
        load_model("gpt-5")


def test_every_model_of_the_catalogue_names_its_source():
    assert all(model.source for model in catalogue().values())


@pytest.mark.parametrize(
    ("sizes", "says"),
    [({"hidden": 100}, "hidden = 100 is not divisible by heads = 8"), ({"kv_heads": 3}, "heads = 8 is not divisible by kv_heads = 3"),
     ({"layers": 0}, "layers = 0"), ({"experts": 4}, "0 of 4 experts"),
     ({"positions": -5}, "positions = -5: give a whole number, at least 0"), ({"head_size": 0}, "head_size = 0: give a whole number"),
     ({"hidden": None}, "hidden = None: give"), ({"heads": "8"}, "heads = '8': give"), ({"experts": None}, "experts = None: give"),
     ({"layers": True}, "layers = True"), ({"tied_head": "no"}, "tied_head = 'no': give True or False")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(sizes, says):
    with pytest.raises(InputError, match=says):
        Model(**{"layers": 2, "hidden": 64, "heads": 8, "vocab": 100} | sizes)

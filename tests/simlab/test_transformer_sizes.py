"""Sizes, operations and activations of models against published counts and formulas."""

import json
from pathlib import Path

import pytest

from simlab.errors import InputError
from simlab.model import Model, catalogue, load_model

PUBLISHED = json.loads((Path(__file__).parents[1] / "published" / "korthikanti2022_table2_activation_memory.json").read_text())
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


def test_mixtral_computes_a_token_with_two_of_eight_experts():
    assert load_model("mixtral-8x7b").active_parameters == pytest.approx(12.9e9, rel=0.002)


@pytest.mark.parametrize("name", [*MEGATRON, "gpt3-175b"])
def test_flops_of_the_gpt_kind_are_the_papers_formula(name):
    model = load_model(name)
    L, h, V, s = model.layers, model.hidden, model.vocab, model.seq
    assert model.flops_per_token() == pytest.approx(72 * L * h**2 * (1 + s / (6 * h) + V / (12 * h * L)), rel=1e-12)
    full = 96 * L * h**2 * (1 + s / (6 * h)) + 6 * h * V  # forward of the layers twice, of the head once
    assert model.hardware_flops_per_token(recompute="full") == pytest.approx(full, rel=1e-12)
    assert model.hardware_flops_per_token(recompute="selective") - model.flops_per_token() == L * 4 * s * h


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
    sizes = {"s": model.seq, "b": b, "h": model.hidden, "a": model.heads, "t": WAYS[row].get("tp", 1)}
    formula = eval(PUBLISHED["bytes_per_layer"][row], {}, sizes)
    assert sum(model.layer_activations(b, **WAYS[row]).values()) == pytest.approx(formula, rel=1e-12)


def test_flash_attention_stores_no_scores_and_selective_recompute_then_saves_nothing():
    model = load_model("llama-3-8b")
    plain, flash, selective = (sum(model.layer_activations(1, **how).values()) for how in ({}, {"flash": True}, {"recompute": "selective"}))
    assert selective < flash < 1.02 * selective < plain


def test_grouped_heads_keep_less_for_keys_and_values():
    tensors = load_model("llama-3-8b").layer_activations(1)
    assert tensors["k"] == tensors["v"] == tensors["q"] / 4


def test_a_hugging_face_config_gives_the_catalogues_model(tmp_path):
    llama = {"model_type": "llama", "num_hidden_layers": 32, "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8,
             "intermediate_size": 14336, "vocab_size": 128256, "max_position_embeddings": 8192, "tie_word_embeddings": False}  # fmt: skip
    gpt2 = {"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "vocab_size": 50257, "n_positions": 1024}
    for config, name in ((llama, "llama-3-8b"), (gpt2, "gpt2")):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        assert load_model(str(path)).parameters == load_model(name).parameters
        assert load_model(str(path)).flops_per_token() == load_model(name).flops_per_token()


@pytest.mark.parametrize(
    ("text", "says"),
    [("{}", "it has no 'num_hidden_layers'"), ("[1]", "not a model's config.json"), ("hello", "not a model's config.json")],
)
def test_a_file_that_is_no_config_is_refused_and_named(tmp_path, text, says):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=f"config.json: .*{says}"):
        load_model(tmp_path / "config.json")
    with pytest.raises(InputError, match="cannot read"):
        load_model(tmp_path / "none.json")


def test_an_unknown_model_is_refused_and_the_known_ones_named():
    with pytest.raises(InputError, match=r"^unknown model 'gpt-5', did you mean 'gpt3-175b'\? there is gpt2, .*llama-3-405b"):
        load_model("gpt-5")


def test_every_model_of_the_catalogue_names_its_source():
    assert all(model.source for model in catalogue().values())


@pytest.mark.parametrize(
    ("sizes", "says"),
    [({"hidden": 100}, "hidden = 100 is not divisible by heads = 8"), ({"kv_heads": 3}, "heads = 8 is not divisible by kv_heads = 3"),
     ({"layers": 0}, "layers = 0"), ({"experts": 4}, "0 of 4 experts")],
)  # fmt: skip
def test_sizes_that_cannot_be_are_refused(sizes, says):
    with pytest.raises(InputError, match=says):
        Model(**{"layers": 2, "hidden": 64, "heads": 8, "vocab": 100} | sizes)

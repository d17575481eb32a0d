"""config.json files that others published: each gives the model's parameters exactly, or a refusal that
says which part of the model cannot be said."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import simlab as sl
from simlab.spec.model.hugging_face import sizes_of

ROWS = json.loads((Path(__file__).parent / "configs.json").read_text(encoding="utf-8"))["models"]
READ = [row for row in ROWS if "parameters" in row]
REFUSED = [row for row in ROWS if "refused" in row]
CATALOGUE = {
    "qwen2.5-7b": "Qwen/Qwen2.5-7B", "qwen2.5-14b": "Qwen/Qwen2.5-14B", "qwen2.5-32b": "Qwen/Qwen2.5-32B",
    "qwen2.5-72b": "Qwen/Qwen2.5-72B", "qwen3-0.6b": "Qwen/Qwen3-0.6B", "qwen3-4b": "Qwen/Qwen3-4B",
    "qwen3-8b": "Qwen/Qwen3-8B", "qwen3-14b": "Qwen/Qwen3-14B", "qwen3-32b": "Qwen/Qwen3-32B",
    "gemma-2-9b": "google/gemma-2-9b", "gemma-2-27b": "google/gemma-2-27b", "gemma-3-27b": "google/gemma-3-27b-pt",
    "gpt-oss-20b": "openai/gpt-oss-20b", "gpt-oss-120b": "openai/gpt-oss-120b", "glm-4.5": "zai-org/GLM-4.5",
    "glm-4.5-air": "zai-org/GLM-4.5-Air", "kimi-k2": "moonshotai/Kimi-K2-Base",
    "llama-4-scout": "meta-llama/Llama-4-Scout-17B-16E", "llama-4-maverick": "meta-llama/Llama-4-Maverick-17B-128E",
    "olmo-2-7b": "allenai/OLMo-2-1124-7B", "olmo-2-13b": "allenai/OLMo-2-1124-13B", "olmo-2-32b": "allenai/OLMo-2-0325-32B",
    "nemotron-3-nano-30b-a3b": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "phi-4": "microsoft/phi-4", "mistral-small-24b": "mistralai/Mistral-Small-24B-Base-2501",
}  # fmt: skip


def name(row):
    return row["model"]


def test_there_are_forty_model_types_and_most_can_be_said():
    types = {row["config"]["model_type"] for row in ROWS}
    assert len(types) >= 40
    assert len({row["config"]["model_type"] for row in READ}) >= 25


@pytest.mark.parametrize("row", READ, ids=map(name, READ))
def test_a_config_gives_the_published_parameters(tmp_path, row):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(row["config"]))
    read = sl.load_model(str(path))
    assert read.mtp_layers == row["config"].get("num_nextn_predict_layers", 0)
    assert replace(read, mtp_layers=0).parameters == row["parameters"]  # those are counted without


@pytest.mark.parametrize("row", REFUSED, ids=map(name, REFUSED))
def test_a_config_that_cannot_be_said_is_refused_by_the_part_of_it(row):
    with pytest.raises(sl.InputError, match=f"cannot say .*{row['refused']}"):
        sizes_of(row["config"])


@pytest.mark.parametrize("model", CATALOGUE)
def test_the_catalogue_has_what_the_config_says(model):
    its = sl.load_model(model)
    row = next(row for row in READ if row["model"] == CATALOGUE[model])
    read = sl.Model(**sizes_of(row["config"]))
    own = {"name": "", "source": "", "seq": 1, "ignored": (), "mtp_layers": 0}
    assert its.to_dict() | own == read.to_dict() | own
    assert its.parameters == row["parameters"]


@pytest.mark.parametrize(("model", "billions"), [("gpt-oss-20b", "3.61"), ("gpt-oss-120b", "5.13")])
def test_what_computes_a_token_is_as_printed(model, billions):
    """OpenAI 2025, arXiv 2508.10925, Table 1, which leaves out the embedding's matrix."""
    its = sl.load_model(model)
    assert f"{(its.active_parameters - its.vocab * its.hidden) / 1e9:.2f}" == billions

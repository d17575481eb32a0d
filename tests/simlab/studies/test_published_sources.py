"""What is known of the sources of published rows: the table, and the columns that count more."""

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from simlab.errors import InputError
from simlab.spec.plan import Plan
from simlab.studies.published.overlap import overlapping
from simlab.studies.published.rows import alternatives, described
from simlab.studies.published.runs import RUNS, RUNS_2026, read_runs, result_of
from simlab.studies.published.sources import facts_of
from simlab.studies.published.words import Skip

TABLE = json.loads(Path(RUNS).with_name("sources.json").read_text(encoding="utf-8"))
ROWS = {row["id"]: row for row in read_runs(RUNS_2026)}
QWEN = next(row for row in ROWS.values() if "Qwen3-235B" in row["model"])
DEEPSEEK = next(row for row in ROWS.values() if row["model"] == "DeepSeek-V3" and not row["recompute"])  # fmt: skip


def plan_of(row, **changes):
    return described(row | changes)[1]


@pytest.mark.parametrize("entry", TABLE, ids=lambda entry: "-".join(entry["facts"]))
def test_an_entry_names_its_source_and_fields_of_a_plan(entry):
    known = {field.name for field in fields(Plan)} | {"machine", "nics", "mtp_layers"}
    assert set(entry["facts"]) <= known and entry["facts"]
    assert set(entry) <= {"source", "model", "gpu", "precision", "since", "before", "facts", "said"}
    assert re.search(r"\.(py|md|yaml)|config|docs/", entry["said"])
    for name in ("source", "model", "gpu", "precision"):
        re.compile(entry.get(name, ""))


def bridge(release, **changes):
    source = f"NVIDIA-NeMo/Megatron-Bridge@067f987d docs/x.md ({release}; X)"
    return QWEN | {"source": source, "gpu": "GB300", "precision": "mxfp8"} | changes


def test_a_later_release_has_other_facts():
    found = {
        release: facts_of(bridge(release), "qwen3-235b-a22b").get("ep_overlap")
        for release in ("25.11", "26.04.01", "26.06", "26.08")
    }
    assert found == {"25.11": None, "26.04.01": None, "26.06": True, "26.08": True}
    assert facts_of(bridge("26.06"), "qwen3-235b-a22b")["gradient_bytes"] == 2
    assert "moment_bytes" not in facts_of(bridge("26.06"), "qwen3-235b-a22b")


@pytest.mark.parametrize(("model", "gpu", "precision", "release", "facts"), [
    ("gpt-oss-120b", "GB300", "bf16", "26.04", {"dispatcher": "all-to-all"}),
    ("gpt-oss-120b", "H100", "bf16", "26.02", {"dispatcher": "all-to-all"}),
    ("gpt-oss-120b", "B200", "bf16", "26.04", {"dispatcher": "once-a-node"}),
    ("gpt-oss-120b", "GB200", "bf16", "26.04.01", {"dispatcher": "all-to-all", "ep_overlap": True}),
    ("gpt-oss-120b", "GB300", "mxfp8", "26.06", {"dispatcher": "once-a-node", "ep_overlap": True}),
    ("gpt-oss-120b", "GB300", "mxfp8", "26.06", {"attention": "flash-fp8", "cuda_graphs": "whole"}),
    ("gpt-oss-120b", "GB300", "bf16", "26.04", {"cuda_graphs": "parts"}),
    ("gpt-oss-120b", "H100", "bf16", "26.04", {"cuda_graphs": None}),
    ("qwen3-30b-a3b", "B200", "fp8", "25.11", {"cuda_graphs": "router"}),
    ("qwen3-235b-a22b", "B200", "mxfp8", "25.11", {"cuda_graphs": None}),
    ("deepseek-v3", "GB200", "mxfp8", "25.11", {"cuda_graphs": "router"}),
    ("nemotron-3-super", "B200", "bf16", "26.04", {"cuda_graphs": "none"}),
    ("nemotron-3-super", "B300", "nvfp4", "26.04", {"cuda_graphs": "parts", "recompute": "outputs"}),
    ("gpt-oss-120b", "GB300", "bf16", "26.06", {"attention": None}),
    ("deepseek-v3", "GB300", "mxfp8", "26.06", {"attention": "flash-fp8"}),
    ("deepseek-v3", "GB200", "mxfp8", "26.06", {"attention": None}),
    ("qwen3-235b-a22b", "H100", "fp8", "26.02.01", {"dispatcher": None, "ep_overlap": True}),
    ("qwen3-235b-a22b", "B300", "mxfp8", "26.02.01", {"dispatcher": None, "ep_overlap": None}),
    ("qwen3-235b-a22b", "B300", "mxfp8", "26.04.01", {"dispatcher": "once-a-node"}),
    ("qwen3-30b-a3b", "H100", "bf16", "26.02", {"dispatcher": "once-a-node", "ep_overlap": True}),
    ("deepseek-v3", "GB200", "mxfp8", "26.04", {"recompute": "none"}),
    ("deepseek-v3", "B200", "mxfp8", "26.04.01", {"ep_overlap": True, "recompute": "outputs"}),
    ("kimi-k2", "GB300", "mxfp8", "26.06", {"ep_overlap": False, "fused_experts": False, "recompute": "outputs"}),
])  # fmt: skip
def test_what_the_recipes_of_a_release_say_of_experts(model, gpu, precision, release, facts):
    """Read off the branch of each release of Megatron-Bridge, where its page was published."""
    found = facts_of(bridge(release, gpu=gpu, precision=precision), model)
    assert {name: found.get(name) for name in facts} == facts


@pytest.mark.parametrize(("column", "text", "name", "value"), [
    ("dispatcher", "alltoall", "dispatcher", "all-to-all"), ("dispatcher", "HybridEP", "dispatcher", "once-a-node"),
    ("ep_overlap", "no", "ep_overlap", False), ("etp", "2", "etp", 2), ("gradient_bits", "32", "gradient_bytes", 4),
    ("recompute_modules", "mla_up_proj, mlp", "recompute", "outputs"), ("recompute_modules", "core_attn", "recompute", "selective"),
    ("nics", "4 x 100 Gb/s", "nics", (4, 12.5e9)), ("library_release", "26.04", "ep_overlap", None),
])  # fmt: skip
def test_a_column_of_the_row_counts_more_than_the_table(column, text, name, value):
    assert facts_of(bridge("26.06", **{column: text}), "qwen3-235b-a22b").get(name) == value


@pytest.mark.parametrize("prose", ["4x100 Gb RoCE a node", "4 OmniPath 100G links/node"])
def test_the_nics_of_a_node_are_read_in_prose(prose):
    row = ROWS["new-322"] | {"source": f"somewhere ({prose})"}
    cluster = described(row)[2]
    assert (cluster.nics_per_node, cluster.inter.bandwidth_bytes_per_s) == (4, 12.5e9)


def test_a_list_of_dimensions_may_say_what_of_one_overlaps():
    assert overlapping("dp grad+param, tp, pp") == {"dp", "tp", "pp"}


@pytest.mark.parametrize(
    ("row", "modules"), [("new-250", 1), ("new-242", 0), ("new-042", 1), ("new-000", 0)]
)
def test_deepseek_v3_is_trained_with_its_module_unless_the_source_says_without(row, modules):
    """new-000 has all-to-alls beside another microbatch, with which a module is not simulated."""
    model, plan, _ = described(ROWS[row])
    assert (model.mtp_layers, plan.compiled_loss) == (modules, True)
    layers = plan.layers_of_stages(model.layers)
    assert layers[-1] < layers[-2]  # whose stage has the module and the head


def test_experts_are_not_cut_by_tensor_parallel_ranks_however_many_replicas_there_are():
    """64 expert-parallel ranks divide both 32 and 64 replicas."""
    for dp in (32, 64):
        row = DEEPSEEK | {"tp": "2", "pp": "4", "ep": "64", "dp": str(dp), "n_gpus": str(8 * dp)}
        assert plan_of(row, gpu="GB200", vpp="").etp == 1


def test_recomputations_are_those_that_a_library_has():
    row = DEEPSEEK | {"source": "somewhere"}
    kinds = [each.recompute for each in alternatives(row, plan_of(row))]
    assert kinds == ["none", "selective", "outputs", "full"]
    assert result_of(row).prediction is not None


def test_where_no_sharding_is_said_the_optimizer_is_sharded_before_all_is_computed_again():
    row = ROWS["new-322"] | {"source": "somewhere", "sharding": "", "recompute": ""}
    tried = [(each.recompute, each.zero) for each in alternatives(row, plan_of(row))]
    assert tried.index(("none", 1)) < tried.index(("full", 0))


def test_stages_that_come_out_even_with_embedding_and_head_have_them_as_layers():
    """126 layers on 128 stages."""
    row = next(row for row in ROWS.values() if (row["pp"], row["vpp"]) == ("16", "8"))
    model, plan, _ = described(row)
    layers = plan.layers_of_stages(model.layers)
    assert (layers[0], layers[-1], set(layers[1:-1])) == (0, 0, {1})


def test_of_the_runs_of_2025_and_2026_only_those_are_refused_that_cannot_be_said():
    refused = {}
    for row in ROWS.values():
        try:
            described(row)
        except (Skip, InputError) as why:
            refused[row["id"]] = str(why)
    assert len(refused) == 1
    assert all("experts have no column" in why for why in refused.values())

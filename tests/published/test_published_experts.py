"""Published plans of models with experts, beside what the planner finds."""

import csv
import json

import pytest

from benchmarks.published_plans import PLANS, main, met, own_space, rows, space_of
from simlab.planner import search

ROWS = rows(experts=True)


def row_of(model, gpus, batch):
    (found,) = (
        row
        for row in ROWS
        if (row["model"], row["gpus"], row["global_batch"]) == (model, str(gpus), str(batch))
    )
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row['model']}-{row['gpus']}-{row['ep']}")
def test_a_published_plan_takes_all_gpus_and_the_whole_batch(row):
    degrees = [int(row[name]) for name in ("dp", "tp", "pp", "cp")]
    dp, tp, pp, cp = degrees
    assert dp * tp * pp * cp == int(row["gpus"])
    assert int(row["global_batch"]) % (dp * int(row["microbatch"])) == 0
    assert row["source"] and int(row["ep"]) > 1


def test_dense_plans_are_those_without_experts():
    names = {row["model"] for row in rows()}
    assert len(rows()) + len(ROWS) == 38 and not [n for n in names if "Qwen" in n or "Deep" in n]


def test_what_a_source_says_of_gradients_and_links_is_taken():
    """Megatron-Bridge's recipes reduce gradients in 16 bits and overlap what tensor parallelism sends;
    BLOOM's nodes had four NICs of 100 Gb/s."""
    bridge = next(row for row in rows() if "Megatron-Bridge" in row["source"])
    bloom = next(row for row in rows() if "bigscience" in row["source"])
    spaces = [space_of(row) for row in (bridge, bloom)]
    said = [(s.fixed.get("gradient_bytes"), s.fixed.get("tp_overlap")) for s in spaces]
    assert said == [(2, "pipelined"), (None, None)]
    cluster = spaces[1].cluster
    assert (cluster.nics_per_node, cluster.inter.bandwidth_bytes_per_s) == (4, 12.5e9)
    assert spaces[0].cluster.nics_per_node == 8


@pytest.mark.parametrize(("change", "why"), [
    ({"gpu": "TPU v5"}, "no cluster in the catalogue has the GPU 'TPU v5'"), ({"layers": "n/a"}, "layers = '' is no whole number"),
    ({"model": "Mixtral 8x3B"}, "is not simulated"), ({"precision": "int4"}, "precision = 'int4' is not known"),
])  # fmt: skip
def test_a_row_that_says_too_little_is_skipped_with_the_reason(tmp_path, change, why):
    row = rows()[0] | change
    with (tmp_path / "plans.csv").open("w", newline="") as file:
        out = csv.DictWriter(file, row)
        out.writeheader()
        out.writerow(row)
    experts = row["model"].startswith("Mixtral")
    (read,) = rows(tmp_path / "plans.csv", experts=experts)
    its = met(read)
    assert why in its.skipped and not its.is_met


def test_a_file_and_json_can_be_asked_for(tmp_path, capsys):
    header = PLANS.read_text(encoding="utf-8").splitlines()[0]
    (tmp_path / "plans.csv").write_text(header + "\n" + "a,b" + "\n")
    assert main([str(tmp_path / "plans.csv"), "--json", "--workers", "1"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["dense"][0]["skipped"] and found["experts"] == found["runs"] == []


def test_what_is_found_for_a_row_is_what_its_recipe_became():
    """In February 2026 Megatron-Bridge took 16 expert-parallel ranks and no pipeline in place of 8 and two
    stages (scripts/performance/configs/qwen/qwen3_workload_base_configs.py)."""
    its = met(row_of("Qwen3_30B_a3B", 16, 1024))
    assert " ep8 " in its.published and " pp2 " in its.published
    assert " ep16 " in its.best and " pp" not in its.best and "16: +0.0%" in its.by_ranks
    assert its.measured_s == pytest.approx(1024 * 4096 / (16 * 5113))


def test_what_the_recipes_of_models_with_experts_say_is_taken():
    """The dispatcher by release, 16-bit moments of DeepSeek-V3, parameters in 8 bits but for it on H100s."""
    said = [space_of(row).fixed for row in ROWS]
    flex = [
        (row["model"], row["gpu"])
        for row, its in zip(ROWS, said)
        if its.get("dispatcher") == "once-a-node"
    ]
    deepseek = [("DeepSeekV3", gpu) for gpu in ("B200", "B200", "H100")]
    assert flex == [*deepseek, ("Qwen3_30B_a3B", "H100")]
    moments = {row["model"]: its.get("moment_bytes") for row, its in zip(ROWS, said)}
    assert moments == {"DeepSeekV3": 2, "Qwen3_235B_a22B": None, "Qwen3_30B_a3B": None}
    wide = [
        (row["model"], row["gpu"])
        for row, its in zip(ROWS, said)
        if not its.get("fp8_param_gather")
    ]
    assert wide == [("DeepSeekV3", "H100")]


def test_a_plan_whose_experts_span_tensor_parallel_ranks_is_predicted_beside_its_measured_step():
    """Half of it are all-to-alls of 32 ranks on four nodes, a part of them beside another microbatch."""
    row = row_of("Qwen3_235B_a22B", 256, 2048)
    space = own_space(row)
    (published,) = search(space, kept=1, layered=0).plans
    assert published.plan.etp == 1 and published.plan.ep_overlap
    tokens = space.global_batch * space.model.seq
    measured_s = tokens / space.cluster.gpus / float(row["value"])
    assert published.step_s == pytest.approx(measured_s, rel=0.05)

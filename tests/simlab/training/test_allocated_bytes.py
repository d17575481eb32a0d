"""What torch's allocator holds at the peak, against what Megatron-LM's functional tests record on eight
H100s.

Source: github.com/NVIDIA/Megatron-LM, revision d98e8a6, tests/functional_tests/test_cases/gpt and moe:
model_config.yaml and golden_values_dev_dgx_h100.json of each case, `mem-max-allocated-bytes` of the last
rank in its highest step.
"""

from dataclasses import replace
from statistics import median

import pytest

import simlab as sl
from simlab.planner.formats import imported

SHARED = {
    "--num-layers": 12, "--hidden-size": 512, "--num-attention-heads": 8, "--micro-batch-size": 4,
    "--global-batch-size": 32, "--seq-length": 1024, "--max-position-embeddings": 1024,
    "--bf16": True, "--tokenizer-type": "GPT2BPETokenizer",
}  # fmt: skip
TP, PP = "--tensor-model-parallel-size", "--pipeline-model-parallel-size"
UNFUSED = {"--attention-backend": "unfused"}
SHARDED = {"--use-distributed-optimizer": True}
GOLDEN = {
    "te_tp1_pp4_vp1": ({PP: 4, "--num-layers-per-virtual-pipeline-stage": 1} | UNFUSED, 4_161_191_424),
    "te_tp1_pp4_vp1_uneven_pipeline": (
        {PP: 4, "--decoder-first-pipeline-num-layers": 2, "--decoder-last-pipeline-num-layers": 2,
         "--untie-embeddings-and-output-weights": True} | UNFUSED,
        2_415_566_336,
    ),
    "te_tp1_pp1_resume_torch_dist_uniform_full_recompute": (
        {"--recompute-granularity": "full", "--recompute-method": "uniform", "--recompute-num-layers": 1},
        2_561_334_272,
    ),
    "te_tp2_pp2_resume_torch_dist": ({TP: 2, PP: 2}, 1_428_171_264),
    "te_tp4_pp1_dist_optimizer": ({TP: 4, "--overlap-grad-reduce": True} | SHARDED | UNFUSED, 1_543_416_320),
}  # fmt: skip


def predicted(flags):
    made = imported("megatron", SHARED | flags, gpus=8)
    return sl.predict(made.model, made.plan, sl.load_cluster("dgx-h100"))


def test_the_peaks_of_megatrons_functional_tests_are_met():
    errors = {
        name: predicted(flags).allocated_bytes[-1] / golden - 1
        for name, (flags, golden) in GOLDEN.items()
    }
    assert median(map(abs, errors.values())) < 0.06, errors
    assert max(map(abs, errors.values())) < 0.06, errors


@pytest.mark.parametrize(
    ("cluster", "own", "torchs"), [("dgx-h100", 32, 32), ("dgx-a100", 4, 8.125)]
)
def test_workspaces_are_those_of_the_products_that_a_rank_computes(cluster, own, torchs):
    """Transformer Engine has one for all products, four more for experts'; torch one for each of two
    threads, where the head's or a router's product is torch's."""
    model, place = sl.load_model("gpt2"), sl.load_cluster(cluster)

    def spaces(model, **fields):
        step = sl.predict(model, sl.Plan(dp=4, pp=2, microbatches=4, **fields), place)
        held = [sum(one.values()) for one in step.held]
        return [(all_of_it - its) / 2**20 for all_of_it, its in zip(step.allocated_bytes, held)]

    assert spaces(model) == pytest.approx([own, own + 2 * torchs])
    assert spaces(model, library="torch") == pytest.approx([2 * torchs] * 2)
    some = replace(model, experts=4, experts_per_token=2)
    assert spaces(some) == pytest.approx([5 * own + 2 * torchs] * 2)

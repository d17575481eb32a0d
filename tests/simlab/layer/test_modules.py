"""Modules that predict one more token, as Megatron-LM has them
(megatron/core/transformer/multi_token_prediction.py, and gpt_model.py, of August 2026)."""

from collections import Counter
from dataclasses import replace

import pytest
from plan_oracles import cluster_of

import simlab as sl
from simlab.layer.parameters import stage_matrices, stage_parameters
from simlab.lowering.build import program_of
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.kernels import Communication, layer_kernels
from simlab.lowering.kernels.kernel import Matmul
from simlab.memory.ledger import CATEGORIES
from simlab.memory.step import StepWalk

PLAIN = sl.Model(
    name="M", layers=4, hidden=256, heads=8, kv_heads=2, ffn=512, vocab=1024, seq=64, gated_mlp=True, bias=False
)  # fmt: skip
MODEL = replace(PLAIN, mtp_layers=1)
TIED = replace(MODEL, tied_head=True)
EXPERTS = replace(
    MODEL, experts=8, experts_per_token=2, expert_ffn=128, shared_experts=1, dense_layers=1
)
LATENT = replace(
    EXPERTS, kv_heads=8, q_rank=96, kv_rank=48, rope_size=8, value_size=24, mtp_layers=2
)
TOKENS, H, V = 64, 256, 1024


def walk_of(model, plan):
    program = program_of(plan)
    return StepWalk(model, plan, program, plan.layers_of_stages(model.layers, program.stages))


def last_list(model, plan):
    return rank_instructions(model, plan, program_of(plan), plan.pp - 1)


@pytest.mark.parametrize(
    "model", [MODEL, TIED, EXPERTS, LATENT], ids=["plain", "tied", "experts", "latent"]
)
@pytest.mark.parametrize(
    "plan",
    [
        {"pp": 2, "tp": 2, "sequence_parallel": True, "zero": 1, "dp": 2},
        {"tp": 2, "recompute": "full", "dp": 2},
        {"pp": 2, "recompute": "outputs", "schedule": "interleaved-1f1b", "chunks": 2},
        {"pp": 2, "schedule": "zb-h1", "dp": 2, "bucket_bytes": 2**18},
        {"pp": 2, "schedule": "zb-v", "chunks": 2, "tp": 2, "precision": "fp16"},
    ],
)  # fmt: skip
def test_a_step_takes_as_long_walked_as_played_and_gives_back_what_it_takes(model, plan):
    plan = sl.Plan(microbatches=4, microbatch_size=2, **plan)
    step = model, plan, cluster_of(plan.gpus)
    found, trace = sl.predict(*step), sl.layer_trace(*step)
    assert trace.whole_step_s == pytest.approx(found.step_s, rel=1e-9)
    walk = walk_of(model, plan)
    for rank in range(plan.pp):
        moments, rest = walk.moments(rank), walk.rest(rank)
        for category in CATEGORIES:
            assert moments[-2].held[category] == pytest.approx(rest[category], abs=1e-6), category
        assert all(size >= -1e-6 for its in moments for size in its.held.values())


@pytest.mark.parametrize("model", [MODEL, EXPERTS, LATENT])
def test_operations_are_those_that_megatron_counts(model):
    """num_floating_point_operations in megatron/training/training.py: for each module a layer, a
    projection, and the logits once more (and norms, which are left out here)."""
    plain, own = replace(model, mtp_layers=0), sum(model.layer_flops(TOKENS).values())
    added = model.flops_per_token(TOKENS) - plain.flops_per_token(TOKENS)
    assert added == 3 * model.mtp_layers * (own + 2 * 2 * H * H + 2 * H * V)


@pytest.mark.parametrize(("tied", "copies"), [(False, 1), (True, 0)])
def test_the_last_stage_has_a_copy_of_the_embedding_and_one_head(tied, copies):
    """GPTModel makes an embedding where there are modules (`pre_process or mtp_process`), and the modules'
    logits with its own output layer. A tied head is such a copy."""
    model, plan = replace(MODEL, tied_head=tied), sl.Plan(pp=2, microbatches=2)
    kinds = model.kinds_of_stages([2, 2])[1]
    own = stage_parameters(model, plan, kinds, last=True)
    without = stage_parameters(replace(model, mtp_layers=0), plan, kinds[:2], last=True)
    layer = sum(model.layer_parameters.values())
    assert own - without == layer + 2 * H * H + 3 * H + copies * V * H
    matrices = stage_matrices(model, plan, kinds, first=False, last=True).shared
    assert sum(its.numbers * n for its, n in matrices.items()) == own
    units = [its for its in last_list(model, replace(plan, dp=2)) if its.dimension == "dp"]
    assert sum(its.size_bytes for its in units if its.action == "begin") == 4 * own


@pytest.mark.parametrize("model", [MODEL, TIED])
def test_one_stage_has_all_tables_once(model):
    plan = sl.Plan(dp=2)
    assert (
        stage_parameters(model, plan, model.layer_kinds, first=True, last=True) == model.parameters
    )
    sent = [its for its in last_list(model, plan) if (its.dimension, its.action) == ("dp", "begin")]
    assert sum(its.size_bytes for its in sent) == 4 * model.parameters


def test_both_copies_of_the_embedding_sum_up_their_gradients():
    """`_allreduce_word_embedding_grads` in megatron/core/distributed/finalize_model_grads.py."""
    plan = sl.Plan(pp=2, tp=2, microbatches=2)
    (sent,) = (
        its for its in last_list(MODEL, plan) if (its.dimension, its.action) == ("ends", "begin")
    )
    assert sent.size_bytes == 4 * V * H / 2
    assert not [its for its in last_list(PLAIN, plan) if its.dimension == "ends"]


def test_the_last_stage_looks_rows_up_and_makes_logits_and_losses_once_more():
    plan = sl.Plan(pp=2, microbatches=2)
    names = [
        its.unit for its in last_list(replace(MODEL, mtp_layers=2), plan)
        if its.op == "1F0" and its.action == "compute"
    ]  # fmt: skip
    modules = [f"module {n}{part}" for n in (1, 2) for part in (" embedding", "", " head")]
    assert names == ["layer 2", "layer 3", *modules, "head"]
    logits = Counter(
        kernel.name for its in last_list(MODEL, plan) if its.op == "1B0" for kernel in its.kernels
    )
    assert logits["head weight grad"] == logits["loss grad"] == 2


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_the_projection_is_cut_by_columns_and_its_results_are_collected(sequence_parallel):
    """eh_proj is a ColumnParallelLinear of 2 h x h; gather_from_tensor_model_parallel_region, whose
    backward cuts the gradient, brings its results together; scatter_to_sequence_parallel_region cuts
    them, and its backward gathers."""
    plan = sl.Plan(tp=2, sequence_parallel=sequence_parallel)
    kernels = layer_kernels(MODEL.of_kind("module"), plan)
    (product,) = (
        its for its in kernels.forward if its.operation == "projection" and isinstance(its, Matmul)
    )
    assert (product.m, product.n, product.k) == (TOKENS, H // 2, 2 * H)
    sent = [
        [
            (its.kind, its.size_bytes / (2 * TOKENS * H)) for its in part
            if isinstance(its, Communication) and its.operation in ("projection", "collect")
        ]
        for part in (kernels.forward, kernels.input_grad)
    ]  # fmt: skip
    if sequence_parallel:
        assert sent[0] == [("all_gather", 2), ("all_gather", 1)]
        assert sent[1] == [("all_gather", 1), ("all_gather", 2), ("reduce_scatter", 2)]
    else:
        assert sent == [[("all_gather", 1)], [("all_reduce", 2)]]


def test_the_last_stage_keeps_a_layer_a_row_both_inputs_and_the_logits_once_more():
    """A norm's input, fp32 statistics of four more norms, the concatenation, and what the head keeps:
    its norm's input and output, and fp32 log-probabilities."""
    kept, plain = (
        walk_of(model, sl.Plan(pp=2, microbatches=2)).activations()[0][1]
        for model in (MODEL, PLAIN)
    )
    layer = walk_of(PLAIN, sl.Plan(pp=4, microbatches=2)).activations()[0][1]
    row, both, head_input, statistics = 2 * H, 2 * 2 * H, 2 * H, 3 * 4
    # a stage in the middle keeps its layer's inputs but not its result, which is sent
    assert kept - plain == layer + TOKENS * (row + both + head_input + 4 * V + statistics + 2 * H)


@pytest.mark.parametrize(
    ("plan", "says"),
    [
        ({"library": "torch"}, "library = 'torch': M's mtp_layers = 1 are not simulated with it"),
        ({"zero": 3, "dp": 2}, "zero = 3: .* or a model with mtp_layers = 0"),
        ({"offload": "activations"}, "offload = 'activations'"),
    ],
)
def test_what_is_not_known_of_modules_is_refused(plan, says):
    with pytest.raises(sl.InputError, match=says):
        sl.Plan(**plan).check(MODEL)

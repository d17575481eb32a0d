"""The walk over a rank's ops, against tensors counted by hand and against its own parts."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_oracles import plan_of
from stage_memory import stage_memory

import simlab as sl
from simlab.layer.parameters import stage_parameters, unit_parameters, unit_tensors
from simlab.lowering.build import program_of
from simlab.memory.ledger import CATEGORIES, STATES, Ledger
from simlab.memory.schemes import Use
from simlab.memory.step import StepWalk, folded
from simlab.memory.tensors import padded

LLAMA = sl.Model(
    layers=8, hidden=64, heads=8, kv_heads=2, ffn=160, gated_mlp=True, bias=False, vocab=512, seq=128
)  # fmt: skip
GPT = sl.Model(layers=8, hidden=64, heads=8, vocab=512, positions=128, seq=128)
MOE = replace(LLAMA, experts=4, experts_per_token=2)
MIXED = replace(MOE, expert_ffn=96, shared_experts=1, dense_layers=3, qk_norm=True)
MODELS = {"llama": LLAMA, "gpt": GPT, "moe": MOE, "mixed": MIXED}
TOKENS = 128
PLANS = st.builds(
    lambda degrees, more: plan_of(**degrees, **more),
    st.sampled_from(
        [
            {"schedule": "1f1b", "pp": 2, "microbatches": 4},
            {"schedule": "gpipe", "pp": 4, "microbatches": 3},
            {"schedule": "interleaved-1f1b", "pp": 2, "microbatches": 4},
            {"schedule": "zb-h1", "pp": 2, "microbatches": 4},
            {"schedule": "zb-v", "pp": 2, "microbatches": 4},
            {"pp": 1, "microbatches": 2},
        ]
    ),
    st.fixed_dictionaries(
        {
            "dp": st.sampled_from([1, 2, 4]),
            "expert_load": st.sampled_from([1.0, 1.5]),
            "tp": st.sampled_from([1, 2]),
            "cp": st.sampled_from([1, 2]),
            "cp_kind": st.sampled_from(["ring", "all-gather", "all-to-all"]),
            "zero": st.sampled_from([0, 1, 2, 3]),
            "library": st.sampled_from(["megatron", "nanotron", "torch", "fsdp1"]),
            "fused": st.booleans(),
            "compiled_loss": st.booleans(),
            "recompute": st.sampled_from(["none", "selective", "per-op", "full"]),
            "precision": st.sampled_from(["fp32", "bf16", "fp16", "fp8"]),
            "sequence_parallel": st.booleans(),
            "reshard": st.booleans(),
            "prefetch": st.sampled_from([0, 1, 2]),
            "offload": st.sampled_from(["none", "optimizer", "parameters", "activations"]),
        }
    ).filter(
        lambda its: its["library"] != "nanotron" or (its["zero"] < 2 and its["precision"] != "fp8")
    ),
)


def walk_of(model, plan):
    program = program_of(plan)
    return StepWalk(model, plan, program, plan.layers_of_stages(model.layers, program.stages))


@given(st.sampled_from(sorted(MODELS)), PLANS)
def test_a_step_gives_back_what_it_takes_and_peaks_where_its_fullest_op_does(name, plan):
    walk = walk_of(MODELS[name], plan)
    for rank in range(plan.pp):
        moments, rest = walk.moments(rank), walk.rest(rank)
        assert moments[0].held == rest
        end = moments[-2].held  # after the last op
        for category in set(CATEGORIES) - {"gradients"}:
            assert end[category] == pytest.approx(rest[category], abs=1e-6), category
        assert end["gradients"] >= rest["gradients"]
        for moment in moments:
            assert all(size >= -1e-6 for size in moment.held.values()), moment
        fullest = max(moments, key=lambda moment: moment.total)
        assert sum(walk.peak(rank).values()) == pytest.approx(fullest.total)
        assert sum(folded(walk.peak(rank)).values()) == pytest.approx(fullest.total)


@given(st.sampled_from(sorted(MODELS)), PLANS)
def test_layers_one_after_the_other_are_the_phase_repeated(name, plan):
    walk = walk_of(MODELS[name], plan).stages[0]
    for kind in "FBIW":
        together, apart = Ledger(), Ledger()
        for piece in walk.pieces(Use(kind)):
            together.add(piece.phase.repeated(piece.many))
            for _ in range(piece.many):
                apart.add(piece.phase)
        for one, other in ((together.held, apart.held), (together.largest, apart.largest)):
            assert one == pytest.approx(other, abs=1e-6)
        assert together.peak == pytest.approx(apart.peak, abs=1e-6)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("tp", [1, 2])
def test_tensors_add_up_to_the_units_parameters(name, tp):
    model, plan = MODELS[name], sl.Plan(tp=tp, seq=128)
    for unit in ("embedding", "layer", "head"):
        numbers = sum(rows * row for rows, row in unit_tensors(model, plan, unit))
        assert numbers == pytest.approx(unit_parameters(model, plan, unit), rel=1e-12)


def test_padding_makes_each_tensors_rows_a_multiple_of_the_ranks():
    """Of LLAMA's layer on 48 ranks: norms of 64 rows take 96, q and output 96, k and v (16) 48,
    gate and up (160) 192, down 96."""
    its = padded(LLAMA, sl.Plan(dp=48), ("layer",))
    rows = {64: 96, 16: 48, 160: 192}
    tensors = [(64, 1), (64, 1), (64, 64), (16, 64), (16, 64), (64, 64)]
    tensors += [(160, 64), (160, 64), (64, 160)]
    assert its.padded == sum(rows[count] * row for count, row in tensors)
    assert its.whole == sum(count * row for count, row in tensors)
    assert its.last == 64 * 160


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        # norm 1, q, k and v, attention, sum, norm 2, between the MLP's matrices, own output
        ("llama", 64 + 64 + 2 * 16 + 64 + 64 + 64 + 3 * 160 + 64),
        ("gpt", 64 + 3 * 64 + 64 + 64 + 64 + 2 * 256 + 64),
        # with two experts a token: its copies, and twice between the matrices
        ("moe", 64 + 64 + 2 * 16 + 64 + 64 + 64 + 2 * 64 + 2 * 3 * 160 + 64),
    ],
)
@pytest.mark.parametrize("precision", ["bf16", "fp32"])
def test_a_layer_keeps_the_tensors_that_are_counted_by_hand(name, kept, precision):
    """And in fp32 attention's sum of each head, two norms' statistics: one number of RMSNorm, two
    of LayerNorm."""
    width = {"bf16": 2, "fp32": 4}[precision]
    plan = sl.Plan(precision=precision, seq=TOKENS)
    one, two = (stage_memory(MODELS[name], plan, n).activations for n in (1, 2))
    statistics = 2 * (2 if name == "gpt" else 1)
    assert two - one == TOKENS * (width * kept + 4 * 8 + 4 * statistics)


def test_full_recomputation_keeps_the_input_and_makes_one_layer_again():
    """The backward of the top layer holds all that one layer keeps and the inputs of those
    below."""
    plan = sl.Plan(recompute="full", seq=TOKENS)
    kept = [stage_memory(LLAMA, plan, n).activations for n in (1, 2, 3)]
    assert kept[2] - kept[1] == kept[1] - kept[0] == 2 * TOKENS * 64
    again, none = (stage_memory(LLAMA, replace(plan, recompute=how), 1) for how in ("full", "none"))
    peak, whole = (its.activations + its.buffers for its in (again, none))
    assert peak == pytest.approx(whole)
    more = stage_memory(LLAMA, plan, 5)
    assert more.activations + more.buffers - peak == 4 * 2 * TOKENS * 64


def test_selective_recomputation_keeps_no_scores_and_makes_those_of_one_layer_again():
    """A layer's softmax, its dropout's mask and result are 5 a s^2 b bytes (Korthikanti et al. 2022,
    arXiv 2205.05198, section 4.1)."""
    plan = sl.Plan(attention="unfused", dropout=True, seq=TOKENS)
    none, selective = (
        [stage_memory(GPT, replace(plan, recompute=how), layers) for layers in (1, 2)]
        for how in ("none", "selective")
    )
    scores = 5 * GPT.heads * TOKENS**2
    less = [a.activations - b.activations for a, b in zip(none, selective)]
    assert less == pytest.approx([scores, 2 * scores])
    peaks = [[its.activations + its.buffers for its in one] for one in (none, selective)]
    assert [a - b for a, b in zip(*peaks)] == pytest.approx([0, scores])


def test_a_split_backward_keeps_inputs_and_outputs_gradients_of_matrices_until_w():
    """Zero-bubble, Table 1 (arXiv 2401.10241): of a GPT layer with h hidden, 32 h of 34 h bytes a
    token without dropout's masks, in bf16: inputs h, h, h, 4h and gradients 3h, h, 4h, h."""
    plan = sl.Plan(pp=4, microbatches=4, schedule="zb-h1", seq=TOKENS)
    _, between = walk_of(GPT, plan).activations()
    assert between[1] == 2 * TOKENS * 2 * (1 + 1 + 1 + 4 + 3 + 1 + 4 + 1) * 64
    assert between[1] == 2 * TOKENS * 32 * 64
    assert walk_of(GPT, replace(plan, schedule="1f1b")).activations()[1] is None


@pytest.mark.parametrize(("schedule", "flying"), [("1f1b", [4, 3, 2, 1]), ("gpipe", [8] * 4)])
def test_a_rank_holds_the_microbatches_that_the_schedule_has_in_flight(schedule, flying):
    plan = sl.Plan(pp=4, microbatches=8, schedule=schedule, seq=TOKENS)
    walk = walk_of(LLAMA, plan)
    forward, _ = walk.activations()
    for rank, count in enumerate(flying):
        most = max(moment.held["activations"] for moment in walk.moments(rank) if not moment.op)
        assert most == pytest.approx(count * forward[rank])


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
@pytest.mark.parametrize("library", ["megatron", "torch", "fsdp1"])
@pytest.mark.parametrize("precision", ["bf16", "fp32", "fp16"])
def test_states_when_the_step_ends_are_a_rules_bytes_per_parameter(precision, library, zero):
    """Megatron-LM in 16 bits: 2 + gradient + 12; torch: fp32 with its gradient and two moments, 16,
    but for ZeRO-1 and 2, which keep 16-bit parameters over fp32 shards."""
    ranks = 4
    plan = sl.Plan(dp=ranks, zero=zero, library=library, precision=precision, seq=TOKENS)
    gradient = {"bf16": 4, "fp32": 4, "fp16": 2}[precision]
    kept_in_fp32 = precision == "fp32" or (library != "megatron" and zero in (0, 3))
    each = (4, 4, 8) if kept_in_fp32 else (2, gradient, 12)
    numbers = stage_parameters(LLAMA, plan, 8, first=True, last=True)
    cuts = [ranks if zero >= stage else 1 for stage in (3, 2, 1)]  # all rows divide by 4
    end = walk_of(LLAMA, plan).moments(0)[-1].held
    expected = [numbers * size / cut for size, cut in zip(each, cuts)]
    assert [end[name] for name in STATES] == pytest.approx(expected)


@pytest.mark.parametrize("microbatches", [1, 3])
def test_fsdp2_that_does_not_reshard_keeps_all_parameters_from_forward_to_backward(microbatches):
    plan = sl.Plan(dp=8, zero=3, library="torch", seq=TOKENS, microbatches=microbatches)
    numbers = stage_parameters(LLAMA, plan, 8, first=True, last=True)
    kept, freed = (
        [moment.held["unsharded_parameters"] for moment in walk_of(LLAMA, its).moments(0)]
        for its in (replace(plan, reshard=False), plan)
    )
    assert kept == [0, *[2 * numbers, 2 * numbers, 2 * numbers, 0] * microbatches, 0]
    assert set(freed[2::2]) == {0}  # between ops, and in the optimizer's step


@pytest.mark.parametrize("library", ["torch", "megatron"])
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
def test_in_a_pipeline_what_is_not_resharded_stays_until_the_stages_gradients_are_complete(
    library, schedule
):
    plan = sl.Plan(
        dp=8, pp=2, zero=3, library=library, schedule=schedule, seq=TOKENS, microbatches=4, reshard=False
    )  # fmt: skip
    walk = walk_of(LLAMA, plan)
    for rank in range(2):
        whole = 2 * stage_parameters(LLAMA, plan, 4, first=rank == 0, last=rank == 1)
        after = [moment.held for moment in walk.moments(rank) if not moment.op]
        held = [its["unsharded_parameters"] for its in after]
        assert held == pytest.approx([0, *[whole] * (len(held) - 2), 0])


@pytest.mark.parametrize("schedule", ["zb-h1", "zb-v"])
@pytest.mark.parametrize("model", [LLAMA, GPT, MOE], ids=["llama", "gpt", "moe"])
@pytest.mark.parametrize("dp", [1, 8])
def test_under_autocast_the_weights_part_of_a_backward_leaves_no_casts_of_gradients(
    model, schedule, dp
):
    plan = sl.Plan(dp=dp, library="torch", schedule=schedule, seq=TOKENS, microbatches=4)
    after = [moment.held for moment in walk_of(model, plan).moments(0) if not moment.op]
    assert (after[-1]["temporaries"], after[-1]["activations"]) == (0, pytest.approx(0))


def test_without_a_pipeline_a_backward_frees_what_other_microbatches_still_need():
    plan = sl.Plan(
        dp=8, zero=3, library="torch", schedule="gpipe", seq=TOKENS, microbatches=3, reshard=False
    )
    after = [moment.held for moment in walk_of(LLAMA, plan).moments(0) if not moment.op]
    assert [its["unsharded_parameters"] > 0 for its in after] == [False, *[True] * 3, *[False] * 3]


def test_gradients_are_made_by_the_first_backward_and_added_to_by_the_others():
    plan = sl.Plan(dp=8, library="torch", precision="fp32", seq=TOKENS, microbatches=3)
    gradients = [moment.held["gradients"] for moment in walk_of(LLAMA, plan).moments(0)]
    whole = 4 * LLAMA.parameters
    # rest; a forward and after it; then nothing is freed until the step is over
    assert gradients[:3] == [0, 0, 0]
    assert gradients[4:] == pytest.approx([whole] * len(gradients[4:]))


@pytest.mark.parametrize("library", ["torch", "fsdp1", "megatron"])
@pytest.mark.parametrize("schedule", ["zb-v", "dualpipe-v", "1f1b"])
def test_a_table_that_two_stages_of_a_rank_share_has_one_gradient_and_positions_have_their_own(
    library, schedule
):
    """Found by hypothesis: in V-shaped schedules the embedding's table is the head's, and its
    positions are nobody's but its own."""
    model = replace(GPT, tied_head=True)
    plan = sl.Plan(schedule=schedule, library=library, seq=TOKENS, microbatches=2)
    end = walk_of(model, plan).moments(0)[-1].held
    assert end["gradients"] == 4 * model.parameters


def test_offloaded_activations_of_two_layers_are_on_the_gpu_at_once():
    plan = sl.Plan(seq=TOKENS)
    one, two = (stage_memory(LLAMA, plan, n).activations for n in (1, 2))
    walk = walk_of(LLAMA, replace(plan, offload="activations")).stages[0]
    largest = walk.op(Use("F")).largest["activations"]
    embedding = 2 * TOKENS * 64
    assert largest == pytest.approx(embedding + 2 * (two - one), rel=0.1)
    left = walk.op(Use("F")).end["activations"]
    head = 2 * TOKENS * 64 + 4 * TOKENS + 4 * TOKENS * 512
    assert left == pytest.approx(embedding + head)


def test_a_breach_is_the_first_op_that_holds_more_than_the_gpu_has():
    plan = sl.Plan(dp=8, zero=3, library="torch", seq=TOKENS, microbatch_size=4)
    node = sl.load_cluster("dgx-h100")
    step = sl.predict(LLAMA, plan, node)
    moments = {moment.op: moment.total for moment in step.memory.moments(0) if moment.op}
    for op in moments:
        small = replace(node, gpu=replace(node.gpu, memory_bytes=moments[op] * (1 - 1e-9)))
        (breach,) = replace(step, cluster=small).breaches
        assert breach.op == next(name for name in moments if moments[name] >= moments[op])
        assert breach.amount == moments[breach.op]


def test_context_parallel_replicas_have_buckets_of_gradients_too():
    plan = sl.Plan(cp=2, library="torch", precision="fp32", seq=TOKENS)
    assert walk_of(LLAMA, plan).rest(0)["buckets"] == pytest.approx(4 * LLAMA.parameters)
    assert walk_of(LLAMA, replace(plan, cp=1)).rest(0)["buckets"] == 0


@pytest.mark.parametrize("microbatches", [1, 3])
def test_fsdp2s_shard_of_gradients_is_there_once_and_so_is_the_optimizers_scratch(microbatches):
    """All rows divide by 8: a parameter's 4 bytes of each, an eighth on each rank."""
    plan = sl.Plan(dp=8, zero=3, library="torch", seq=TOKENS, microbatches=microbatches)
    step = walk_of(LLAMA, plan).moments(0)[-1].held
    assert step["gradients"] == pytest.approx(4 * LLAMA.parameters / 8)
    assert step["temporaries"] == pytest.approx(4 * LLAMA.parameters / 8)


@pytest.mark.parametrize("library", ["megatron", "torch", "fsdp1"])
@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_a_table_that_two_stages_of_a_rank_share_is_held_once(library, zero):
    tied = replace(LLAMA, tied_head=True)
    plan = sl.Plan(zero=zero, library=library, schedule="zb-v", seq=TOKENS, precision="fp32")
    end = walk_of(tied, plan).moments(0)[-1].held
    assert end["parameters"] == pytest.approx(4 * tied.parameters)
    assert end["gradients"] == pytest.approx(4 * tied.parameters)


@pytest.mark.parametrize("library", ["megatron", "torch"])
def test_with_one_rank_a_shard_nothing_is_sharded(library):
    plans = [
        sl.Plan(dp=8, zero=z, hybrid=min(z, 1), library=library, seq=TOKENS) for z in (0, 1, 2)
    ]
    whole, *sharded = [sum(folded(walk_of(LLAMA, plan).peak(0)).values()) for plan in plans]
    assert sharded == pytest.approx([whole, whole])


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved-1f1b", "zb-h1"])
@pytest.mark.parametrize("name", MODELS)
def test_each_rank_of_a_pipeline_ends_with_a_gradient_of_each_of_its_parameters(name, schedule):
    plan = sl.Plan(
        dp=2, pp=2, library="torch", precision="fp32", schedule=schedule, microbatches=4, seq=TOKENS
    )
    walk = walk_of(MODELS[name], plan)
    ends = [walk.moments(rank)[-1].held for rank in range(2)]
    assert all(end["gradients"] == pytest.approx(end["parameters"]) for end in ends)
    whole = sum(end["gradients"] for end in ends)
    assert whole == pytest.approx(4 * MODELS[name].parameters)


@pytest.mark.parametrize("tp, sequence_parallel", [(1, False), (2, False), (2, True)])
def test_stored_scores_and_masks_make_a_layer_what_korthikanti_counts(tp, sequence_parallel):
    """Korthikanti et al. 2022 (arXiv 2205.05198), equations 1, 2 and 4: s b h (34 + 5 a s / h)
    bytes, of which tensor parallelism leaves 10 on each rank and sequence parallelism none. They
    leave out the statistics of two LayerNorms, two fp32 numbers a token each."""
    plan = sl.Plan(
        tp=tp, sequence_parallel=sequence_parallel, attention="unfused", dropout=True, seq=TOKENS
    )
    one, two = (stage_memory(GPT, plan, layers).activations for layers in (1, 2))
    outside = tp if sequence_parallel else 1
    numbers, scores = TOKENS * GPT.hidden, GPT.heads * TOKENS**2
    statistics = 2 * 2 * 4 * TOKENS / outside
    assert two - one == 10 * numbers / outside + (24 * numbers + 5 * scores) / tp + statistics


@pytest.mark.parametrize(
    ("name", "kept"),
    [
        # input, q, v, attention's result, gate, down
        ("llama", 64 + 64 + 16 + 64 + 160 + 64),
        # input, q, v, attention's result, up
        ("gpt", 64 + 64 + 64 + 64 + 256),
    ],
)
def test_per_op_recomputation_keeps_every_second_product_and_attentions_result(name, kept):
    """As torchtitan's policy counts products (q, k, v, output, gate, up, down: the second, fourth
    and sixth are made again), and attention's fp32 sum of each of 8 heads."""
    plan = sl.Plan(recompute="per-op", seq=TOKENS)
    one, two = (stage_memory(MODELS[name], plan, layers).activations for layers in (1, 2))
    assert two - one == TOKENS * (2 * kept + 4 * 8)


@pytest.mark.parametrize("prefetch", [1, 2])
def test_a_stage_is_fullest_where_most_of_its_layers_are_gathered(prefetch):
    """Where parameters outweigh activations that is before its last layers, which have fewer to
    gather ahead."""
    plan = sl.Plan(dp=2, pp=2, microbatches=2, zero=3, prefetch=prefetch, seq=8)
    walk = walk_of(replace(LLAMA, layers=24), plan).stages[0]
    whole, apart = walk.op(Use("F")), Ledger()
    for piece in walk.pieces(Use("F")):
        for _ in range(piece.many):
            apart.add(piece.phase)
    layers = whole.at_peak["unsharded_parameters"] / (2 * unit_parameters(LLAMA, plan, "layer"))
    assert layers == pytest.approx(1 + prefetch)
    assert whole.peak == sum(whole.at_peak.values()) == pytest.approx(apart.peak)


def test_casts_of_latent_attentions_weights_go_with_the_backward():
    """Autocast keeps a 16-bit copy of the weights of each product until its backward is over."""
    latent = {"kv_heads": 8, "q_rank": 24, "kv_rank": 16, "rope_size": 4, "value_size": 8}
    walk = walk_of(replace(LLAMA, **latent), sl.Plan(dp=2, library="torch", microbatches=2))
    moments = walk.moments(0)
    assert moments[-2].held["activations"] == pytest.approx(walk.rest(0)["activations"], abs=1e-6)

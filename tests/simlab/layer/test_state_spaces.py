"""Layers with a state space, and layers that have one part only."""

from dataclasses import replace

import pytest

import simlab as sl
from simlab.layer.operation import OperationKind
from simlab.layer.parameters import stage_parameters
from simlab.lowering.kernels import Communication, UnitKernels, layer_kernels

NANO = sl.load_model("nemotron-3-nano-30b-a3b")
SUPER = sl.load_model("nemotron-3-super-120b-a12b")
NODE = sl.load_cluster("dgx-h100")
H, HEADS, P, GROUPS, N, CONV = 512, 16, 32, 4, 64, 4
MAMBA = sl.Model(
    name="mamba", layers=4, hidden=H, heads=8, ffn=1024, vocab=1024, seq=256, bias=False,
    mixer="mamba", has_mlp=False, state_heads=HEADS, state_head_size=P, state_groups=GROUPS,
    state_size=N, conv_size=CONV,
)  # fmt: skip
INNER, MIXED = HEADS * P, HEADS * P + 2 * GROUPS * N
MADE = INNER + MIXED + HEADS


def test_a_mixers_parameters_are_those_of_its_matrices_and_vectors():
    products = H * MADE + INNER * H
    vectors = (CONV + 1) * MIXED + 3 * HEADS + INNER
    assert MAMBA.layer_parameters["state space"] == products + vectors
    assert sum(MAMBA.layer_parameters.values()) == products + vectors + H  # a norm


def test_nemotron_3_has_the_published_numbers():
    """31.6 and 120.6 billion, of which 3.6 and 12.7 compute a token (NVIDIA's model cards)."""
    for model, whole, active in ((NANO, 31.6e9, 3.6e9), (SUPER, 120.6e9, 12.7e9)):
        assert model.parameters == pytest.approx(whole, rel=0.002)
        assert model.active_parameters == pytest.approx(active, rel=0.007)


def test_a_forwards_operations_are_nvidias():
    """`mamba_layer_flops` in megatron/training/training.py, whose inner width is twice the hidden one."""
    wide = replace(MAMBA, state_heads=2 * H // P)
    inner = 2 * H
    theirs = 2 * H * (2 * inner + 2 * GROUPS * N + 2 * H // P) + 7 * inner * N + 2 * inner * H
    assert sum(wide.layer_flops().values()) == theirs


@pytest.mark.parametrize("tp", [2, 4])
@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_ranks_have_a_part_of_each_product_and_vector(tp, sequence_parallel):
    plan = sl.Plan(tp=tp, sequence_parallel=sequence_parallel)
    whole = sum(MAMBA.layer_parameters.values()) - H
    assert stage_parameters(MAMBA, plan, 1) == whole / tp + H
    one, part = (layer_kernels(MAMBA, its) for its in (sl.Plan(), plan))

    def flops(kernels):
        return sum(its.flops for its in kernels.forward)

    assert tp * flops(part) == flops(one)
    scans = (
        [its.size_bytes for its in kernels.forward if its.operation is OperationKind.SCAN]
        for kernels in (one, part)
    )
    whole_bytes, part_bytes = map(sum, scans)
    assert tp * part_bytes == whole_bytes
    sent = [its.kind for its in part.forward if isinstance(its, Communication)]
    assert sent == (["all_gather", "reduce_scatter"] if sequence_parallel else ["all_reduce"])


def test_a_layer_keeps_what_autograd_and_the_scan_save():
    """The norm's input and result; gate, x, B, C and steps; the result before and after the gated norm."""
    kept = sl.layer_table(MAMBA, sl.Plan()).kept_bytes
    assert kept == 2 * MAMBA.seq * (2 * H + MADE + 2 * INNER)


def test_a_scan_moves_its_states_chunk_by_chunk():
    """Twice as large states, in as many chunks, are twice as many bytes of states and as many of products."""

    def scan(model):
        return next(its for its in layer_kernels(model, sl.Plan()).forward if its.name == "scan")

    tokens, chunk = MAMBA.seq, 128
    x, b = INNER, GROUPS * N
    states, products = INNER * N / chunk, GROUPS * chunk
    made = 2 * (x + b) + 4 * states, (4 + 2) * states, 2 * 2 * b + 4 * products
    read = 4 * products + 2 * (x + b + states) + 2 * x
    assert scan(MAMBA).size_bytes == tokens * (sum(made) + read)
    assert scan(MAMBA).grad_bytes > 2 * scan(MAMBA).size_bytes
    more = scan(replace(MAMBA, state_size=2 * N)).size_bytes - scan(MAMBA).size_bytes
    assert more == tokens * ((2 + 4 + 2 + 2 + 4) * states - 2 * states + 2 * 4 * b)


def test_a_step_is_the_sum_of_its_layers():
    """A layer of each kind adds its own time, wherever it stands."""
    plan = sl.Plan(dp=8, ep=8, dp_overlap=False, seq=1024)
    base = replace(NANO, layers=3, pattern=("mamba layer", "attention layer", "expert layer"))

    def compute_s(*pattern):
        model = replace(base, layers=len(pattern), pattern=pattern)
        return sl.predict(model, plan, NODE).waterfall_s.compute

    each = compute_s(*base.pattern)
    assert compute_s(*base.pattern[::-1]) == pytest.approx(each)
    twice = compute_s(*base.pattern, *base.pattern)
    ends = 2 * each - twice
    assert 0 < ends < each
    for kind in base.pattern:
        assert compute_s(*base.pattern, kind) > each


def test_a_module_of_a_model_with_one_part_in_a_layer_has_both():
    its = replace(SUPER, mtp_layers=1).of_kind("module")
    assert its.part_count == 2 and its.experts == 512 and its.mixer == "attention"


def test_latents_travel_to_experts_in_the_stead_of_hidden_states():
    plan = sl.Plan(dp=8, ep=8, zero=1)
    sent = []
    for model in (SUPER, replace(SUPER, expert_rank=0)):
        forward = UnitKernels(model, plan)["expert layer"].forward
        sent.append(next(its.size_bytes for its in forward if its.name == "dispatch"))
    assert sent[0] / sent[1] == SUPER.expert_rank / SUPER.hidden


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (sl.Plan(cp=2), "state spaces are not cut over sequences; give cp = 1"),
        (sl.Plan(tp=16), "tp = 16 does not divide .* state_groups = 8"),
        (sl.Plan(zero=3, library="torch", recompute="per-op"), "which products of .* computes again is not known"),
    ],
)  # fmt: skip
def test_what_is_not_simulated_is_said(plan, said):
    with pytest.raises(sl.InputError, match=said):
        plan.check(NANO)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"mixer": "none"}, "leave a layer empty"),
        ({"mixer": "mambo"}, "mixer = 'mambo', did you mean 'mamba'"),
        ({"state_size": 0}, "mixer = 'mamba' without state_size"),
        ({"state_groups": 3}, "state_groups = 3 do not divide state_heads = 16"),
        ({"bias": True}, "mixer = 'mamba' with biases"),
        ({"experts": 4, "experts_per_token": 1}, "experts = 4 with has_mlp = False"),
        ({"has_mlp": 1}, "has_mlp = 1: give True or False"),
        ({"expert_rank": 8}, "expert_rank = 8 without experts"),
    ],
)
def test_sizes_that_do_not_go_together_are_refused(fields, said):
    with pytest.raises(sl.InputError, match=said):
        replace(MAMBA, **fields)


def test_a_table_shows_each_kind_of_layer_of_a_plan_with_experts():
    plan = sl.Plan(dp=8, ep=8, tp=2, zero=1)
    operations = {
        kind: [row.operation for row in sl.layer_table(NANO, plan, kind).rows]
        for kind in NANO.counts
    }
    assert operations["mamba layer"] == ["norm 1", "in projection", "scan", "output", "residual 1"]
    assert "attention" in operations["attention layer"] and "router" in operations["expert layer"]


@pytest.mark.parametrize("letters", ["", "MX", None, "M" * 51])
def test_a_pattern_of_letters_says_each_layer(letters):
    from simlab.spec.model.hugging_face import sizes_of

    config = {"model_type": "nemotron_h", "num_hidden_layers": 52, "hidden_size": 2688, "num_attention_heads": 32,
              "intermediate_size": 1856, "vocab_size": 131072, "max_position_embeddings": 8192, "mamba_num_heads": 64,
              "mamba_head_dim": 64, "n_groups": 8, "ssm_state_size": 128, "conv_kernel": 4,
              "hybrid_override_pattern": letters}  # fmt: skip
    with pytest.raises(sl.InputError, match=r"give one of M \* - E for each of 52 layers"):
        sizes_of(config)

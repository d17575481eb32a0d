"""Memory of a step: what has to hold whatever the model, and what can be counted by hand. Against
torch: tests/realrun."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from simlab.errors import InputError
from simlab.lowering.build import program_of
from simlab.memory import CATEGORIES, SHARDING, STATES, data_parallel_memory
from simlab.memory.activations import layer_tensors
from simlab.memory.model_states import model_states
from simlab.memory.step import StepWalk
from simlab.spec.model import Model, load_model
from simlab.spec.plan import Plan

RECIPES = ("zero", "megatron", "fp32")
SHARDED = {"ddp": (), "zero1": ("optimizer",), "zero2": ("optimizer", "gradients"), "fsdp": STATES}
models = st.builds(
    lambda layers, heads, size, vocab, seq, tied: Model(
        layers=layers, hidden=heads * size, heads=heads, vocab=vocab, positions=seq, seq=seq, tied_head=tied
    ),
    st.integers(1, 5), st.integers(1, 4), st.integers(1, 24), st.integers(2, 300), st.integers(1, 40), st.booleans(),
)  # fmt: skip
options = st.fixed_dictionaries(
    {
        "microbatch_size": st.integers(1, 6),
        "reshard_after_forward": st.sampled_from([True, False, None]),
        "recipe": st.sampled_from(RECIPES),
        "gradient_as_bucket_view": st.booleans(),
        "bucket_bytes": st.integers(1, 100_000),
        "sums_in_place": st.booleans(),
        "optimizer_temporary_bytes": st.sampled_from([0, 4]),
    }
)
ranks = st.integers(1, 80)
shardings = st.sampled_from(sorted(SHARDING))


@given(models, ranks, shardings, options)
def test_nothing_is_negative_and_what_the_step_took_it_gives_back(model, dp, sharding, options):
    memory = data_parallel_memory(model, dp, sharding=sharding, **options)
    for moment in memory.moments:
        assert set(moment.held) == set(CATEGORIES)
        assert all(size >= -1e-6 for size in moment.held.values()), moment
        assert all(size <= memory.largest[category] for category, size in moment.held.items())
        assert (
            memory.rest["parameters"] == moment.held["parameters"]
            and memory.rest["optimizer"] == moment.held["optimizer"]
        )
        assert moment.total <= memory.peak.total
    end = memory.moments[-1].held  # gradients and the optimizer's scratch are freed after it
    transient = {
        category for category in CATEGORIES if category not in (*STATES, "inputs", "buckets")
    }
    assert {end[category] for category in transient - {"temporaries"}} == {0}
    assert {memory.rest[category] for category in transient} == {0}


def test_the_bucket_of_zero_2_is_as_large_as_asked_and_no_larger_than_all_gradients():
    model = Model(layers=2, hidden=16, heads=2, vocab=64, positions=8, seq=8)
    whole = 4 * model.parameters
    held = [
        data_parallel_memory(model, 4, microbatch_size=1, sharding="zero2", bucket_bytes=size)
        for size in (1000, whole, 10 * whole)
    ]
    assert [memory.rest["buckets"] for memory in held] == [1000, whole, whole]


@given(models, ranks, shardings, options)
def test_states_are_those_of_model_states_but_for_padding(model, dp, sharding, options):
    memory = data_parallel_memory(model, dp, sharding=sharding, **options)
    states = model_states(model.parameters, dp, zero=SHARDING[sharding], recipe=options["recipe"])
    step = memory.moments[-1].held  # when all three are there
    assert memory.moments[-1].op == "optimizer step"
    for category in STATES:
        expected = getattr(states, category)
        if sharding == "fsdp":  # each tensor is cut by rows: at most one row more
            rows = sum(row for row in _rows(model)) * expected / (model.parameters / dp)
            assert expected * (1 - 1e-12) <= step[category] < expected + rows
        else:
            assert step[category] == pytest.approx(expected, rel=1e-9)


def _rows(model):
    """Entries of a row of each tensor."""
    h, f = model.hidden, model.ffn
    return (
        [*[1] * 4, h, 1, h, 1, h, 1, f, 1] * model.layers
        + [h, h, 1, 1]
        + [h] * (not model.tied_head)
    )


@given(models, ranks, shardings, options)
def test_more_ranks_never_take_more_of_what_is_sharded_and_change_nothing_of_the_rest(
    model, dp, sharding, options
):
    one, other = (
        data_parallel_memory(model, n, sharding=sharding, **options) for n in (dp, 2 * dp)
    )
    for category in STATES:
        if category in SHARDED[sharding]:
            assert other.largest[category] <= one.largest[category] * (1 + 1e-12)
        else:
            assert other.largest[category] == one.largest[category]
    for category in ("activations", "inputs", "buckets"):
        assert other.largest[category] == one.largest[category]


@given(models, st.integers(1, 6), options)
def test_each_stage_holds_at_most_the_states_of_the_one_before(model, power, options):
    """Where rows divide by the ranks; else padding may cost more than sharding saves."""
    dp = 2**power
    even = Model(
        layers=model.layers,
        hidden=model.hidden * dp,
        heads=model.heads,
        vocab=model.vocab * dp,
        positions=model.seq * dp,
        seq=model.seq,
    )
    totals = []
    for sharding in ("fsdp", "zero2", "zero1", "ddp"):
        step = (
            data_parallel_memory(
                even, dp, sharding=sharding, **options | {"gradient_as_bucket_view": False}
            )
            .moments[-1]
            .held
        )
        totals.append(sum(step[category] for category in STATES))
    assert totals == sorted(totals)


@given(models, ranks, options)
def test_one_rank_gathers_without_buffers_and_keeping_layers_gathers_each_once(model, dp, options):
    kept, resharded = (
        data_parallel_memory(
            model, dp, sharding="fsdp", **options | {"reshard_after_forward": reshard}
        )
        for reshard in (False, True)
    )
    assert (kept.largest["all_gather"] == 0) == (dp == 1)
    assert resharded.largest["unsharded_parameters"] <= kept.largest["unsharded_parameters"]
    if model.layers == 1:
        assert resharded.largest["unsharded_parameters"] == kept.largest["unsharded_parameters"]
    if dp > 1 and not options["reshard_after_forward"]:
        assert all(
            moment.held["all_gather"] == 0
            for moment in kept.moments
            if moment.op.startswith("backward")
        )


def test_a_block_keeps_what_the_paper_counts_and_its_norms_statistics():
    model, sequences = load_model("gpt2"), 4
    memory = data_parallel_memory(model, microbatch_size=sequences, recipe="zero")
    first, second = (
        moment.held["activations"]
        for moment in memory.moments
        if moment.op in ("forward block 3", "forward block 4")
    )
    paper = model.layer_activations(sequences, flash=True, dropout=False)
    assert second - first == sum(paper.values()) + 2 * 2 * 4 * sequences * model.seq


def test_gpt2_in_fp32_by_hand():
    """124,439,808 parameters, 1 sequence of 1 token."""
    n, block = 124_439_808, 7_087_872
    rest, *_, step = (
        one := data_parallel_memory(load_model("gpt2"), microbatch_size=1, seq=1)
    ).moments
    assert (rest.held["parameters"], rest.held["optimizer"], rest.held["buckets"]) == (
        4 * n,
        8 * n,
        4 * n,
    )
    assert (
        step.held["gradients"] == 4 * n and step.held["temporaries"] == 4 * n and one.peak == step
    )
    assert one.peak.total == 24 * n + 2 * 8
    gathered = data_parallel_memory(
        load_model("gpt2"), 64, microbatch_size=1, seq=1, sharding="fsdp"
    )
    # the root's and one block's
    assert gathered.largest["unsharded_parameters"] > 4 * (n - 12 * block + block)
    # the root's buffer goes when the first block's is copied out
    assert gathered.largest["all_gather"] > 4 * (n - 12 * block) + 4 * block


def test_a_view_saves_one_copy_of_the_gradients_and_a_fused_optimizer_its_scratch():
    model = load_model("gpt2")
    plain, view, fused = (
        data_parallel_memory(model, microbatch_size=1, seq=1, **options).moments[-1].total
        for options in ({}, {"gradient_as_bucket_view": True}, {"optimizer_temporary_bytes": 0})
    )
    assert (plain - view, plain - fused) == (4 * model.parameters, 4 * model.parameters)


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("gpt2", {"dp": 0}, "dp = 0"),
        ("gpt2", {"microbatch_size": 1.5}, "microbatch_size = 1.5"),
        ("gpt2", {"seq": -1}, "seq = -1"),
        ("gpt2", {"seq": 1025}, "seq = 1025 is more than its 1024 positions"),
        ("gpt2", {"sharding": "zero4"}, "sharding 'zero4': give one of ddp, "),
        (
            "gpt2",
            {"recipe": "deepspeed"},
            "recipe 'deepspeed': give one that is defined for all stages: zero, megatron, fp32",
        ),
        ("llama-2-7b", {}, "llama-2-7b: memory is walked for GPTs"),
    ],
)
def test_what_cannot_be_walked_is_refused(name, arguments, says):
    with pytest.raises(InputError, match=says):
        data_parallel_memory(load_model(name), **{"microbatch_size": 1} | arguments)


@pytest.mark.parametrize(("library", "routed"), [("megatron", 1 / 2), ("torch", 1)])
def test_experts_inputs_are_kept_in_8_bits_by_transformer_engine_only(library, routed):
    """Its GroupedLinear saves what it has cast (grouped_linear.py). A router saves its input in 16 bits; shared
    experts' product keeps a copy in 8 bits besides. torch's experts are not cast."""
    model = Model(
        layers=2, hidden=64, heads=4, vocab=64, seq=32, experts=8, experts_per_token=2, expert_ffn=32, bias=False
    )  # fmt: skip
    fields = {"dp": 2, "tp": 2, "ep": 2, "etp": 1, "sequence_parallel": True, "library": library}
    eight, sixteen = (
        layer_tensors(model, Plan(precision=name, **fields), "none") for name in ("fp8", "bf16")
    )
    assert eight["routed"] == routed * sixteen["routed"]
    if library == "megatron":
        assert eight["mlp input"] == sixteen["mlp input"]
        shared = replace(model, shared_experts=1)
        assert layer_tensors(shared, Plan(precision="fp8", **fields), "none")["mlp input"] == (
            1.5 * sixteen["mlp input"]
        )
        # what a rank holds in a step is that much less
        plans = [Plan(precision=name, dp=2, ep=2) for name in ("fp8", "bf16")]
        forwards = [StepWalk(model, its, program_of(its), [2]).activations()[0][0] for its in plans]
        tensors = [sum(layer_tensors(model, its, "none").values()) for its in plans]
        assert forwards[1] - forwards[0] == pytest.approx(2 * (tensors[1] - tensors[0]))

"""A forward and a backward side by side (`Plan.ep_overlap`): what each hides of the other, and that
all ways to compute it agree."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

import simlab as sl
from simlab import validate
from simlab.cost.stage_times import StageCost
from simlab.lowering.build import program_of, side_by_side
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.pieces import BEGIN, COMPUTE, WAIT
from simlab.memory.activations import layer_activations_bytes
from simlab.memory.step import StepWalk
from simlab.program import Program
from simlab.schedules import generate

MODEL = sl.Model(
    name="m", layers=8, hidden=1024, heads=8, kv_heads=8, ffn=2048, gated_mlp=True, bias=False,
    vocab=4096, seq=2048, experts=8, experts_per_token=2, expert_ffn=1024, dense_layers=1,
)  # fmt: skip
NODE = sl.load_cluster("dgx-h100")
BACKWARD, FORWARD = ("layer", "B"), ("layer", "F")
PAIR = BACKWARD, FORWARD


def with_network(times):
    """The node with links so many times as slow."""
    slower = NODE.intra.bandwidth_bytes_per_s / times
    return replace(NODE, intra=replace(NODE.intra, bandwidth_bytes_per_s=slower))


# the order
# ------------------------------------------------------------------------------------------------


def test_each_all_to_all_runs_beside_what_the_other_microbatch_computes():
    """The order of Megatron-LM's TransformerLayerSchedulePlan.run: combine of the backward beside
    attention, dispatch of the forward beside the experts' gradients, dispatch of the backward beside
    the experts, combine of the forward beside the attention's gradients."""
    plan = sl.Plan(dp=8, ep=8, microbatches=3, ep_overlap=True)
    inside = [
        its
        for its in rank_instructions(MODEL, plan, program_of(plan))
        if its.in_unit and its.halves == PAIR and (its.op, its.unit) in (("0F1", "layer 1"), ("0B0", "layer 6"))
    ]  # fmt: skip
    said = [(i.action, i.op_kind, i.name.removeprefix(f"{i.unit} ")) for i in inside]
    computed = {its[1]: [] for its in said}
    for at, (action, kind, _) in enumerate(said):
        if action == COMPUTE:
            computed[kind].append(inside[at].kernels)
    order = [(action, kind, "" if action == COMPUTE else name) for action, kind, name in said]
    assert order == [
        (COMPUTE, "B", ""), (BEGIN, "B", "combine grad"),
        (COMPUTE, "F", ""), (BEGIN, "F", "dispatch"),
        (WAIT, "B", "combine grad"), (COMPUTE, "B", ""), (BEGIN, "B", "dispatch grad"),
        (WAIT, "F", "dispatch"), (COMPUTE, "F", ""), (BEGIN, "F", "combine"),
        (WAIT, "B", "dispatch grad"), (COMPUTE, "B", ""),
        (WAIT, "F", "combine"), (COMPUTE, "F", ""),
    ]  # fmt: skip
    # each computes all that it computes alone
    for kind, each in computed.items():
        alone = sum(len(kernels) for kernels in each)
        other = replace(plan, ep_overlap=False)
        whole = [
            len(i.kernels)
            for i in rank_instructions(MODEL, other, program_of(other))
            if i.in_unit and i.action == COMPUTE and i.op_kind == kind and i.unit == "layer 1" and i.microbatch == 0
        ]  # fmt: skip
        assert alone == sum(whole)


@pytest.mark.parametrize(("name", "ranks", "options"), [
    ("interleaved-1f1b", 4, {"chunks": 2}), ("interleaved-1f1b", 2, {"chunks": 3}), ("eager-1f1b", 4, {}), ("1f1b", 1, {}),
])  # fmt: skip
def test_a_rank_warms_up_with_one_forward_more_and_pairs_the_rest(name, ranks, options):
    """As Megatron-LM's get_pp_rank_microbatches has it. A pair's microbatches differ."""
    alone = generate(name, ranks, 2 * ranks + 2 * (ranks == 1), **options)
    both = side_by_side(alone)
    validate(both)
    for ops, its in zip(alone.ranks, both.ranks):
        assert sorted(ops) == sorted(its)
        warmup = next(at for at, op in enumerate(ops) if op.kind == "B") - 1
        first = next(at for at, op in enumerate(its) if op in both.paired)
        assert first == warmup + 1
        forwards = [op for op in its if op.kind == "F"]
        assert [op for op in forwards if op in both.paired] == forwards[warmup + 1 :]


def test_dualpipe_v_keeps_its_own_pairs_and_without_overlap_there_are_none():
    plan = sl.Plan(pp=2, dp=2, ep=2, microbatches=4, schedule="dualpipe-v", ep_overlap=True)
    assert program_of(plan).paired == generate("dualpipe-v", 2, 4).paired
    assert not program_of(replace(plan, ep_overlap=False)).paired


# the time
# ------------------------------------------------------------------------------------------------


def two_streams(parts, backward, forward):
    """Seconds of two ops that take turns at each all-to-all: what is computed goes on one stream, all
    to-alls on another. parts: {BACKWARD or FORWARD: [computed, all-to-all, computed ...] in seconds}."""
    computing_s = sending_s = 0.0
    there_s = {backward: 0.0, forward: 0.0}
    turns = [(which, at) for at in range(3) for which in (backward, forward)]
    for which, at in turns:
        computing_s = max(computing_s, there_s[which]) + parts[which][2 * at]
        if at < 2:
            sending_s = max(sending_s, computing_s) + parts[which][2 * at + 1]
            there_s[which] = sending_s
    return computing_s


@pytest.mark.parametrize("times", [1, 4, 16, 64, 256])
def test_a_pair_of_layers_takes_what_two_streams_take(times, monkeypatch):
    """Where all-to-alls slow no kernel, and the host is never late."""
    monkeypatch.setattr("simlab.cost.walk.SLOWING", ())
    plan = sl.Plan(dp=8, ep=8, microbatches=3, microbatch_size=4, ep_overlap=True)
    cluster = replace(with_network(times), host_op_s=0.0)
    cost = StageCost(MODEL, plan, cluster)
    monkeypatch.setattr(StageCost, "computing", lambda self, kernels: alone(self, kernels))
    parts = {}
    for half in PAIR:
        pieces, seconds = cost._pieces_of((half,))
        parts[half] = [its.alone_s for p, its in zip(pieces, seconds) if p.action != WAIT]
        assert len(parts[half]) == 5
    assert cost.parts_of(PAIR).total == pytest.approx(two_streams(parts, *PAIR), rel=1e-12)


def alone(cost, kernels):
    """`Seconds` of kernels that nothing slows."""
    from simlab.cost.walk import Seconds

    seconds = sum(cost.kernel_s(kernel) for kernel in kernels)
    return Seconds(seconds, seconds)


@given(
    times=st.floats(0.01, 1000),
    size=st.integers(1, 16),
    ep=st.sampled_from([2, 4, 8]),
    zero=st.integers(0, 2),
    dispatcher=st.sampled_from(["all-to-all", "once-a-node"]),
)
def test_side_by_side_is_never_slower_than_one_after_the_other(times, size, ep, zero, dispatcher):
    """But for what all-to-alls slow the kernels beside them by, so both are held against the time of
    kernels that are slowed throughout."""
    plan = sl.Plan(
        dp=8, ep=ep, zero=zero, microbatches=4, microbatch_size=size, dispatcher=dispatcher, ep_overlap=True
    )  # fmt: skip
    cost = StageCost(MODEL, plan, with_network(times))
    both, each = cost.parts_of(PAIR), [cost.parts_of((half,)) for half in PAIR]
    assert both.ep <= sum(its.ep for its in each) * (1 + 1e-9)
    slowed_s = sum(
        s.beside_s for half in PAIR for p, s in zip(*cost._pieces_of((half,))) if p.action == COMPUTE
    )  # fmt: skip
    assert both.total <= slowed_s + sum(its.ep + its.host for its in each) + 1e-9
    assert both.total >= max(sum(its.compute for its in each), both.ep)


def test_a_step_is_shorter_by_the_all_to_alls_that_it_hides():
    plan = sl.Plan(dp=8, ep=8, zero=1, microbatches=16, microbatch_size=4)
    apart, beside = (
        sl.predict(MODEL, replace(plan, ep_overlap=on), with_network(8)) for on in (False, True)
    )
    assert beside.waterfall_s.ep < 0.5 * apart.waterfall_s.ep
    assert beside.step_s < apart.step_s


@pytest.mark.parametrize("plan", [
    {"dp": 8}, {"dp": 4, "pp": 2, "schedule": "interleaved-1f1b"}, {"dp": 4, "pp": 2, "schedule": "eager-1f1b"},
    {"dp": 4, "pp": 2, "schedule": "dualpipe-v"},
])  # fmt: skip
def test_a_rank_holds_one_layer_more_and_no_microbatch(plan):
    """A forward adds a layer when the backward beside it frees one. Of DualPipe-V's pairs, whose forward
    comes first, that is less than one after the other."""
    plan = sl.Plan(ep=4, microbatches=8, microbatch_size=4, stage_layers="even", **plan)
    cluster = replace(NODE, nodes=1)
    apart, beside = (
        sl.predict(MODEL, replace(plan, ep_overlap=on), cluster).memory_bytes["activations"] for on in (False, True)
    )  # fmt: skip
    layer = layer_activations_bytes(MODEL, plan, "none")
    own = MODEL.layers / plan.pp
    least = -own * layer if plan.schedule == "dualpipe-v" else -1
    assert least <= beside - apart <= 1.25 * layer


@pytest.mark.parametrize("library", ["megatron", "nanotron", "torch"])
@pytest.mark.parametrize("schedule", ["eager-1f1b", "interleaved-1f1b", "dualpipe"])
def test_what_pairs_hold_does_not_grow_with_their_number(library, schedule):
    plan = sl.Plan(
        dp=2, ep=2, pp=2, microbatches=8, schedule=schedule, library=library, ep_overlap=True
    )
    held = []
    for microbatches in (8, 32):
        its = replace(plan, microbatches=microbatches)
        walk = StepWalk(MODEL, its, program_of(its), its.layers_of_stages(MODEL.layers))
        assert walk.moments(0)[-2].held["activations"] == pytest.approx(0, abs=1)
        held.append(walk.peak(0))
    assert held[0] == pytest.approx(held[1])


# walked and played
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("plan", [
    {"dp": 8}, {"dp": 8, "zero": 2}, {"dp": 8, "zero": 1, "bucket_bytes": 2**20}, {"dp": 8, "dp_overlap": False},
    {"dp": 4, "tp": 2, "sequence_parallel": True, "etp": 1, "zero": 1},
    {"dp": 8, "dispatcher": "once-a-node", "microbatch_size": 4},
])  # fmt: skip
def test_walked_is_played_without_a_pipeline(plan):
    plan = sl.Plan(ep=8, microbatches=5, ep_overlap=True, **plan)
    for cluster in (NODE, replace(NODE, gpus_per_node=4, nics_per_node=4, nodes=2)):
        walked = sl.predict(MODEL, plan, cluster).step_s
        assert sl.layer_trace(MODEL, plan, cluster).whole_step_s == pytest.approx(walked, rel=1e-9)
        every = sl.layer_trace(MODEL, plan, cluster, collapsed=False)
        assert every.whole_step_s == pytest.approx(walked, rel=1e-9)


@pytest.mark.parametrize(("schedule", "pp", "chunks"), [
    ("interleaved-1f1b", 2, 2), ("interleaved-1f1b", 4, 2), ("eager-1f1b", 2, None), ("eager-1f1b", 4, None), ("dualpipe-v", 2, None),
])  # fmt: skip
def test_walked_is_played_in_a_pipeline_but_for_latencies(schedule, pp, chunks):
    """The two messages of a pair may take the same link one after the other. Op by op the second one's
    latency is beside the first one's bytes; layer by layer it begins when the first one is there."""
    plan = sl.Plan(
        dp=2, pp=pp, ep=2, microbatches=4 * pp, schedule=schedule, chunks=chunks, ep_overlap=True, stage_layers="even"
    )  # fmt: skip
    cluster = replace(NODE, gpus_per_node=2, nics_per_node=2, nodes=pp)
    step = sl.predict(MODEL, plan, cluster)
    played = sl.layer_trace(MODEL, plan, cluster).whole_step_s
    latency_s = StageCost(MODEL, plan, cluster).message_s()[0]
    pairs = len(program_of(plan).paired)
    assert -1e-9 <= played - step.step_s <= pairs * latency_s


# what is refused
# ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("fields", "says"), [
    ({"pp": 2}, "ep_overlap with schedule = '1f1b': no forward runs side by side .* give schedule = 'eager-1f1b', "),
    ({"schedule": "gpipe"}, "ep_overlap with schedule = 'gpipe'"), ({"zero": 3}, "ep_overlap with zero = 3: .*give zero = 0, 1 or 2"),
    ({"offload": "activations"}, "ep_overlap with offload = 'activations'"), ({"recompute": "full"}, "ep_overlap with recompute = 'full'"),
    ({"ep": 1}, "ep_overlap = True has no effect with ep = 1: leave it out, or give ep of 2 or more"),
    ({"microbatches": 1}, "ep_overlap = True has no effect with microbatches = 1"),
])  # fmt: skip
def test_what_cannot_go_side_by_side_is_refused(fields, says):
    with pytest.raises(sl.InputError, match=f"^{says}"):
        sl.Plan(**{"dp": 4, "ep": 2, "ep_overlap": True, "microbatches": 4} | fields)


def test_of_programs_without_1f1b_none_is_paired():
    program = generate("gpipe", 2, 4)
    assert side_by_side(program) == Program(program.ranks, program.name)


@pytest.mark.parametrize(
    "fields, slowed", [({}, True), ({"precision": "fp8"}, False), ({"library": "torch"}, False)]
)
def test_tensor_parallelism_in_pieces_slows_products_where_multiprocessors_reduce(fields, slowed):
    """Copy engines gather, and in 8 bits and in torch they scatter, too; see `slows`."""
    plan = sl.Plan(tp=2, sequence_parallel=True, tp_overlap="pipelined", **fields)
    cost = StageCost(DENSE, plan, replace(sl.load_cluster("dgx-h100", nodes=1), host_op_s=0.0))
    pieces, seconds = cost._pieces_of((("layer", "F"),))
    alone_s = sum(its.alone_s for p, its in zip(pieces, seconds) if p.action == COMPUTE)
    walked_s = cost.unit_parts("layer", "F").compute
    assert walked_s > 1.01 * alone_s if slowed else walked_s == pytest.approx(alone_s)


DENSE = sl.Model(layers=2, hidden=4096, heads=32, ffn=16384, vocab=32000, positions=0, seq=4096)

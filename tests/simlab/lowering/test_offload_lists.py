"""What lists copy between a GPU and its host: how much, how far ahead, and what waits for it."""

from dataclasses import replace
from itertools import groupby, pairwise

import pytest

import simlab as sl
from simlab.lowering.build import program_of
from simlab.lowering.context import ring_work
from simlab.lowering.instructions import BEGIN, COMPUTE, WAIT, rank_instructions

HIDDEN, SEQ, VOCAB = 64, 32, 1000
MODEL = sl.Model(
    layers=6, hidden=HIDDEN, heads=8, vocab=VOCAB, positions=SEQ, seq=SEQ, tied_head=False
)
UNITS = [
    ["embedding", "layer 0", "layer 1", "layer 2"],
    ["layer 3", "layer 4", "layer 5", "head"],
]
LAYER = 12 * HIDDEN**2 + 13 * HIDDEN
PARAMETERS = {f"layer {n}": LAYER for n in range(6)} | {
    "embedding": (VOCAB + SEQ) * HIDDEN,
    "head": VOCAB * HIDDEN + 2 * HIDDEN,
}
"""Of a GPT with biases: 12 h^2 + 13 h in a layer."""


def ops_of(plan, rank):
    """[(op, [instructions of the op])] of a rank's list: what is computed, copied and gathered."""
    its = [
        i
        for i in rank_instructions(MODEL, plan, program_of(plan), rank)
        if i.op and (i.action == COMPUTE or i.kind in ("copy", "all_gather"))
    ]
    return [(op, list(group)) for op, group in groupby(its, key=lambda i: i.op)]


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize(
    "zero, prefetch", [(0, None), (1, None), (3, 0), (3, 1), (3, 2), (3, 9)], ids=str
)
def test_parameters_are_fetched_once_for_each_op_a_unit_before_they_are_gathered_or_used(
    schedule, zero, prefetch
):
    """Of ZeRO-3 a GPU fetches its shard. What is used is there; at most one unit more has been
    asked for than is used, or gathered ahead, at that moment."""
    fields = {"zero": zero} | ({} if prefetch is None else {"prefetch": prefetch})
    plan = sl.Plan(dp=4, pp=2, microbatches=3, schedule=schedule, offload="parameters", **fields)
    ahead, shards = prefetch or 0, 4 if zero == 3 else 1
    for rank in (0, 1):
        for op, its in ops_of(plan, rank):
            order = UNITS[rank] if "F" in op else UNITS[rank][::-1]
            copied = [i for i in its if i.kind == "copy"]
            if "W" in op:
                assert not copied
                continue
            assert {i.dimension for i in copied} == {"offload in"}
            begun, arrived = [], []
            for i in its:
                if i.kind == "copy":
                    (begun if i.action == BEGIN else arrived).append(i.unit)
                    assert i.name == f"{i.unit} parameters in"
                    assert i.size_bytes == pytest.approx(2 * PARAMETERS[i.unit] / shards)
                elif i.kind == "all_gather" and i.action == BEGIN and zero == 3:
                    assert arrived[-1] == i.unit
                elif i.action == COMPUTE:
                    at = order.index(i.unit)
                    assert arrived == order[: at + 1 + ahead]
                    assert begun == order[: at + 2 + ahead]
            assert begun == arrived == order


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
def test_layers_activations_leave_after_their_forward_and_are_back_for_their_backward(schedule):
    """The inputs of recomputed layers, 16 bits each. An op ends when what it copies out has left."""
    plan = sl.Plan(
        pp=2, microbatches=3, microbatch_size=2, recompute="full", offload="activations",
        schedule=schedule,
    )  # fmt: skip
    for rank in (0, 1):
        layers = [name for name in UNITS[rank] if name.startswith("layer")]
        for op, its in ops_of(plan, rank):
            copied = [i for i in its if i.kind == "copy"]
            assert all(i.size_bytes == 2 * 2 * SEQ * HIDDEN for i in copied)
            names = [(i.action, i.dimension, i.name) for i in copied]
            if "F" in op:
                out = [("offload out", f"{layer} activations out") for layer in layers]
                assert names == [(BEGIN, *o) for o in out] + [(WAIT, *o) for o in out]
                for before, i in pairwise(its):
                    if i.kind == "copy" and i.action == BEGIN:
                        assert before.action == COMPUTE and before.unit == i.unit
                ends = [i.action for i in its[-len(layers) :]]
                assert ends == [WAIT] * len(layers)
            elif "W" in op:
                assert not names
            else:
                coming = [("offload in", f"{layer} activations in") for layer in layers[::-1]]
                assert [n[1:] for n in names if n[0] == BEGIN] == coming
                for layer in layers:
                    computed = [n for n, i in enumerate(its) if i.unit == layer and i.in_unit]
                    awaited = its.index(
                        next(i for i in its if i.action == WAIT and i.unit == layer)
                    )
                    assert awaited < computed[0]


def test_a_dense_layer_of_a_model_with_experts_leaves_its_own_activations():
    """Per token 16 h bytes of norms, their inputs, q, k, v and attention's result, and 4 of each head.
    A gated MLP keeps 6 bytes of each of its numbers; experts also keep the two copies of a token."""
    heads, ffn, expert = 8, 192, 48
    model = replace(
        MODEL, bias=False, positions=0, gated_mlp=True, ffn=ffn, layers=2,
        experts=4, experts_per_token=2, expert_ffn=expert, dense_layers=1,
    )  # fmt: skip
    plan = sl.Plan(offload="activations")
    its = rank_instructions(model, plan, program_of(plan))
    left = {i.unit: i.size_bytes / SEQ for i in its if i.dimension == "offload out"}
    both = 16 * HIDDEN + 4 * heads
    assert left == {
        "layer 0": both + 6 * ffn,
        "layer 1": both + 2 * 6 * expert + 2 * 2 * HIDDEN,
    }


@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
@pytest.mark.parametrize("zero, shards", [(0, 1), (1, 4), (3, 4)])
def test_gradients_go_to_the_hosts_optimizer_and_parameters_come_back_unless_they_live_there(
    offload, zero, shards
):
    plan = sl.Plan(dp=4, zero=zero, microbatches=2, offload=offload)
    (its,) = [rank_instructions(MODEL, plan, program_of(plan))]
    last = [i for i in its if not i.op][-5:]
    own = sum(PARAMETERS.values()) / shards
    copied = [(i.name, i.dimension, i.size_bytes) for i in last if i.action == BEGIN and not i.unit]
    back = [("parameters in", "offload in", pytest.approx(2 * own))]
    out = [("gradients out", "offload out", pytest.approx(4 * own))]
    assert [c for c in copied if "norm" not in c[0]] == out + back * (offload == "optimizer")
    order = [(i.name, i.action) for i in last if "norm" not in i.name and not i.unit]
    expected = [("gradients out", BEGIN), ("gradients out", WAIT), ("optimizer", COMPUTE)]
    if offload == "optimizer":
        expected += [("parameters in", BEGIN), ("parameters in", WAIT)]
    assert order == expected


@pytest.mark.parametrize("precision, state_bytes", [("bf16", 12), ("fp32", 8)])
def test_the_states_come_from_drives_for_the_update_and_go_back(precision, state_bytes):
    """Two moments in fp32, and beside 16-bit parameters a copy of them in fp32."""
    plan = sl.Plan(dp=4, zero=1, offload="optimizer", offload_to="nvme", precision=precision)
    last = [i for i in rank_instructions(MODEL, plan, program_of(plan)) if not i.op and not i.unit]
    order = [i.name for i in last if i.action != WAIT and "norm" not in i.name]
    assert order == ["gradients out", "states in", "optimizer", "states out", "parameters in"]
    states = [i for i in last if i.dimension == "drive"]
    assert [i.action for i in states] == [BEGIN, WAIT] * 2
    own = sum(PARAMETERS.values()) / 4
    assert [i.size_bytes for i in states] == pytest.approx([state_bytes * own] * 4)
    assert {i.kind for i in states} == {"copy"}


@pytest.mark.parametrize("cp", [0, 2.5, "2"])
def test_the_work_of_a_ring_is_of_some_whole_number_of_ranks(cp):
    with pytest.raises(sl.InputError, match=f"cp = {cp!r}: give a whole number"):
        ring_work(cp)

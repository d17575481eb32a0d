"""Predicted steps against closed forms: sums between replicas of shards, parameters that stay
gathered, the host as the limit."""

from dataclasses import replace
from math import inf

import pytest

import simlab as sl
from simlab.collectives.nccl import IN_TRAINING
from simlab.layer.parameters import stage_parameters
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.pieces import BEGIN

MODEL = sl.Model(layers=4, hidden=512, heads=8, vocab=4096, positions=256, seq=256)
A100 = sl.load_cluster("dgx-a100", nodes=16)
BYTES_PER_S = 1e9
BYTES_ONLY = {"base_s": 0.0, "hop_s": 0.0, "message_s": 0.0, "protocols": ("Simple",)}
ONE_NIC = replace(
    A100,
    intra=replace(A100.intra, copy_bytes_per_s=inf, **BYTES_ONLY),
    inter=replace(
        A100.inter, bandwidth_bytes_per_s=BYTES_PER_S, efficiency=1.0, oversubscription=1.0,
        message_efficiency=1.0, **BYTES_ONLY,
    ),
    gpus_per_node=1, nics_per_node=1,
)  # fmt: skip
"""GPUs that have a node and a NIC for themselves, whose links take time for bytes alone."""

PARAMETERS = stage_parameters(MODEL, sl.Plan(), 4, first=True, last=True)


def apart(plan, cluster=ONE_NIC):
    """A predicted step on as many such GPUs as `plan` has."""
    return sl.predict(MODEL, plan, replace(cluster, nodes=plan.gpus))


def sent_s(size_bytes):
    return IN_TRAINING * size_bytes / BYTES_PER_S


@pytest.mark.parametrize("shards, replicas", [(2, 2), (2, 4), (4, 2), (8, 1)])
@pytest.mark.parametrize("gradient_bytes", [2, 4])
def test_hsdp_scatters_within_shards_sums_each_between_replicas_and_gathers(
    shards, replicas, gradient_bytes
):
    """A ring's bytes over a NIC: (s-1)/s of the gradients, 2 (r-1)/r of an s-th of them, (s-1)/s of
    the parameters in 16 bits. The optimizer updates an s-th."""
    fields = {"zero": 1, "gradient_bytes": gradient_bytes, "library": "megatron"}
    found = apart(sl.Plan(dp=shards * replicas, hybrid=shards, dp_overlap=False, **fields))
    gradients = gradient_bytes * PARAMETERS
    within = (shards - 1) / shards
    between = 2 * (replicas - 1) / replicas / shards
    assert found.exposed_s["dp"] == pytest.approx(
        sent_s((within + between) * gradients + within * 2 * PARAMETERS), rel=1e-6
    )


@pytest.mark.parametrize("zero", [0, 1])
def test_without_replicas_all_is_reduced_over_all(zero):
    found = apart(sl.Plan(dp=8, zero=zero, dp_overlap=False))
    passes = 2 * 4 if zero == 0 else 4 + 2
    assert found.exposed_s["dp"] == pytest.approx(sent_s(7 / 8 * passes * PARAMETERS), rel=1e-6)


@pytest.mark.parametrize("microbatches", [1, 3])
@pytest.mark.parametrize("dp", [2, 8])
def test_parameters_that_stay_gathered_save_one_gathering_of_all_in_each_microbatch(
    dp, microbatches
):
    """In bytes that a GPU sends: (n-1)/n of the parameters in 16 bits."""
    plan = sl.Plan(dp=dp, zero=3, microbatches=microbatches)
    sent = [sl.traffic(MODEL, replace(plan, reshard=reshard))[0].dp for reshard in (True, False)]
    part = (dp - 1) / dp
    assert sent[0] - sent[1] == pytest.approx(microbatches * part * 2 * PARAMETERS)
    assert sent[1] == pytest.approx(microbatches * part * (2 + 4) * PARAMETERS)


def test_parameters_that_stay_gathered_make_a_step_shorter_by_their_gathering_where_that_is_exposed():
    """On a slow link everything but the bytes is hidden: a backward that gathers nothing saves
    their time but for what its own computing could hide of it."""
    slow = replace(ONE_NIC, inter=replace(ONE_NIC.inter, bandwidth_bytes_per_s=1e7))
    plan = sl.Plan(dp=4, zero=3, prefetch=1)
    again, once = (apart(replace(plan, reshard=kept), slow) for kept in (True, False))
    gathered_s = IN_TRAINING * 3 / 4 * 2 * PARAMETERS / 1e7
    assert again.step_s - once.step_s == pytest.approx(gathered_s, rel=0.02)


# the host
# ------------------------------------------------------------------------------------------

SLOW_HOST_S = 1e-3


def hosted(plan, layers=4, host_op_s=SLOW_HOST_S):
    """A step whose GPUs wait for their host all the time: it takes a millisecond for an op."""
    node = replace(A100, host_op_s=host_op_s, nodes=1, gpus_per_node=plan.gpus)
    return sl.predict(replace(MODEL, layers=layers), plan, node)


def test_the_hosts_time_of_a_split_backward_is_that_of_the_whole_one():
    """All ops are dispatched, in whichever op of the program they are."""
    whole, split = (
        hosted(sl.Plan(pp=2, microbatches=4, schedule=name)) for name in ("1f1b", "zb-h1")
    )
    for one, two in zip(whole.stages, split.stages):
        backward = one.backward
        parts = (two.of("I"), two.of("W"))
        assert min(part.total for part in parts) > 0.2 * backward.total
        assert sum(part.total for part in parts) == pytest.approx(backward.total, rel=1e-6)
        assert all(part.host > 0.9 * part.total for part in parts)


def test_more_layers_cost_the_host_as_many_ops_more_each_way():
    """57 and 90 ops of a layer that torch's dispatcher counted, 30 and 50 with fused kernels."""
    for plan, ops in (
        (sl.Plan(attention="unfused", dropout=False), (57, 90)),
        (sl.Plan(fused=False), (57, 90)),
        (sl.Plan(), (30, 50)),
    ):
        few, many = (hosted(plan, layers).stages[0] for layers in (2, 5))
        more = many.forward.total - few.forward.total, many.backward.total - few.backward.total
        assert more == pytest.approx([3 * count * SLOW_HOST_S for count in ops], rel=1e-6)


@pytest.mark.parametrize("precision, ops", [("bf16", 1), ("fp32", 1), ("fp16", 4)])
@pytest.mark.parametrize("pp, chunks", [(1, None), (2, None), (2, 2)])
def test_an_optimizer_whose_host_is_the_limit_takes_its_ops_on_the_rank_with_most_layers(
    precision, ops, pp, chunks
):
    """As many tensors as torch's own layer has; with a loss scaler each is copied, checked, cleared
    and updated one by one."""
    torch = pytest.importorskip("torch")
    tensors = len(list(torch.nn.TransformerEncoderLayer(64, 2).parameters()))
    schedule = {"schedule": "interleaved-1f1b", "chunks": chunks} if chunks else {}
    plan = sl.Plan(pp=pp, microbatches=4, precision=precision, **schedule)
    found = hosted(plan)
    layers = 4 // pp
    assert found.optimizer_s == pytest.approx(layers * tensors * ops * SLOW_HOST_S, rel=0.01)


def test_an_optimizer_whose_memory_is_the_limit_takes_its_bytes():
    """44 for each parameter in bf16 (see `OPTIMIZER_BYTES`), at what the memory reaches."""
    four, eight = (hosted(sl.Plan(), layers, host_op_s=0.0).optimizer_s for layers in (4, 8))
    reached = 44 * 4 * stage_parameters(MODEL, sl.Plan(), 1) / (eight - four)
    assert 0.6 < reached / A100.gpu.memory_bandwidth_bytes_per_s <= 1


@pytest.mark.parametrize("recompute, again", [("none", 0), ("selective", 0), ("full", 1)])
def test_the_host_dispatches_a_layers_forward_again_where_all_of_it_is_recomputed(recompute, again):
    """Also of the ends of the model, which nothing is recomputed of, a backward is as long as ever."""
    plan = sl.Plan(recompute=recompute)
    few, many = (hosted(plan, layers).stages[0].backward.total for layers in (2, 5))
    assert many - few == pytest.approx(3 * (50 + again * 30) * SLOW_HOST_S, rel=1e-6)
    ends_s = few - (many - few) / 3 * 2
    plain = [hosted(sl.Plan(), layers).stages[0].backward.total for layers in (2, 5)]
    assert ends_s == pytest.approx(plain[0] - (plain[1] - plain[0]) / 3 * 2, rel=1e-6)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_a_collective_is_three_ops_for_the_host(sequence_parallel):
    """The call and a wait of each of two streams; so many more than without tensor parallelism, of
    the collectives that a list has in a layer for every microbatch: not those of norms' gradients,
    which are summed once a step."""
    plan = sl.Plan(tp=2, sequence_parallel=sequence_parallel)
    begun = [
        (its.op_kind, its.unit)
        for its in rank_instructions(MODEL, plan, sl.generate("1f1b", 1, 1))
        if its.action == BEGIN and its.dimension == "tp" and "partial" not in its.name
    ]
    few, many = (hosted(plan, layers).stages[0] for layers in (2, 5))
    for kind, ops in (("F", 30), ("B", 50)):
        in_a_layer = begun.count((kind, "layer 1"))
        assert in_a_layer >= 2
        more_s = many.of(kind).total - few.of(kind).total
        assert more_s == pytest.approx(3 * (ops + 3 * in_a_layer) * SLOW_HOST_S, rel=1e-6)

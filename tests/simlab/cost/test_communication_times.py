"""What communication takes under a plan, against closed forms of bytes over bandwidth: on links
that take time for bytes alone."""

from dataclasses import replace
from math import inf

import pytest

import simlab as sl
from simlab.collectives.group_shape import GroupShape
from simlab.cost.communication_times import HOST_OP_S, CommunicationTimes
from simlab.cost.groups import host_sharers
from simlab.lowering.instructions import Instruction, rank_instructions
from simlab.lowering.pieces import BEGIN

MODEL = sl.Model(layers=4, hidden=512, heads=8, vocab=4096, positions=256, seq=256)
BYTES_ONLY = {
    "base_s": 0.0, "hop_s": 0.0, "message_s": 0.0, "protocols": ("Simple",), "efficiency": 1.0,
    "message_efficiency": 1.0,
}  # fmt: skip
A100 = sl.load_cluster("dgx-a100", nodes=16)
WITHIN, BETWEEN = 1e10, 1e9  # of one NIC; a collective over whole nodes uses all four
CLUSTER = replace(
    A100,
    intra=replace(A100.intra, bandwidth_bytes_per_s=WITHIN, copy_bytes_per_s=inf, **BYTES_ONLY),
    inter=replace(A100.inter, bandwidth_bytes_per_s=BETWEEN, oversubscription=1.0, **BYTES_ONLY),
    gpus_per_node=4,
    nics_per_node=4,
)


def times_of(plan, slower=1.0, **changes):
    return CommunicationTimes(MODEL, plan, replace(CLUSTER, **changes), slower=slower)


def begun(plan, **fields):
    """The communications of a step's list with these fields."""
    program = sl.generate(plan.schedule, plan.pp, plan.microbatches)
    return [
        its
        for its in rank_instructions(MODEL, plan, program)
        if its.action == BEGIN and all(getattr(its, name) == at for name, at in fields.items())
    ]


# ZeRO-3 in its first form
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("recompute", ["none", "full"])
@pytest.mark.parametrize("op_kind", ["F", "B"])
def test_without_prefetch_a_layer_is_gathered_matrix_by_matrix_and_again_to_be_recomputed(
    op_kind, recompute
):
    """Four matrices of a fourth of the bytes each, and for each of them a copy from each rank for
    the host to launch; a backward with recomputation does it twice."""
    ranks = 8
    plan = sl.Plan(dp=ranks, zero=3, prefetch=0, recompute=recompute)
    times = times_of(plan)
    gather, *_ = begun(plan, unit_kind="layer", kind="all_gather", op_kind=op_kind, dimension="dp")
    twice = 2 if recompute == "full" and op_kind == "B" else 1
    sizes = []

    def seconds_of(kind, size_bytes, dimension):
        sizes.append(size_bytes)
        assert (kind, dimension) == ("all_gather", "dp")
        return 7.0

    assert times.timed(gather, seconds_of) == pytest.approx(
        twice * 4 * (7.0 + ranks * HOST_OP_S), rel=1e-12
    )
    assert set(sizes) == {gather.size_bytes / 4}
    assert times.instruction_s(gather) == pytest.approx(
        twice * (7 / 8 * gather.size_bytes / (4 * BETWEEN) + 4 * ranks * HOST_OP_S)
    )


@pytest.mark.parametrize("unit", ["embedding", "head"])
def test_without_prefetch_an_end_of_the_model_is_one_matrix(unit):
    plan = sl.Plan(dp=8, zero=3, prefetch=0, recompute="full")
    times = times_of(plan, host_op_s=1e-3)
    for its in begun(plan, unit_kind=unit, dimension="dp"):
        assert its.kind in ("all_gather", "reduce_scatter")
        assert times.timed(its, lambda *its: its[1]) == pytest.approx(its.size_bytes + 8 * 1e-3)


def test_gradients_of_a_layer_are_scattered_once_whether_it_is_recomputed_or_not():
    for recompute in ("none", "full"):
        plan = sl.Plan(dp=8, zero=3, prefetch=0, recompute=recompute)
        scatter, *_ = begun(plan, unit_kind="layer", kind="reduce_scatter", dimension="dp")
        bytes_of = times_of(plan, host_op_s=0.0).timed(scatter, lambda *its: its[1])
        assert bytes_of == pytest.approx(scatter.size_bytes)


@pytest.mark.parametrize("part", [1.0, 0.25])
def test_a_piece_of_a_collective_takes_its_part_of_the_whole(part):
    times = times_of(sl.Plan(dp=8, zero=3))
    piece = Instruction(
        BEGIN, "0F0", "x", dimension="dp", kind="all_gather", size_bytes=part * 8e6, part=part
    )
    asked = []
    seconds = times.timed(piece, lambda kind, size, dimension: asked.append(size) or 1.0)
    assert (seconds, asked) == (part, [8e6])
    assert times.instruction_s(piece) == pytest.approx(part * 7 / 8 * 8e6 / (4 * BETWEEN))


# copies
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dp, sharers", [(2, 2), (8, 4)])
def test_a_copy_goes_over_pcie_and_a_units_from_drives_that_a_nodes_gpus_share(dp, sharers):
    plan = sl.Plan(dp=dp, zero=3, offload="parameters", offload_to="nvme")
    assert host_sharers(plan, CLUSTER) == sharers
    copy = Instruction(BEGIN, "", "x", dimension="offload in", kind="copy", size_bytes=1e9)
    for to, unit, drives, bandwidth in (
        ("host", "layer 0", 1e9, 2e9),
        ("nvme", "", 1e9, 2e9),
        ("nvme", "layer 0", 1e9, 1e9 / sharers),
        ("nvme", "layer 0", 1e12, 2e9),
    ):
        times = times_of(
            replace(plan, offload_to=to), pcie_bytes_per_s=2e9, nvme_bytes_per_s=drives, slower=3.0
        )
        assert times.instruction_s(copy._replace(unit=unit)) == pytest.approx(1e9 / bandwidth)
    states = copy._replace(dimension="drive")
    times = times_of(plan, pcie_bytes_per_s=2e9, nvme_bytes_per_s=1e12, slower=3.0)
    assert times.instruction_s(states) == pytest.approx(sharers * 1e-3)  # they never cross PCIe


# messages, the ends, groups
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize("pp, bandwidth", [(2, WITHIN), (8, BETWEEN)])
def test_a_message_has_a_tp_th_of_the_hidden_states_and_crosses_nodes_if_the_pipeline_does(
    pp, bandwidth, tp
):
    """Without a word about where, as far as the whole pipeline reaches."""
    plan = sl.Plan(pp=pp, tp=tp, microbatches=8, microbatch_size=3)
    times = times_of(plan, slower=1.5)
    size_bytes = 2 * 3 * 256 * 512 / tp
    assert times.message_bytes() == size_bytes
    latency_s, wire_s = times.message_s()
    assert latency_s >= 0.0
    assert latency_s + wire_s == pytest.approx(1.5 * size_bytes / bandwidth, rel=1e-6)
    for in_node, its in ((True, WITHIN), (False, BETWEEN)):
        assert sum(times.message_s(in_node)) == pytest.approx(1.5 * size_bytes / its, rel=1e-6)
    message = Instruction(BEGIN, "0F0", "x", dimension="pp", kind="message", size_bytes=size_bytes)
    assert times.instruction_s(message) == sum(times.message_s())


def test_a_messages_latency_is_that_of_no_bytes():
    fabric = replace(CLUSTER.inter, message_s=3e-6, base_s=5e-6, hop_s=7e-6)
    times = times_of(sl.Plan(pp=8, microbatches=8), slower=2.0, inter=fabric)
    latency_s, wire_s = times.message_s()
    assert latency_s > 0 and latency_s == 2.0 * sl.p2p_s(0, times.cluster, same_node=False)
    bare_s = sum(times_of(sl.Plan(pp=8, microbatches=8), slower=2.0).message_s())
    assert wire_s == pytest.approx(bare_s, rel=1e-6)


@pytest.mark.parametrize("pp, bandwidth", [(2, WITHIN), (4, WITHIN), (8, BETWEEN)])
def test_a_tied_heads_gradients_are_summed_by_two_ranks(pp, bandwidth):
    """An all-reduce of two ranks sends each rank's whole buffer once."""
    tied = replace(MODEL, tied_head=True)
    plan = sl.Plan(pp=pp, microbatches=8, gradient_bytes=4)
    times = CommunicationTimes(tied, plan, CLUSTER, slower=2.0)
    table = 4 * 4096 * 512
    assert times.tied_head_s() == pytest.approx(2.0 * table / bandwidth, rel=1e-6)
    ends = Instruction(BEGIN, "", "x", dimension="ends", kind="all_reduce", size_bytes=table)
    assert times.instruction_s(ends) == times.tied_head_s()
    assert times_of(plan).tied_head_s() == 0.0


def test_a_group_of_one_rank_takes_no_time_and_a_ring_sends_to_the_next_rank():
    times = times_of(sl.Plan(cp=8, seq=256), slower=1.25)
    assert times.collective_s("all_reduce", 1e9, GroupShape(1, 1)) == 0.0
    assert times.communication_s("all_gather", 1e9, "tp") == 0.0
    assert times.communication_s("ring", 1e9, "cp") == pytest.approx(1.25 * 1e9 / BETWEEN, rel=1e-6)
    inside = times_of(sl.Plan(cp=4, seq=256), slower=1.25)
    assert inside.communication_s("ring", 1e9, "cp") == pytest.approx(1.25 * 1e9 / WITHIN, rel=1e-6)


def test_when_all_others_are_silent_each_rank_has_a_nic_as_far_as_there_are_any():
    times = times_of(sl.Plan(dp=8), gpus_per_node=8, nics_per_node=4)
    assert [times.quiet(n).gpus_per_node for n in (1, 4, 8)] == [4, 4, 8]
    alone = times.communication_s("all_gather", 1e9, "dp", cluster=times.quiet(8))
    assert alone == times.communication_s("all_gather", 1e9, "dp")


def test_the_hosts_time_of_an_op_is_the_clusters_own_if_it_has_one():
    assert times_of(sl.Plan()).host_op_s == HOST_OP_S
    assert times_of(sl.Plan(), host_op_s=0.0).host_op_s == 0.0

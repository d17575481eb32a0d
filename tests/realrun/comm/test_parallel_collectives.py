"""Rounds of simlab's collectives carried out by four processes, the ledger of bytes, and a plan's
groups."""

import itertools
import math

import pytest

from simlab.collectives import (
    all_to_all,
    broadcast,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    tree_all_reduce,
)
from simlab.engine.network import Network, run_rounds
from simlab.errors import InputError
from simlab.spec.hardware import Link
from simlab.spec.plan import Plan
from tests.support.patience import eventually

WORLD = 4
HIERARCHY = [[0, 1], [2, 3]]


def rounds_of(name, size_bytes):
    from realrun.comm.rounds import star_all_reduce

    if name == "hierarchical":
        return hierarchical_all_reduce(HIERARCHY, size_bytes)
    functions = {
        "star": star_all_reduce,
        "ring": ring_all_reduce,
        "tree": tree_all_reduce,
        "halving-doubling": halving_doubling_all_reduce,
    }
    return functions[name](range(WORLD), size_bytes)


ALGORITHMS = ("star", "ring", "tree", "halving-doubling", "hierarchical")


def channels(rank, pace=None):
    import torch
    from realrun_processes import both_directions

    from realrun.comm.channels import Channels

    return Channels(rank, torch.device("cpu"), both_directions(), pace=pace)


def numbers(rank, *shape, dtype=None):
    """Random ones, others on every rank, always the same on one."""
    import torch

    return torch.randn(
        shape, dtype=dtype or torch.float64, generator=torch.Generator().manual_seed(100 + rank)
    )


def sent_by(rounds, rank):
    return sum(t.size_bytes for transfers in rounds for t in transfers if t.source == rank)


# all-reduce
# -----------------------------------------------------------------------------------------------


def all_reduces(rank, sizes):
    """{(algorithm, elements, operation): (largest difference from torch's own all-reduce, bytes
    sent)}."""
    import torch.distributed as dist

    from realrun.comm.rounds import all_reduce

    mine, results = channels(rank), {}
    for name, size, operation in itertools.product(ALGORITHMS, sizes, ("sum", "max")):
        ours, theirs = numbers(rank, size), numbers(rank, size)
        sent = all_reduce(ours, rounds_of(name, ours.nbytes), mine, operation)
        dist.all_reduce(theirs, dist.ReduceOp.SUM if operation == "sum" else dist.ReduceOp.MAX)
        results[name, size, operation] = (ours - theirs).abs().max().item(), sent
    return results


def test_every_all_reduce_equals_torchs_and_sends_the_bytes_that_are_simulated(ranks):
    divisible, ragged = (4, 4096), (1, 3, 1001)
    for rank, results in enumerate(ranks(WORLD)(all_reduces, divisible + ragged)):
        assert len(results) == len(ALGORITHMS) * 5 * 2
        for (name, size, operation), (difference, sent) in results.items():
            assert difference < 1e-12, (name, size, operation)
            expected = sent_by(rounds_of(name, 8 * size), rank)
            if size in divisible:
                assert sent == expected, (name, size)
            else:  # parts differ by an element
                assert abs(sent - expected) <= 8 * len(rounds_of(name, 8 * size)), (name, size)


def test_the_naive_all_reduce_puts_on_one_rank_what_the_ring_spreads():
    size = 1200
    star, ring = (
        [sent_by(rounds_of(name, size), rank) for rank in range(WORLD)] for name in ("star", "ring")
    )
    assert star == [3 * size, size, size, size] and ring == [1.5 * size] * WORLD


# the others
# -----------------------------------------------------------------------------------------------


def others(rank):
    """{name: (largest difference from torch's own, bytes sent)} on three of the four ranks."""
    import torch
    import torch.distributed as dist

    from realrun.comm import rounds as collectives

    members = [0, 2, 3]
    mine, group = channels(rank), dist.new_group(members)
    if rank not in members:
        return None
    results = {}
    rows, one = numbers(rank, 3, 2, 5), numbers(rank, 2, 5)
    expected = [torch.empty_like(one) for _ in members]
    dist.all_gather(expected, one, group=group)
    results["all-gather"] = collectives.all_gather(one, members, mine), torch.stack(expected)
    summed = rows.clone()
    dist.all_reduce(summed, group=group)
    results["reduce-scatter"] = (
        collectives.reduce_scatter(rows, members, mine),
        summed[members.index(rank)],
    )
    received = torch.empty_like(rows)
    dist.all_to_all_single(received, rows, group=group)
    results["all-to-all"] = collectives.all_to_all_rows(rows, members, mine), received
    mine_now, theirs = one.clone(), one.clone()
    sent = collectives.broadcast_from(mine_now, members, mine)
    dist.broadcast(theirs, members[0], group=group)
    results["broadcast"] = (mine_now, sent), theirs
    return {
        name: ((ours - theirs).abs().max().item(), sent)
        for name, ((ours, sent), theirs) in results.items()
    }


def test_the_other_collectives_equal_torchs_on_a_part_of_the_ranks(ranks):
    functions = {
        "all-gather": ring_all_gather,
        "reduce-scatter": ring_reduce_scatter,
        "all-to-all": all_to_all,
        "broadcast": broadcast,
    }
    sizes = dict.fromkeys(functions, 3 * 80) | {"broadcast": 80}
    for rank, results in enumerate(ranks(WORLD)(others)):
        if rank == 1:
            assert results is None
            continue
        for name, function in functions.items():
            difference, sent = results[name]
            assert difference < 1e-12 and sent == pytest.approx(
                sent_by(function([0, 2, 3], sizes[name]), rank)
            ), name


# the same object, simulated and executed
# ------------------------------------------------------------------


def paced(rank, latency_s, bytes_per_s, size):
    """{algorithm: how long it takes on paced links, s, begun together}."""
    import torch.distributed as dist

    from realrun.comm.clock import now
    from realrun.comm.rounds import all_reduce

    mine, taken = channels(rank, (latency_s, bytes_per_s)), {}
    mine.connect(list(itertools.combinations(range(WORLD), 2)))
    for name in ("ring", "tree", "halving-doubling", "hierarchical"):
        tensor = numbers(rank, size)
        dist.barrier()
        start_s = now()
        all_reduce(tensor, rounds_of(name, tensor.nbytes), mine)
        taken[name] = now() - start_s
    return taken


def test_on_paced_links_the_rounds_take_what_the_simulator_says_of_the_very_same_rounds(ranks):
    """None is faster, and one of several is hardly slower, whatever else this machine does."""
    latency_s, bytes_per_s, size = 0.03, 4e6, 20_000
    network = Network.of_pairs(Link(latency_s=latency_s, bandwidth_bytes_per_s=bytes_per_s))
    shortest = {}  # {algorithm: times what is predicted}

    def as_predicted():
        taken = ranks(WORLD)(paced, latency_s, bytes_per_s, size)
        for name in taken[0]:
            (predicted_s,) = run_rounds([rounds_of(name, 8 * size)], network)
            times = max(of_rank[name] for of_rank in taken) / predicted_s
            shortest[name] = min(times, shortest.get(name, math.inf))
        return max(shortest.values()) < 1.35

    assert eventually(as_predicted), shortest
    assert min(shortest.values()) > 0.97


# a group of torch's collectives, and the same of rounds
# ---------------------------------------------------


def ledgers(rank):
    """(largest difference, torch's ledger, the rounds' ledger) of every method of a group."""
    import torch

    from realrun.comm.group import Group
    from realrun.comm.rounds_group import RoundsGroup

    groups = [
        Group("tp", range(WORLD), rank),
        RoundsGroup("tp", range(WORLD), rank, channels(rank)),
    ]
    results = []
    for group in groups:
        x = numbers(rank, WORLD, 8, 3)
        results.append(
            torch.cat(
                [
                    tensor.flatten()
                    for tensor in (
                        group.all_reduce(x.clone()).wait(),
                        group.all_reduce(x.clone(), "max").wait(),
                        group.all_gather(x, 1).wait(),
                        group.all_gather(x.transpose(1, 2), -1).wait(),
                        group.all_gather(x).wait(),
                        gathered_in_place(group, x),
                        group.reduce_scatter(x, 1).wait(),
                        group.reduce_scatter(x).wait(),
                        group.broadcast(x.clone()).wait(),
                        group.all_to_all(x).wait(),
                        group.shift(x).wait(),
                    )
                ]
            )
        )
    assert torch.equal(
        results[0][-WORLD * 24 :].view(WORLD, 8, 3), numbers((rank - 1) % WORLD, WORLD, 8, 3)
    )
    return (results[0] - results[1]).abs().max().item(), *(
        [sent[:4] for sent in group.traffic] for group in groups
    )


def gathered_in_place(group, x):
    """All ranks' `x` in a buffer in which each rank's was in its place."""
    whole = x.new_zeros(WORLD * WORLD, *x.shape[1:])
    mine = group.own(whole, 0).copy_(x)
    assert group.all_gather(mine, out=whole).wait().data_ptr() == whole.data_ptr()
    return whole


def test_a_group_of_rounds_does_what_torchs_does_and_both_ledgers_are_the_same_but_for_a_broadcasts_way(
    ranks,
):
    size, n = 4 * 8 * 3 * 8, WORLD
    for rank, (difference, torchs, rounds) in enumerate(ranks(WORLD)(ledgers)):
        assert difference < 1e-12
        assert torchs == [
            ("all_reduce", "tp", size, 2 * (n - 1) / n * size),
            ("all_reduce", "tp", size, 2 * (n - 1) / n * size),
            *[("all_gather", "tp", n * size, (n - 1) * size)] * 4,
            *[("reduce_scatter", "tp", size, (n - 1) / n * size)] * 2,
            ("broadcast", "tp", size, size),  # as a pipeline
            ("all_to_all", "tp", size, (n - 1) / n * size),
            ("ring", "tp", size, size),
        ]
        tree = ("broadcast", "tp", size, sent_by(broadcast(range(n), size), rank))
        assert rounds == [tree if sent[0] == "broadcast" else sent for sent in torchs]


def alone(rank):
    """(are all results the tensor itself, is the buffer given filled, what both ledgers say) of
    groups of this rank by itself."""
    from realrun.comm.group import Group
    from realrun.comm.rounds_group import RoundsGroup

    x, whole = numbers(rank, 1, 4), numbers(9, 1, 4)
    groups = [Group("dp", [rank], rank), RoundsGroup("dp", [rank], rank, channels(rank))]
    names = ("all_reduce", "broadcast", "all_gather", "reduce_scatter", "all_to_all", "shift")
    same = [
        bool((getattr(group, name)(x).wait().view_as(x) == numbers(rank, 1, 4)).all())
        for group in groups
        for name in names
    ]
    into = [
        bool((group.all_gather(x, out=whole.zero_()).wait() == x).all())
        and bool((whole == x).all())
        for group in groups
    ]
    return {*same, *into}, [group.traffic for group in groups]


def test_a_rank_by_itself_sends_nothing_and_its_ledger_stays_empty(ranks):
    assert ranks(WORLD)(alone) == [({True}, [[], []])] * WORLD


def test_a_group_refuses_a_stranger_and_what_cannot_be_cut():
    import torch

    from realrun.comm.group import Group

    with pytest.raises(InputError, match="rank 5 is not in this tp group, which has 0, 1, 2"):
        Group("tp", range(3), 5)
    with pytest.raises(
        InputError, match="size = 8 cannot be cut evenly over 3 tp ranks; nearest that do: 1, 2, 4"
    ):
        Group("tp", range(3), 0).reduce_scatter(torch.zeros(8))


# the mesh
# -------------------------------------------------------------------------------------------------


def meshes(rank, order):
    """({name: ranks} of a mesh's groups that torch reports, those of DeviceMesh, what
    `check_groups` says of it, ... of a wrong one)."""
    import torch.distributed as dist

    from realrun.comm.group import Group
    from realrun.comm.mesh import GroupError, Mesh, check_groups, device_mesh

    layout = Plan(dp=2, tp=2, order=order).layout
    mesh = Mesh(layout, rank)
    ours = {
        name: dist.get_process_group_ranks(group.process_group)
        for name, group in mesh.groups.items()
        if group.size > 1
    }
    theirs = {
        name: dist.get_process_group_ranks(device_mesh(layout).get_group(name))
        for name in ("tp", "dp")
    }
    check_groups(mesh.groups, rank, WORLD)
    diagonal = [dist.new_group([0, 3]), dist.new_group([1, 2])]
    wrong = dict(mesh.groups, dp=Group("dp", mesh["dp"].ranks, rank, diagonal[rank in (1, 2)]))
    try:
        check_groups(wrong, rank, WORLD)
        complaint = ""
    except GroupError as error:
        complaint = str(error)
    mesh.close()
    return ours, theirs, complaint


def test_a_mesh_has_the_plans_groups_and_torchs_device_mesh_the_same(ranks):
    for order, tp, dp in (
        ("tp-cp-dp-pp", [[0, 1], [2, 3]], [[0, 2], [1, 3]]),
        ("dp-pp-tp-cp", [[0, 2], [1, 3]], [[0, 1], [2, 3]]),
    ):
        for rank, (ours, theirs, _) in enumerate(ranks(WORLD)(meshes, order)):
            of_rank = {
                name: next(group for group in groups if rank in group)
                for name, groups in (("tp", tp), ("dp", dp))
            }
            assert ours == of_rank and theirs == of_rank


def test_a_group_with_the_wrong_members_is_named_on_every_rank(ranks):
    complaints = {complaint for _, _, complaint in ranks(WORLD)(meshes, "tp-cp-dp-pp")}
    assert complaints == {
        "the dp group of ranks 0, 2 reaches ranks 0, 3 (on rank 0); the dp group of ranks 1, 3 reaches ranks 1, 2 (on rank 1); "
        "the dp group of ranks 0, 2 reaches ranks 1, 2 (on rank 2); the dp group of ranks 1, 3 reaches ranks 0, 3 (on rank 3)"
    }


def test_a_mesh_for_another_number_of_processes_is_refused(ranks):
    assert (
        ranks(WORLD)(mesh_of_eight) == ["the plan takes 8 ranks, but there are 4 processes"] * WORLD
    )


def mesh_of_eight(rank):
    from realrun.comm.mesh import Mesh

    try:
        Mesh(Plan(dp=8).layout, rank)
    except InputError as error:
        return str(error)

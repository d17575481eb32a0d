"""Lists of what ranks do, and the simulation that runs them: what must hold of any plan."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from plan_oracles import changed, cluster_of, nothing_is_slowed, steps

import simlab as sl
from simlab.cost.groups import Groups
from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.engine.play import ClusterTimes, check_agreement, play, transfer
from simlab.engine.tasks import Task
from simlab.errors import DeadlockError
from simlab.lowering.build import program_of
from simlab.lowering.instructions import BEGIN, COMPUTE, WAIT, Instruction, rank_instructions
from simlab.lowering.kernels import Communication, embedding_kernels, head_kernels, layer_kernels
from simlab.lowering.pieces import Slice
from simlab.trace import SEND
from simlab.training import predict

FEW, SOME = settings(max_examples=8), settings(max_examples=20)
SMALL = {"widths": (64,), "seqs": (256,)}
FREE = {"bandwidth_bytes_per_s": 1e30, "base_s": 0.0, "hop_s": 0.0, "message_s": 0.0}


@st.composite
def plans(draw, **options):
    """(`Model`, `Plan`, `Cluster`) of a step that lists can say: `steps` without a tied head, nor
    pipelines that lie unevenly on nodes (a `GroupShape` of theirs is refused)."""
    model, plan, cluster = draw(steps(**SMALL | options))
    assume(Groups.of(plan, cluster).pp.nodes <= cluster.nodes)
    layout = draw(st.sampled_from(["zigzag", "contiguous"]))
    cp_kind = draw(st.sampled_from(["ring", "all-to-all"]))
    return (
        replace(model, tied_head=False),
        changed(plan, cp_layout=layout, cp_kind=cp_kind),
        cluster,
    )


def lists(model, plan, context_rank=0):
    """(program, [instructions of each pipeline rank])"""
    program = program_of(plan)
    return program, [
        rank_instructions(model, plan, program, p, context_rank=context_rank)
        for p in range(plan.pp)
    ]


def played(model, plan, cluster):
    """The `Trace` of a step."""
    program = program_of(plan)
    return play(model, plan, program, ClusterTimes(model, plan, cluster, program))


# lists
# ------------------------------------------------------------------------------------------------------


@SOME
@given(plans())
def test_what_is_begun_is_waited_for_once_and_later_and_messages_on_the_other_side(step):
    _, ranks = lists(*step[:2])
    sent, awaited = Counter(), Counter()
    for p, instructions in enumerate(ranks):
        open_ = set()
        for instruction in instructions:
            what = instruction[1:]
            if instruction.kind == "message":
                ends = (
                    (p, instruction.peer) if instruction.action == BEGIN else (instruction.peer, p)
                )
                (sent if instruction.action == BEGIN else awaited)[
                    ends, instruction.op, instruction.size_bytes
                ] += 1
            elif instruction.action == BEGIN:
                assert what not in open_
                open_.add(what)
            elif instruction.action == WAIT:
                open_.remove(what)
        assert not open_
    assert sent == awaited and max(sent.values(), default=1) == 1


def test_in_fp16_all_that_hold_other_gradients_learn_of_an_infinite_one_before_the_norm_and_in_bf16_nobody_need():
    model = sl.Model(name="small", layers=4, hidden=64, heads=4, seq=32, vocab=256)
    ends = {}
    for precision in ("fp16", "bf16"):
        _, ranks = lists(
            model, sl.Plan(dp=2, tp=2, pp=2, zero=1, microbatches=2, precision=precision)
        )
        ends[precision] = [i.name for i in ranks[1] if i.action == BEGIN and " over " in i.name]
    norms = ["norm over tp", "norm over pp", "norm over dp"]
    assert ends == {
        "fp16": [name.replace("norm", "overflow") for name in norms] + norms,
        "bf16": norms,
    }


@SOME
@given(plans())
def test_names_tell_communications_apart(step):
    _, ranks = lists(*step[:2])
    for instructions in ranks:
        begun = [(i.dimension, i.op, i.name) for i in instructions if i.action == BEGIN]
        assert len(set(begun)) == len(begun)


@SOME
@given(plans())
def test_each_op_computes_its_units_kernels_once_in_order_and_the_optimizer_ends_the_step(step):
    model, plan, _ = step
    program, ranks = lists(model, plan)
    others = [lists(model, plan, context_rank)[1] for context_rank in range(1, plan.cp)]
    for p, its in enumerate(zip(ranks, *others)):
        found = [computed(instructions) for instructions in its]
        expected = expected_work(model, plan, program, p)
        assert list(found[0]) == [*expected, ("", "optimizer")] and its[0][-1].name == "optimizer"
        for key, kernels in expected.items():
            mean = {kernel: sum(one[key][kernel] for one in found) / plan.cp for kernel in kernels}
            assert set(found[0][key]) == set(kernels) and mean == pytest.approx(kernels, rel=1e-12)


def computed(instructions):
    """{(op, unit): `shares`} in order."""
    kernels = defaultdict(list)
    for instruction in instructions:
        if instruction.action == COMPUTE:
            kernels[instruction.op, instruction.name] += instruction.kernels
    return {key: shares(its) for key, its in kernels.items()}


def expected_work(model, plan, program, rank):
    """The same, by the program and the model's kernels."""
    layers, expected = plan.layers_of_stages(model.layers, program.stages), {}
    for op in program.ranks[rank]:
        first = sum(layers[: op.stage])
        units = [
            (f"layer {n}", layer_kernels(model, plan))
            for n in range(first, first + layers[op.stage])
        ]
        units = [("embedding", embedding_kernels(model, plan))] * (op.stage == 0) + units
        units += [("head", head_kernels(model, plan))] * (op.stage == program.stages - 1)
        expected |= {
            (str(op), name): work(kernels, op.kind)
            for name, kernels in (units if op.kind == "F" else units[::-1])
        }
    return {key: kernels for key, kernels in expected.items() if kernels}


def work(kernels, kind):
    """`shares` of what an op of `kind` computes of a unit."""
    backward = [*kernels.recompute, *kernels.input_grad]
    parts = {
        "F": kernels.forward,
        "I": backward,
        "W": kernels.weight_grad,
        "B": [*backward, *kernels.weight_grad],
    }
    return shares(
        replace(kernel, share=1.0) if hasattr(kernel, "share") else kernel for kernel in parts[kind]
    )


def shares(kernels):
    """{kernel: how many of it}, attention as that of one key, so that the pieces of a ring's add
    up."""
    counts = defaultdict(float)
    for kernel in kernels:
        kernel, part = kernel if isinstance(kernel, Slice) else (kernel, 1)
        if hasattr(kernel, "share"):
            counts[replace(kernel, share=1.0, keys=1)] += kernel.share * kernel.keys
        elif not isinstance(kernel, Communication):
            counts[kernel] += part
    return dict(counts)


@SOME
@given(plans(cp=2))
def test_context_ranks_share_the_attention_out_and_communicate_alike(step):
    model, plan, _ = step
    first, second = (lists(model, plan, context_rank)[1] for context_rank in (0, 1))
    for ours, theirs in zip(first, second):
        assert [i for i in ours if i.action != COMPUTE] == [
            i for i in theirs if i.action != COMPUTE
        ]
        flops = [
            sum(share * kernel.flops for i in its for kernel, share in shares(i.kernels).items())
            for its in (ours, theirs)
        ]
        assert (flops[0] == pytest.approx(flops[1])) == (
            plan.cp_kind == "all-to-all" or plan.cp_layout == "zigzag"
        )


# all ranks
# --------------------------------------------------------------------------------------------------


@FEW
@given(plans())
def test_members_of_a_group_begin_the_same_communications_in_the_same_order(step):
    """Or they would wait for each other for ever."""
    model, plan, _ = step
    ranks, by_group = plan.layout.all_coordinates(), defaultdict(list)
    its = {c: lists(model, plan, c)[1] for c in range(plan.cp)}
    for d, c, p, t in ranks:
        for dimension, key in (
            ("tp", (d, c, p)),
            ("cp", (d, p, t)),
            ("dp", (p, t)),
            ("pp", (d, c, t)),
        ):
            begun = [
                i[1:]
                for i in its[c][p]
                if i.action == BEGIN and i.dimension == dimension and i.kind != "message"
            ]
            by_group[dimension, key].append(begun)
    for (dimension, _), members in by_group.items():
        assert all(begun == members[0] for begun in members)
        assert len(members) > 1 or not members[0], f"a {dimension} group of one communicates"


@FEW
@given(plans())
def test_a_step_ends_takes_at_least_what_its_ranks_compute_and_receives_what_it_sends(step):
    plan, trace = step[1], played(*step)
    streams = defaultdict(list)
    for span in trace.spans:
        streams[span.rank, span.stream if span.stream != SEND else f"to {span.peer}"].append(
            (span.start_s, span.end_s)
        )
    busy_s = [
        sum(end_s - start_s for start_s, end_s in streams[rank, "compute"])
        for rank in range(plan.gpus)
    ]
    assert trace.end_s >= max(busy_s) * (1 - 1e-9)
    for spans in streams.values():
        assert all(before[1] <= after[0] * (1 + 1e-12) for before, after in pairwise(sorted(spans)))
    sent = Counter()
    for span in trace.messages():
        sent[span.rank, span.peer] += span.bytes
    assert all(sent[pair] == sent[pair[::-1]] for pair in sent), (
        "hidden states one way, as much of gradients the other"
    )
    members = Counter(
        (s.stream, s.op, s.start_s, s.end_s) for s in trace.spans if s.stream in ("tp", "cp", "dp")
    )
    sizes = {"tp": plan.tp, "cp": plan.cp, "dp": plan.dp * plan.cp}
    assert all(count % sizes[stream] == 0 for (stream, *_), count in members.items())


# against the step op by op
# ----------------------------------------------------------------------------------


@FEW
@given(plans(dp=1, tp=1, cp=1, microbatch_size=4))
def test_without_communication_it_takes_what_the_step_op_by_op_does(step):
    model, plan, cluster = step
    free = replace(
        cluster, intra=replace(cluster.intra, **FREE), inter=replace(cluster.inter, **FREE)
    )
    assert played(model, plan, free).whole_step_s == pytest.approx(
        predict(model, plan, free).step_s, rel=1e-7
    )  # a norm's bytes are copied


LATE_MESSAGE = (
    sl.Model(layers=2, hidden=768, heads=4, ffn=3072, gated_mlp=True, vocab=1000, bias=False, seq=1024),
    sl.Plan(dp=2, pp=2, microbatches=2, dp_overlap=False),
    cluster_of(4),
)  # fmt: skip
"""A step that overlap makes longer: it slows the last stage's last backward, and so the message that
the first stage waits for, by more than the first stage then hides."""


@FEW
@given(plans(dp=2, dp_overlap=False, sequence_parallel=False))
@example(LATE_MESSAGE)
def test_overlap_is_never_slower_than_none_but_for_the_kernels_that_it_slows(step):
    """With sequence parallelism it may be: a norm's gradients are summed over tp, and waited for,
    before the stage's message goes out. In a pipeline a slowed backward delays the stage before it,
    by no more than if all kernels were slowed all the time: they take at most twice as long."""
    model, plan, cluster = step

    def seconds(overlap):
        return played(model, replace(plan, dp_overlap=overlap), cluster).whole_step_s

    with nothing_is_slowed():
        assert seconds(True) <= seconds(False) * (1 + 1e-9)
    alone_s, beside_s = seconds(False), seconds(True)
    assert beside_s <= alone_s * (1 if plan.pp == 1 else 2) * (1 + 1e-9)


def test_overlap_can_make_a_step_longer():
    model, plan, cluster = LATE_MESSAGE
    apart_s, beside_s = (
        played(model, replace(plan, dp_overlap=overlap), cluster).whole_step_s
        for overlap in (False, True)
    )
    assert 1.0005 * apart_s < beside_s < 1.01 * apart_s


@FEW
@given(plans(dp=2, zero=3, dp_overlap=True), st.floats(1, 100))
def test_gathering_ahead_is_never_slower(step, narrower):
    model, plan, cluster = step
    slow = replace(
        cluster,
        intra=replace(
            cluster.intra, bandwidth_bytes_per_s=cluster.intra.bandwidth_bytes_per_s / narrower
        ),
    )
    late, early = (
        played(model, changed(plan, prefetch=prefetch), slow).whole_step_s for prefetch in (0, 1)
    )
    assert early <= late * (1 + 1e-9)


# agreement
# --------------------------------------------------------------------------------------------------


def of_all_ranks(model, plan):
    """[list of each rank]"""
    program = program_of(plan)
    return [
        rank_instructions(model, plan, program, place.pp, context_rank=place.cp)
        for place in plan.layout.all_coordinates()
    ]


@SOME
@given(plans(), st.data())
def test_groups_agree_until_one_rank_leaves_out_or_resizes_a_collective_which_is_named(case, data):
    model, plan, _ = case
    its = of_all_ranks(model, plan)
    check_agreement(its, plan)
    rank = data.draw(st.integers(0, plan.gpus - 1))
    at = [n for n, i in enumerate(its[rank]) if i.action == BEGIN and i.kind != "message"]
    assume(at)
    number = data.draw(st.sampled_from(at))
    broken = its[rank][number]
    smaller = broken._replace(size_bytes=broken.size_bytes - 1)
    for other in (
        [*its[rank][:number], *its[rank][number + 1 :]],
        [*its[rank][:number], smaller, *its[rank][number + 1 :]],
    ):
        with pytest.raises(
            DeadlockError,
            match=rf"the {broken.dimension} group of ranks .*\b{rank}\b.* does not agree",
        ) as error:
            check_agreement([*its[:rank], other, *its[rank + 1 :]], plan)
        assert f"{broken.op} {broken.name}".strip() in str(error.value)


# NICs that groups share
# --------------------------------------------------------------------------------------


def with_nics(nics, **plan):
    """The `Trace` of two stages and two replicas on two nodes with two GPUs and so many NICs
    each."""
    model = sl.Model(name="small", layers=4, hidden=512, heads=4, seq=8192, vocab=512)
    plan = sl.Plan(dp=2, pp=2, microbatches=4, dp_overlap=False, **plan)
    return played(
        model,
        plan,
        replace(sl.load_cluster("dgx-a100", nodes=2), gpus_per_node=2, nics_per_node=nics),
    )


def test_two_stages_that_reduce_at_different_times_have_all_of_their_nic_each():
    """Replicas on different nodes: the last stage is done first, and reduces while the first one
    still computes."""
    shared, own = (with_nics(nics, order="tp-cp-pp-dp") for nics in (1, 2))
    reductions = [
        sorted((s.rank, s.start_s, s.end_s) for s in trace.spans if s.stream == "dp")
        for trace in (shared, own)
    ]
    assert len(reductions[0]) == 2 * 2 * 3  # two layers and an end on each stage
    assert [at for its in reductions[0] for at in its] == pytest.approx(
        [at for its in reductions[1] for at in its]
    )
    ends_s = {rank: max(end_s for its, _, end_s in reductions[0] if its == rank) for rank in (0, 1)}
    assert ends_s[1] < min(start_s for rank, start_s, _ in reductions[0] if rank == 0)  # in turns


def test_messages_of_replicas_that_go_together_share_the_nic():
    """Stages on different nodes: both replicas send at the same moments, each with half of the
    NIC."""
    shared, own = (with_nics(nics, order="tp-cp-dp-pp") for nics in (1, 2))
    shared_s, own_s = (
        [s.end_s - s.start_s for s in trace.spans if s.stream == SEND and s.op == "0F0"]
        for trace in (shared, own)
    )
    # of latency + bytes: twice as many bytes' time, the latency once
    latency_s = 2 * own_s[0] - shared_s[0]
    assert (
        len(shared_s) == 2
        and 0 <= latency_s < own_s[0] < 0.999 * shared_s[0]
        and shared_s[0] == pytest.approx(shared_s[1])
    )


@pytest.mark.parametrize("name", ["a100-pcie", "dgx-v100", "vtrain-a100"])
@pytest.mark.parametrize("size_bytes", [1e4, 1e6, 1e8])
@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "ring"])
def test_groups_that_all_communicate_at_once_take_what_their_part_of_the_nics_takes(
    name, size_bytes, kind
):
    cluster = sl.load_cluster(name, nodes=2)
    gpus = cluster.gpus_per_node
    for k in (divisor for divisor in range(1, gpus + 1) if gpus % divisor == 0):
        plan = sl.Plan(dp=2 * k, tp=gpus // k) if k < gpus else sl.Plan(dp=2 * gpus)
        cost = StageCost(
            sl.Model(name="small", layers=1, hidden=512, heads=8, seq=256, vocab=512), plan, cluster
        )
        instruction = Instruction(BEGIN, "0B0", "gradients", (), "dp", kind, size_bytes)
        members = [
            [rank for rank in range(2 * gpus) if rank % (gpus // k) == first]
            for first in range(gpus // k)
        ]
        tasks = [Task("", "", "dp", tuple(ranks), seconds, (), size_bytes, shared)
                 for ranks in members for seconds, shared in [transfer(cost, instruction, ranks)]]  # fmt: skip
        together_s = cost.communication_s(kind, size_bytes, "dp")
        assert run_tasks(tasks).end_s == pytest.approx(together_s, rel=1e-6) and run_tasks(
            tasks[:1]
        ).end_s <= together_s * (1 + 1e-9)


@pytest.mark.parametrize(
    "name, nodes, dp, ranks", [("a100-pcie", 3, 3, (6, 7, 8)), ("dgx-v100", 5, 5, (5, 6, 7, 8, 9))]
)
def test_a_group_that_lies_on_its_nodes_unlike_the_first_one_takes_what_that_one_does(
    name, nodes, dp, ranks
):
    model = sl.Model(name="small", layers=8, hidden=64, heads=4, seq=256, vocab=512)
    cost = StageCost(
        model, sl.Plan(dp=dp, pp=8, microbatches=8), sl.load_cluster(name, nodes=nodes)
    )
    instruction = Instruction(BEGIN, "0B0", "gradients", (), "dp", "all_reduce", 1e6)
    assert transfer(cost, instruction, ranks) == transfer(cost, instruction, tuple(range(dp)))

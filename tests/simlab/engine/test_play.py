"""A step op by op, one rank for many, and all of them: the same lists give the same seconds."""

from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from plan_oracles import changed, cluster_of, plan_of, steps

import simlab as sl
from simlab.cost.groups import Groups
from simlab.cost.stage_times import StageCost
from simlab.engine import run_tasks
from simlab.engine.play import ClusterTimes, play
from simlab.engine.tasks import Task
from simlab.errors import DeadlockError
from simlab.lowering.build import program_of
from simlab.planner import layered_s
from simlab.schedules import SCHEDULES
from simlab.training.step import stage_times
from simlab.units import seconds_text

FEW = settings(max_examples=12)
GPT = sl.Model(name="GPT", layers=8, hidden=2048, heads=16, vocab=32000, positions=1024, seq=1024)


@st.composite
def plans(draw, **options):
    """`steps` with every kind of context parallelism, on clusters that a plan's groups lie evenly
    on."""
    model, plan, cluster = draw(steps(**options))
    assume(Groups.of(plan, cluster).pp.nodes <= cluster.nodes)
    kinds = st.sampled_from(["ring", "all-to-all", "all-gather"])
    layouts = st.sampled_from(["zigzag", "contiguous"])
    return model, changed(plan, cp_kind=draw(kinds), cp_layout=draw(layouts)), cluster


@st.composite
def any_plans(draw, zeros=(0, 1, 2, 3)):
    """Every schedule that a plan can have, experts, offload and replicas among them."""
    schedule = draw(
        st.sampled_from(
            [n for n in SCHEDULES if n != "zb-auto" and (n != "dualpipe" or 0 in zeros)]
        )
    )
    pp, chunks = draw(st.integers(1, 4)), SCHEDULES[schedule].chunks
    if schedule == "dualpipe":
        pp, zeros = draw(st.sampled_from([2, 4])), (0, 1)
    if SCHEDULES[schedule].chunked:
        chunks = draw(st.integers(1, 3))
    experts, dp = draw(st.sampled_from([0, 4])), draw(st.sampled_from([1, 2, 4]))
    model = replace(
        GPT, layers=pp * chunks * draw(st.integers(1, 2)), hidden=draw(st.sampled_from([256, 2048])), heads=4, positions=0,
        kv_heads=4, head_size=None, ffn=None,
        seq=draw(st.sampled_from([256, 1024])), experts=experts, experts_per_token=experts // 2, tied_head=draw(st.booleans()),
    )  # fmt: skip
    choices = {
        "tp": (1, 2), "cp": (1, 2), "zero": zeros, "microbatches": (2 * pp, 4 * pp), "microbatch_size": (1, 4),
        "recompute": ("none", "selective", "full"), "sequence_parallel": (False, True), "dp_overlap": (False, True),
        "prefetch": (0, 1, 2), "reshard": (False, True), "precision": ("bf16", "fp16", "fp32"), "library": ("megatron", "torch"),
        "offload": ("none", "none", "optimizer", "parameters", "activations"), "tp_overlap": ("none", "weight-grad", "pipelined"),
        "hybrid": (0, 2) if dp > 1 and schedule != "dualpipe" else (0,), "ep": (1, 2, 4) if experts else (1,), "expert_load": (1.0, 1.25),
        "etp": (None, 1) if experts else (None,), "dispatcher": ("all-to-all", "once-a-node"),
    }  # fmt: skip
    fields = {name: draw(st.sampled_from(its)) for name, its in choices.items()}
    if not fields["sequence_parallel"] or fields["ep"] % fields["tp"]:
        fields["etp"] = None
    if dp * fields["cp"] * (1 if fields["etp"] is None else fields["tp"]) % fields["ep"]:
        fields |= {"ep": 1, "etp": None}
    if fields["ep"] > 1:
        fields |= {"hybrid": 0, "offload": draw(st.sampled_from(["none", "activations"]))}
    if experts and draw(st.booleans()):
        few = {
            "dense_layers": min(model.layers - 1, draw(st.integers(1, 3))),
            "shared_experts": draw(st.integers(0, 1)),
        }
        model = replace(model, **few, bias=False, expert_ffn=128)
    elif draw(st.booleans()):
        kinds = "layer", "wide layer", "wide layer"
        model = replace(model, kinds={"wide layer": {"ffn": 640}}, pattern=kinds)
    fields["chunks"] = chunks if SCHEDULES[schedule].chunked else None
    plan = plan_of(dp=dp, pp=pp, schedule=schedule, **fields)
    return model, plan, cluster_of(plan.gpus, draw(st.sampled_from(["dgx-a100", "a100-pcie"])))


def played(model, plan, cluster, *, collapsed=True):
    """The `Trace` of a step."""
    program = program_of(plan)
    times = ClusterTimes(model, plan, cluster, program)
    return play(model, plan, program, times, collapsed=collapsed)


def thrice(model, plan, cluster):
    """Seconds of a step: by `predict`, of one rank for many, of all ranks."""
    return (
        sl.predict(model, plan, cluster).step_s,
        sl.layer_trace(model, plan, cluster).whole_step_s,
        played(model, plan, cluster, collapsed=False).whole_step_s,
    )


# one answer
# ------------------------------------------------------------------------------------------------


def test_schedules_have_one_ranking_where_a_backward_is_split_under_tensor_parallelism():
    """No weight gradient runs beside the sum of an input gradient that is an op of its own."""
    model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100", nodes=4)
    plan = sl.Plan(tp=8, pp=4, microbatches=12, microbatch_size=2, tp_overlap="weight-grad")
    whole, split = (
        thrice(model, replace(plan, schedule=name), cluster) for name in ("1f1b", "zb-h1")
    )
    assert all(one < other for one, other in zip(whole, split))
    for step in (whole, split):
        assert step == pytest.approx([step[0]] * 3, rel=0.02)


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_more_overlap_of_tensor_parallelism_is_quicker_in_every_answer(sequence_parallel):
    model, cluster = sl.load_model("llama-2-13b"), sl.load_cluster("dgx-a100")
    plan = sl.Plan(tp=8, sequence_parallel=sequence_parallel)
    answers = [
        thrice(model, replace(plan, tp_overlap=overlap), cluster)
        for overlap in ("none", "weight-grad", "pipelined")
    ]
    for step in answers:
        assert step == pytest.approx([step[0]] * 3, rel=0.02)
    for slower, quicker in pairwise(answers):
        assert all(one > other for one, other in zip(slower, quicker))


def test_a_link_that_is_the_bottleneck_is_not_charged_beside_what_it_slows():
    model = replace(sl.load_model("llama-3-70b"), layers=10)
    cluster = sl.load_cluster("a100-pcie", nodes=2)
    plan = sl.Plan(
        dp=4, tp=4, zero=2, recompute="full", sequence_parallel=True, library="torch", microbatches=4
    )  # fmt: skip
    found, collapsed_s, all_s = thrice(model, plan, cluster)
    assert found == pytest.approx(collapsed_s, rel=0.02) == pytest.approx(all_s, rel=0.02)


@pytest.mark.parametrize("plan", [
    {"offload": "optimizer"}, {"offload": "parameters"}, {"offload": "activations"},
    {"offload": "parameters", "zero": 3}, {"offload": "parameters", "zero": 3, "prefetch": 2},
    {"offload": "optimizer", "offload_to": "nvme", "zero": 1},
    {"zero": 3, "prefetch": 0}, {"zero": 3, "prefetch": 0, "recompute": "full"},
    {"zero": 3, "hybrid": 4}, {"zero": 1, "hybrid": 4}, {"zero": 3, "reshard": False},
])  # fmt: skip
def test_offload_sharding_and_gathering_late_have_one_answer(plan):
    model, cluster = sl.load_model("llama-2-7b"), sl.load_cluster("dgx-a100")
    found, collapsed_s, all_s = thrice(model, sl.Plan(dp=8, microbatches=2, **plan), cluster)
    assert (collapsed_s, all_s) == pytest.approx((found, found), rel=0.02)


def test_a_tied_heads_gradient_is_summed_with_the_embeddings_where_they_are_apart():
    model, cluster = replace(GPT, tied_head=True), cluster_of(4)
    for schedule, summed in (("1f1b", 2), ("interleaved-1f1b", 2), ("zb-v", 0)):
        plan = sl.Plan(dp=2, pp=2, microbatches=4, schedule=schedule)
        spans = [s for s in sl.layer_trace(model, plan, cluster).spans if s.op == "tied head"]
        assert [s.bytes for s in spans] == [4 * model.vocab * model.hidden] * summed


# walked and played
# ------------------------------------------------------------------------------------------------


def walked_s(model, plan, cluster):
    """{(stage, kind): seconds of an op}"""
    program, cost = program_of(plan), StageCost(model, plan, cluster)
    times = stage_times([cost] * plan.pp, model, plan, program)
    return {(s, kind): its.of(kind).total for s, its in enumerate(times) for kind in "FBIW"}


@FEW
@given(plans(widths=(64, 512), zeros=(0,), dp_overlap=False))
def test_an_op_takes_as_long_played_as_walked(step):
    walked, ops = walked_s(*step), defaultdict(list)
    for span in sl.layer_trace(*step).spans:
        if span.op_kind and span.stream in ("compute", "tp", "cp", "ep"):
            ops[span.stage, span.op_kind, span.microbatch].append(span)
    assert len(ops) >= sum(map(len, program_of(step[1]).ranks)) - step[1].microbatches
    for (stage, kind, _), spans in ops.items():
        took_s = max(s.end_s for s in spans) - min(s.start_s for s in spans)
        assert took_s == pytest.approx(walked[stage, kind], rel=1e-9)


def test_an_op_of_a_mixture_of_experts_takes_as_long_played_as_walked():
    model = replace(GPT, name="MoE", experts=4, experts_per_token=2, tied_head=False)
    for ep in (1, 2, 4):
        plan = sl.Plan(dp=ep, ep=ep, tp=2, pp=2, microbatches=4, dp_overlap=ep == 1)
        step = model, plan, cluster_of(4 * ep)
        test_an_op_takes_as_long_played_as_walked.hypothesis.inner_test(step)


@pytest.mark.parametrize(
    "plan",
    [
        {"ep": 2},
        {"ep": 8, "zero": 1},
        {"ep": 4, "zero": 3, "expert_load": 1.5},
        {"ep": 4, "zero": 2, "tp": 2, "dp": 4, "sequence_parallel": True},
        {"ep": 4, "cp": 2, "dp": 2, "pp": 2, "recompute": "full"},
        {"ep": 8, "dp": 4, "tp": 2, "etp": 1, "sequence_parallel": True, "zero": 1},
        {
            "ep": 4,
            "dp": 4,
            "tp": 2,
            "etp": 1,
            "sequence_parallel": True,
            "dispatcher": "once-a-node",
        },
        {"ep": 4, "zero": 2, "ep_overlap": True, "microbatches": 3},
    ],
)
def test_experts_on_ranks_of_their_own_have_one_answer(plan):
    """Walked, of one rank for many and of all, in one node and over two of four GPUs each."""
    model = replace(GPT, name="MoE", experts=8, experts_per_token=2, tied_head=False)
    plan = sl.Plan(**({"dp": 8, "microbatches": 4} | plan))
    node = sl.load_cluster("dgx-a100")
    for cluster in (node, replace(node, gpus_per_node=4, nodes=2, nics_per_node=4)):
        found, collapsed_s, all_s = thrice(model, plan, cluster)
        assert (collapsed_s, all_s) == pytest.approx((found, found), rel=1e-9)


@pytest.mark.parametrize(
    "plan", [{}, {"ep": 2}, {"ep": 2, "zero": 1}, {"pp": 4, "dp": 2, "chunks": 2}]
)
def test_gradients_in_flight_between_ops_of_several_kinds_of_layers_are_waited_for(plan):
    """Ops of stages whose layers are alike share a walk, whatever other gradients travel meanwhile."""
    model = replace(
        GPT, name="MoE", layers=8, experts=4, experts_per_token=2, dense_layers=3, expert_ffn=1024,
        bias=False, tied_head=False,
    )  # fmt: skip
    given = {
        "dp": 4,
        "pp": 2,
        "microbatches": 4,
        "schedule": "interleaved-1f1b",
        "chunks": 4,
    } | plan
    step = model, sl.Plan(**given), cluster_of(8)
    found, collapsed_s, all_s = thrice(*step)
    assert (collapsed_s, all_s) == pytest.approx((found, found), rel=1e-9)


def with_own_nics(model, plan, cluster):
    """A step on a cluster whose GPUs have a NIC each. Where they share one, a transfer slows those
    of other ranks that are under way, which only the played step sees: 0.06% of a step of
    three stages, dp 4, on two nodes of six GPUs and one NIC."""
    nics = max(cluster.nics_per_node, cluster.gpus_per_node)
    return model, plan, replace(cluster, nics_per_node=nics)


@FEW
@given(any_plans())
def test_whole_steps_take_as_long_walked_as_played(step):
    """The two round moments differently, a picosecond for each op at most."""
    step = with_own_nics(*step)
    found, trace = sl.predict(*step), sl.layer_trace(*step)
    ops = sum(map(len, program_of(step[1]).ranks))
    assert trace.whole_step_s == pytest.approx(found.step_s, rel=1e-9, abs=1e-12 * ops)
    assert sum(found.waterfall_s) == pytest.approx(found.step_s, rel=1e-9)


def test_a_reduce_scatter_slows_products_from_when_the_gather_before_it_has_ended():
    """A backward in pieces gathers by copy engines, which slow nothing, and then scatters."""
    sizes = {"layers": 1, "hidden": 256, "heads": 4, "vocab": 32000, "seq": 256}
    model = sl.Model(positions=0, gated_mlp=False, **sizes)
    tp = {"tp": 2, "sequence_parallel": True, "tp_overlap": "pipelined"}
    step = model, sl.Plan(schedule="zb-h1", microbatches=2, **tp), cluster_of(2)
    played_s = sl.layer_trace(*step).whole_step_s
    assert sl.predict(*step).step_s == pytest.approx(played_s, rel=1e-9)


@FEW
@given(any_plans(zeros=(0, 1)), st.sampled_from([2**18, 2**22, 2**26]))
def test_gradients_in_buckets_take_as_long_walked_as_played(step, bucket_bytes):
    model, plan, cluster = with_own_nics(*step)
    plan = changed(plan, bucket_bytes=bucket_bytes)
    played_s = sl.layer_trace(model, plan, cluster).whole_step_s
    assert sl.predict(model, plan, cluster).step_s == pytest.approx(played_s, rel=1e-9)


def test_small_buckets_cost_their_latency_in_every_answer():
    model = replace(sl.load_model("llama-3-8b"), layers=4)
    cluster = sl.load_cluster("dgx-a100", nodes=4)
    plans = [sl.Plan(dp=4, tp=8, zero=1, bucket_bytes=size) for size in (None, 2**20)]
    whole, small = (thrice(model, plan, cluster) for plan in plans)
    assert small[0] > 1.5 * whole[0]
    for step in (whole, small):
        assert step == pytest.approx([step[0]] * 3, rel=0.02)


def test_a_trace_of_layers_is_as_long_as_the_step_that_ends_with_copies():
    """The optimizer's states are copied after the last op: nine tenths of the step."""
    model, plan = sl.load_model("llama-3-8b"), sl.Plan(dp=8, offload="parameters")
    cluster = sl.load_cluster("dgx-a100", nodes=1)
    found, trace = sl.predict(model, plan, cluster), sl.layer_trace(model, plan, cluster)
    assert trace.step_s < 0.2 * found.step_s
    assert trace.whole_step_s == pytest.approx(found.step_s, rel=1e-9)
    assert f", {seconds_text(found.step_s)}>" in repr(trace)
    assert layered_s(model, plan, cluster) == pytest.approx(found.step_s, rel=1e-9)


# one for many
# ------------------------------------------------------------------------------------------------


def alike(plan, cluster):
    """Whether the messages of all replicas stay in a node where those of the first do."""
    layout, nodes = plan.layout, cluster.gpus_per_node
    hops = {
        (place.pp, peer): set()
        for place in layout.all_coordinates()
        for peer in range(plan.pp)
    }  # fmt: skip
    for rank, place in enumerate(layout.all_coordinates()):
        for peer in range(plan.pp):
            hops[place.pp, peer].add(rank // nodes == layout.peer(rank, peer) // nodes)
    return all(len(its) == 1 for its in hops.values())


@FEW
@given(plans(widths=(64, 512)))
def test_one_rank_of_each_stage_stands_for_all(step):
    _, plan, cluster = step
    assume(alike(plan, cluster))
    few, every = played(*step), played(*step, collapsed=False)
    assert few.ranks == plan.pp and every.ranks == plan.gpus
    ends = [defaultdict(list), defaultdict(list)]
    for trace, its in zip((few, every), ends):
        for s in trace.spans:
            its[s.rank].append((s.stream, s.op, s.start_s, s.end_s))
    for rank, place in enumerate(plan.layout.all_coordinates()):
        if place.cp == plan.cp - 1:  # in a ring, others may have less to compute
            mine, its = sorted(ends[1][rank]), sorted(ends[0][place.pp])
            assert [row[:2] for row in mine] == [row[:2] for row in its]
            for one, other in zip(mine, its):
                assert one[2:] == pytest.approx(other[2:], rel=1e-9, abs=1e-12)


@FEW
@given(plans(widths=(64,), seqs=(256,)), st.booleans())
def test_what_is_sent_is_received_and_streams_never_overlap_themselves(step, collapsed):
    _, plan, _ = step
    trace = played(*step, collapsed=collapsed)
    streams, sent, received = defaultdict(list), Counter(), Counter()
    for span in trace.spans:
        streams[span.rank, span.stream, span.peer].append((span.start_s, span.end_s))
    for span in trace.messages():
        sent[span.rank] += span.bytes
        received[span.peer] += span.bytes
    for its in streams.values():
        assert all(a[1] <= b[0] * (1 + 1e-12) + 1e-15 for a, b in pairwise(sorted(its)))
    assert sum(sent.values()) == sum(received.values()) and not set(sent) ^ set(received)
    copies = 1 if collapsed else plan.gpus // plan.pp
    crossings = (plan.stages - 1 - (plan.schedule == "zb-v")) if plan.pp > 1 else 0
    tokens = plan.microbatch_size * step[0].seq // plan.cp
    size = tokens * step[0].hidden * 2 // plan.tp
    assert sum(sent.values()) == 2 * crossings * plan.microbatches * copies * size


@FEW
@given(plans(widths=(64,)))
def test_one_step_has_one_trace(step):
    assert sl.layer_trace(*step) == sl.layer_trace(*step)


# tasks
# ------------------------------------------------------------------------------------------------


def test_tasks_hold_a_stream_of_all_their_ranks_and_wait_for_what_they_need():
    tasks = [
        Task("a", "", "compute", (0,), 2.0, ()), Task("b", "", "compute", (1,), 3.0, ()), Task("sum", "", "tp", (0, 1), 1.0, (0, 1)),
        Task("c", "", "compute", (0,), 5.0, ()), Task("d", "", "compute", (1,), 1.0, (2,)), Task("other", "", "tp", (0,), 1.0, ()),
    ]  # fmt: skip
    times = run_tasks(tasks)
    assert list(times.starts) == [0, 0, 3, 2, 4, 4] and list(times.ends) == [2, 3, 4, 7, 5, 5]
    assert times.end_s == 7 and run_tasks([]).end_s == 0


@pytest.mark.parametrize(("sum_s", "end_s"), [(0.0, 4.0), (2.0, 4.5), (8.0, 16 / 3)])
def test_a_computation_loses_a_part_of_its_speed_while_a_sum_is_in_flight(sum_s, end_s):
    """At 3/4 of its speed beside the sum: 4 s of work take 1/4 of the sum's time longer, or 4/3 of
    4 s where the sum outlasts them. What slows nothing does not."""
    tasks = [
        Task("sum", "", "dp", (0,), sum_s, (), slows=True),
        Task("copy", "", "offload in", (0,), 9.0, ()),
        Task("work", "", "compute", (0,), 4.0, (), beside_s=16 / 3),
    ]
    assert run_tasks(tasks).ends[2] == pytest.approx(end_s)
    assert run_tasks([*tasks[:2], tasks[2]._replace(beside_s=0.0)]).ends[2] == 4.0


def test_tasks_that_wait_for_each_other_are_named():
    tasks = [
        Task("first", "0F0", "compute", (0,), 1.0, (1,)),
        Task("second", "0F0", "compute", (0,), 1.0, ()),
    ]
    with pytest.raises(
        DeadlockError, match="2 of 2 tasks never start, first 0F0 'first' on compute"
    ):
        run_tasks(tasks)

"""Context parallelism: what each rank holds and computes, counted score by score; what it sends;
what that costs."""

from dataclasses import replace
from fractions import Fraction

import pytest

import simlab as sl
from simlab.collectives import all_to_all
from simlab.cost.stage_times import StageCost
from simlab.lowering.context import busiest_share
from simlab.lowering.instructions import rank_instructions
from simlab.lowering.kernels import Attention, Communication, layer_kernels
from simlab.memory.activations import layer_activations_bytes

MODEL = sl.load_model("llama-3-8b")
SEQ = 131_072


def held(rank, cp, layout, seq):
    """The tokens that a rank holds, from the definition."""
    if layout == "contiguous":
        return range(rank * seq // cp, (rank + 1) * seq // cp)
    half = seq // (2 * cp)
    return [
        *range(rank * half, (rank + 1) * half),
        *range(seq - (rank + 1) * half, seq - rank * half),
    ]


def counted(queries, keys):
    """Unmasked scores, those on the diagonal as halves: what a count of continuous area gives."""
    return sum(Fraction((key < query) * 2 + (key == query), 2) for query in queries for key in keys)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("cp", [1, 2, 3, 4, 5, 8])
def test_work_of_every_rank_at_every_step_is_the_count_of_unmasked_scores(cp, layout):
    seq = 4 * cp
    whole = Fraction(seq**2, 2)
    work = sl.ring_work(cp, layout)
    for rank in range(cp):
        for step in range(cp):
            source = (rank - step) % cp
            assert (
                work[rank][step]
                == counted(held(rank, cp, layout, seq), held(source, cp, layout, seq)) / whole
            )
    assert sum(map(sum, work)) == 1
    assert busiest_share(cp, layout) == pytest.approx(float(max(map(sum, work)) * cp), rel=1e-12)


@pytest.mark.parametrize("cp", [2, 3, 4, 8, 64])
def test_zigzag_is_equal_at_every_step_and_contiguous_nearly_twice_the_mean(cp):
    zigzag, contiguous = sl.ring_work(cp), sl.ring_work(cp, "contiguous")
    assert {share for steps in zigzag for share in steps} == {Fraction(1, cp**2)}
    assert [sum(steps) * cp for steps in contiguous] == [
        Fraction(2 * rank + 1, cp) for rank in range(cp)
    ]
    assert max(sum(steps) for steps in contiguous) * cp == Fraction(2 * cp - 1, cp)
    # going in step saves nothing: at every step somebody has as much as the last rank
    assert [max(steps) for steps in zip(*contiguous)] == contiguous[-1]


def test_every_chunk_is_held_once_and_what_is_not_there_is_an_error():
    assert [sl.context_chunks(rank, 4) for rank in range(4)] == [(0, 7), (1, 6), (2, 5), (3, 4)]
    assert [sl.context_chunks(rank, 4, "contiguous") for rank in range(4)] == [
        (0,),
        (1,),
        (2,),
        (3,),
    ]
    with pytest.raises(sl.InputError, match="rank 4: there are ranks 0 to 3"):
        sl.context_chunks(4, 4)
    with pytest.raises(sl.InputError, match="'striped'"):
        sl.context_chunks(0, 4, "striped")


def kernels(**fields):
    plan = sl.Plan(seq=SEQ, **fields)
    plan.check(MODEL)
    found = layer_kernels(MODEL, plan)
    return [
        [k for k in part if isinstance(k, Attention) or getattr(k, "dimension", "") == "cp"]
        for part in (found.forward, found.input_grad)
    ]


def test_ring_sends_keys_and_values_and_all_to_all_each_tensor_once():
    n, t = 8, 2
    (ring, attention), (_, back) = kernels(cp=n, tp=t)
    kv = 2 * SEQ // n * MODEL.kv_heads // t * MODEL.head_size * 2
    assert (ring.kind, ring.steps, ring.size_bytes, back.size_bytes) == ("ring", n - 1, kv, 2 * kv)
    assert (attention.heads, attention.queries, attention.keys) == (MODEL.heads // t, SEQ // n, SEQ)

    forward, backward = kernels(cp=n, tp=t, cp_kind="all-to-all")
    exchanges = [k for k in forward if isinstance(k, Communication)]
    tensor = SEQ // n * MODEL.head_size * 2
    heads = [MODEL.heads // t, 8, 8, MODEL.heads // t]  # 4 key and value heads are sent to 8 ranks
    assert [k.size_bytes for k in exchanges] == [tensor * count for count in heads]
    assert [k.size_bytes for k in backward if isinstance(k, Communication)] == [
        tensor * count for count in reversed(heads)
    ]
    assert [isinstance(k, Attention) for k in forward] == [False, False, False, True, False]
    assert (forward[3].heads, forward[3].queries) == (MODEL.heads // t // n, SEQ)


def test_all_to_all_volume_is_that_of_the_transfers_of_the_collective():
    n = 4
    exchange = kernels(cp=n, cp_kind="all-to-all")[0][0]
    sent = sum(
        t.size_bytes
        for part in all_to_all(range(n), exchange.size_bytes)
        for t in part
        if t.source == 0
    )
    assert sent == pytest.approx((n - 1) / n * SEQ / n * MODEL.hidden * 2)


def test_all_gather_waits_for_all_keys_and_values_keeps_them_and_scatters_their_gradients():
    n, t = 8, 2
    forward, backward = kernels(cp=n, tp=t, cp_kind="all-gather")
    whole = SEQ * MODEL.kv_heads // t * MODEL.head_size * 2
    assert [(k.kind, k.size_bytes) for k in forward[:2]] == [
        ("all_gather", whole)
    ] * 2 and isinstance(forward[2], Attention)
    assert [(k.kind, k.size_bytes) for k in backward[1:]] == [
        ("reduce_scatter", whole)
    ] * 2 and isinstance(backward[0], Attention)
    ring, gathered = (sl.Plan(cp=n, tp=t, seq=SEQ, cp_kind=kind) for kind in ("ring", "all-gather"))
    for recompute in ("none", "selective", "per-op"):
        assert (
            layer_activations_bytes(MODEL, gathered, recompute)
            - layer_activations_bytes(MODEL, ring, recompute)
            == 2 * whole
        )
    assert layer_activations_bytes(MODEL, gathered, "full") == layer_activations_bytes(
        MODEL, ring, "full"
    )
    assert sl.traffic(MODEL, ring)[0].cp == pytest.approx(1.5 * sl.traffic(MODEL, gathered)[0].cp)
    with pytest.raises(sl.InputError, match="zigzag chunks"):
        sl.Plan(cp=8, seq=8200, cp_kind="all-gather").check(MODEL)


@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
def test_all_gather_gives_each_rank_its_share_of_the_scores(layout):
    plan = sl.Plan(cp=4, seq=64, cp_kind="all-gather", cp_layout=layout, precision="fp32")
    model = sl.Model(layers=1, hidden=16, heads=2, vocab=8, positions=64, seq=64)
    shares = []
    for rank in range(4):
        instructions = rank_instructions(model, plan, sl.generate("1f1b", 1, 1), context_rank=rank)
        attention = [k for i in instructions for k in i.kernels if isinstance(k, Attention)]
        assert len(attention) == 2 and attention[0].share == attention[1].share
        shares.append(attention[0].share)
    assert shares == pytest.approx(
        [(2 * rank + 1) / 4 if layout == "contiguous" else 1 for rank in range(4)]
    )


@pytest.mark.parametrize("kind", ["ring", "all-to-all", "all-gather"])
def test_operations_of_all_ranks_are_those_of_one_whatever_the_degree(kind):
    whole = kernels()[0][0].flops
    for cp in (2, 4, 8):
        (attention,) = [k for k in kernels(cp=cp, cp_kind=kind)[0] if isinstance(k, Attention)]
        assert cp * attention.flops == whole


def ring_hidden_s(cp, layout, attention_s, steps_s):
    """How much of a ring's communication the busiest rank's attention hides, s.

    attention_s: of all its blocks; steps_s: of the cp - 1 messages, one after the other. A step's
    message runs beside the computing on what is there; the last piece is computed on with no
    message beside it. Zigzag: cp equal pieces of computing. Contiguous: the first one is half of
    the others.
    """
    steps = cp - 1
    if not steps:
        return 0.0
    message_s = steps_s / steps
    if layout == "zigzag":
        return steps * min(message_s, attention_s / cp)
    piece_s = attention_s / (cp - 0.5)
    return min(message_s, piece_s / 2) + (steps - 1) * min(message_s, piece_s)


@pytest.mark.parametrize("seq", [8192, 32_768, SEQ])
@pytest.mark.parametrize("layout", ["zigzag", "contiguous"])
@pytest.mark.parametrize("tp", [1, 8])
def test_ring_step_by_step_takes_what_the_closed_form_says(seq, layout, tp):
    plan, cluster = (
        sl.Plan(cp=8, tp=tp, seq=seq, cp_layout=layout),
        sl.load_cluster("dgx-h100", nodes=tp),
    )
    cost, by_name = (
        StageCost(MODEL, plan, cluster),
        {k.name: k for k in layer_kernels(MODEL, plan).forward},
    )
    ring_s, attention_s = (cost.kernel_s(by_name[name]) for name in ("attention ring", "attention"))
    exposed_s = ring_s - ring_hidden_s(plan.cp, layout, attention_s, ring_s)
    trace = sl.ring_trace(MODEL, plan, cluster)
    assert trace.step_s == pytest.approx(attention_s + exposed_s)
    assert len([s for s in trace.spans if s.stream == "cp"]) == 8 * 7


def test_zigzag_computes_at_every_step_on_every_rank_and_contiguous_in_a_triangle():
    cluster = sl.load_cluster("dgx-h100")
    spans = {
        layout: sl.ring_trace(MODEL, sl.Plan(cp=8, cp_layout=layout, seq=SEQ), cluster).compute()
        for layout in ("zigzag", "contiguous")
    }
    assert len(spans["zigzag"]) == 64 and len(spans["contiguous"]) == 8 * 9 / 2


def test_contiguous_costs_attention_nearly_twice_in_a_step():
    cluster = sl.load_cluster("dgx-h100")
    beside = {"prefetch": 0, "dp_overlap": False}  # which slows some kernels more than others
    plan = sl.Plan(cp=8, seq=SEQ, zero=3, recompute="full", **beside)
    steps = {
        layout: sl.predict(MODEL, replace(plan, cp_layout=layout), cluster)
        for layout in ("zigzag", "contiguous")
    }
    cost = {layout: StageCost(MODEL, replace(plan, cp_layout=layout), cluster) for layout in steps}
    gained = [
        cost["contiguous"].layer.of(kind).compute - cost["zigzag"].layer.of(kind).compute
        for kind in "FB"
    ]
    assert steps["contiguous"].waterfall_s.compute - steps[
        "zigzag"
    ].waterfall_s.compute == pytest.approx(MODEL.layers * sum(gained), rel=1e-6)
    assert steps["contiguous"].step_s > 1.4 * steps["zigzag"].step_s


def test_plans_that_cannot_be_say_what_could():
    with pytest.raises(sl.InputError, match="zigzag"):
        sl.Plan(cp=2, cp_layout="striped")
    with pytest.raises(sl.InputError, match="all-to-all"):
        sl.Plan(cp=2, cp_kind="ulysses")
    with pytest.raises(sl.InputError, match="give a fused one, flash"):
        sl.Plan(cp=2, attention="unfused")
    with pytest.raises(
        sl.InputError,
        match=r"does not divide the 8 heads .* nearest that do: 2, 4, 8, or cp_kind = 'ring'",
    ):
        sl.Plan(cp=16, tp=4, cp_kind="all-to-all").check(MODEL)
    with pytest.raises(sl.InputError, match="16 zigzag chunks do not divide seq = 8200"):
        sl.Plan(cp=8, seq=8200).check(MODEL)
    sl.Plan(cp=8, seq=8200, cp_layout="contiguous").check(MODEL)


def test_a_ring_is_asked_of_a_plan_that_has_one():
    for plan in (sl.Plan(), sl.Plan(cp=8, cp_kind="all-to-all")):
        with pytest.raises(sl.InputError, match="cp of 2 or more"):
            sl.ring_trace(MODEL, plan, sl.load_cluster("dgx-h100"))


def test_a_ring_has_a_row_for_each_stream_and_a_box_for_each_span():
    trace = sl.ring_trace(
        MODEL, sl.Plan(cp=4, cp_layout="contiguous", seq=SEQ), sl.load_cluster("dgx-h100")
    )
    (chart,) = sl.layer_timeline(trace).charts
    rows = [f"rank {rank} {stream}" for rank in range(4) for stream in ("compute", "cp")]
    assert chart.y.names == rows
    assert sum(len(mark.x0) for mark in chart.marks if mark.labels) == len(trace.spans)
    first = sl.layer_timeline(
        [trace, trace], only="step 0", streams=("compute",), captions=["a", "b"]
    ).axes
    assert len(first) == 2 and first[0].get_title(loc="left").startswith("a: ")
    with pytest.raises(sl.InputError, match="no trace"):
        sl.layer_timeline([])


def test_a_step_of_a_ring_is_a_kernel_over_the_keys_that_are_there_and_none_where_the_mask_leaves_nothing():
    plan = sl.Plan(cp=4, cp_layout="contiguous", seq=SEQ)
    cost = StageCost(MODEL, plan, sl.load_cluster("dgx-h100"))
    for rank in (0, 3):
        instructions = rank_instructions(MODEL, plan, sl.generate("1f1b", 1, 1), context_rank=rank)
        pieces = [
            k
            for i in instructions
            if i.op == "0F0" and i.name == "layer 0"
            for k in i.kernels
            if isinstance(k, Attention)
        ]
        assert [(k.keys, k.share) for k in pieces] == [
            (SEQ // 4, share) for share in ([1, 0, 0, 0] if rank == 0 else [1, 2, 2, 2])
        ]
        seconds = [cost.kernel_s(k) for k in pieces]
        assert seconds[1:] == [0.0] * 3 if rank == 0 else seconds[0] < seconds[1] < 2 * seconds[0]

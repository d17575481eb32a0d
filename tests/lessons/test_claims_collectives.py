"""What lesson 4 tells people to say holds over a sweep of what it depends on."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

import simlab as sl
from simlab.collectives import Transfer
from simlab.collectives.nccl import collective
from simlab.engine.fabric import network_of
from simlab.engine.network import Network, run_rounds
from simlab.lessons import book
from simlab.lessons.words import entry
from simlab.units import GIB, KIB, MIB

LESSON = Path(__file__).parents[2] / "notebooks" / "04_collectives_and_dp.ipynb"
A100 = sl.load_cluster("dgx-a100", nodes=4)
LLAMA = sl.load_model("llama-2-7b")
NAIVE = sl.Plan(
    dp=4,
    tp=8,
    dp_overlap=False,
    bucket_bytes=MIB,
    order="cp-dp-tp-pp",
    tp_overlap="none",
)
PLACED = {"order": "tp-cp-dp-pp"}
OTHERS = {"dp_overlap": True, "bucket_bytes": 50 * MIB, "tp_overlap": "weight-grad"}


def nccl_s(name, size_bytes, nodes):
    cluster = sl.load_cluster("dgx-a100", nodes=nodes)
    group = sl.GroupShape(8 * nodes, 8)
    return collective("all_reduce", size_bytes, group, cluster, algorithms=(name,)).seconds


@pytest.mark.parametrize("nodes", [4, 16, 64])
@pytest.mark.parametrize("size_bytes", [KIB, 64 * KIB, MIB, 16 * MIB])
def test_on_many_nodes_nccls_tree_wins_far_beyond_small_buffers(nodes, size_bytes):
    assert nccl_s("tree", size_bytes, nodes) < nccl_s("ring", size_bytes, nodes)


@pytest.mark.parametrize("nodes", [2, 4, 16])
def test_nccls_tree_moves_about_what_its_ring_does_where_the_plain_one_passes_whole_buffers(nodes):
    assert nccl_s("tree", GIB, nodes) < 1.5 * nccl_s("ring", GIB, nodes)
    network = network_of(sl.load_cluster("dgx-a100", nodes=nodes))
    plain = sl.all_reduce_rounds("tree", range(8 * nodes), GIB)
    assert run_rounds([plain], network)[0] > 5 * nccl_s("tree", GIB, nodes)


def saved_by_placement(plan):
    return (
        sl.predict(LLAMA, plan, A100).step_s
        - sl.predict(LLAMA, replace(plan, **PLACED), A100).step_s
    )


def test_what_placement_alone_saves_grows_with_the_microbatch_from_a_loss():
    saved = [saved_by_placement(replace(NAIVE, microbatch_size=size)) for size in (1, 2, 4, 8)]
    assert saved == sorted(saved) and saved[0] < 0 < saved[2]


@pytest.mark.parametrize(("size", "at_least"), [(2, 0.2), (4, 0.2), (8, 0.2)])
def test_left_out_of_the_complete_set_placement_costs_a_great_deal_from_two_sequences_on(
    size, at_least
):
    plan = replace(NAIVE, microbatch_size=size, **OTHERS)
    with_it = sl.predict(LLAMA, replace(plan, **PLACED), A100).step_s
    assert saved_by_placement(plan) > at_least * with_it
    one = replace(plan, microbatch_size=1)
    assert abs(saved_by_placement(one)) < 0.05 * with_it


@pytest.mark.parametrize("gbit", [400, 200, 100, 50, 25])
def test_prefetch_hides_no_more_of_a_gather_than_there_is_computing(gbit):
    six = replace(LLAMA, layers=6)
    inter = replace(A100.inter, bandwidth_bytes_per_s=gbit * 1e9 / 8)
    cluster, plan = replace(A100, inter=inter), sl.Plan(dp=32, zero=3)
    traces = [sl.layer_trace(six, replace(plan, prefetch=ahead), cluster) for ahead in (0, 1, 2)]
    exposed = [trace.step_s - sl.busy_s(trace)[0] for trace in traces]
    assert exposed[0] > exposed[1] >= exposed[2] - 1e-9
    lengths = {span.op: span.end_s - span.start_s for span in traces[1].spans}
    left_over = lengths["0F0 layer 1 gather"] - lengths["0F0 layer 1"]
    if left_over > 0:
        assert exposed[2] > 0.9 * 4 * left_over  # in the forward's middle layers, at least
    else:
        assert exposed[1] < 0.1 * traces[1].step_s


@pytest.mark.parametrize("nodes", [2, 4, 8])
@pytest.mark.parametrize("size_bytes", [64 * MIB, GIB])
def test_halving_doubling_is_slow_over_nodes_by_its_order_and_nearest_first_like_the_hierarchical(
    nodes, size_bytes
):
    network, bits = network_of(sl.load_cluster("dgx-a100", nodes=nodes)), (8 * nodes).bit_length()
    nearest_first = [int(f"{rank:0{bits - 1}b}"[::-1], 2) for rank in range(8 * nodes)]
    forms = {
        "farthest": sl.all_reduce_rounds("halving-doubling", range(8 * nodes), size_bytes),
        "nearest": sl.all_reduce_rounds("halving-doubling", nearest_first, size_bytes),
        "levels": sl.all_reduce_rounds("hierarchical", range(8 * nodes), size_bytes, nodes=nodes),
    }
    seconds = {name: run_rounds([rounds], network)[0] for name, rounds in forms.items()}
    assert seconds["farthest"] > 3 * seconds["nearest"]
    assert seconds["nearest"] == pytest.approx(seconds["levels"], rel=0.15)


@pytest.mark.parametrize("ranks", [16, 32, 64])
def test_the_plain_trees_buffers_are_beaten_by_a_ring_from_some_hundred_kib_on(ranks):
    network = Network.of_pairs(sl.Link(latency_s=5e-6, bandwidth_bytes_per_s=25e9))

    def seconds(name, size_bytes):
        return run_rounds([sl.all_reduce_rounds(name, range(ranks), size_bytes)], network)[0]

    assert seconds("tree", 16 * KIB) < seconds("ring", 16 * KIB)
    assert seconds("ring", 2 * MIB) < seconds("tree", 2 * MIB)


@pytest.mark.parametrize("ranks", [8, 16, 32, 64])
@pytest.mark.parametrize("size_bytes", [KIB, 64 * KIB, MIB, 64 * MIB])
def test_with_a_link_for_each_pair_halving_doubling_is_the_fastest_of_three_but_no_lower_bound(
    ranks, size_bytes
):
    network = Network.of_pairs(sl.Link(latency_s=5e-6, bandwidth_bytes_per_s=25e9))

    def seconds(name):
        return run_rounds([sl.all_reduce_rounds(name, range(ranks), size_bytes)], network)[0]

    assert seconds("halving-doubling") < min(seconds("ring"), seconds("tree")) * (1 + 1e-9)
    doubling = [
        [Transfer(rank ^ away, rank, size_bytes, (0,), True) for rank in range(ranks)]
        for away in (2**k for k in range(ranks.bit_length() - 1))
    ]
    assert sl.replay(doubling, range(ranks))[-1].done
    tiny = size_bytes <= 64 * KIB
    assert (run_rounds([doubling], network)[0] < seconds("halving-doubling")) == tiny


@pytest.mark.parametrize(("target", "noise"), [(0.01, 1.0), (0.003, 1.0), (0.01, 10.0)])
def test_twice_the_batch_nearly_halves_the_steps_only_far_below_the_critical_batch(target, noise):
    """The lesson's own simulation of a noisy quadratic loss."""
    names: dict = {}
    cells = json.loads(LESSON.read_text(encoding="utf-8"))["cells"]
    (code,) = [text for cell in cells if "def steps_to(" in (text := "".join(cell["source"]))]
    exec(code.partition("\n\n\n")[0], names)

    def steps(batch):
        return names["steps_to"](target, batch, noise=noise)

    critical = steps(1) / steps(1e12)
    assert steps(critical / 16) < 0.55 * steps(critical / 32)
    assert steps(32 * critical) > 0.95 * steps(16 * critical)
    assert steps(2 * critical) > 0.65 * steps(critical)  # near it, twice the batch does not halve


def test_tensor_parallelism_in_3_d_receives_half_as_much_as_in_1_d_on_the_8_gpus_of_a_node():
    solution = book.exercise("d23").solution
    assert 2 < solution(8, 1) / solution(8, 3) < 2.5


@pytest.mark.parametrize("p", [8, 64, 512])
def test_computing_falls_like_1_over_p_and_what_is_received_more_slowly(p):
    solution = book.exercise("d23").solution
    assert solution(8 * p, 1) > solution(p, 1), "one dimension: not at all"
    for dimensions, falls in ((2, 8**0.5), (3, 4)):
        assert 1 < solution(p, dimensions) / solution(8 * p, dimensions) < falls < 8


# d10
# ---------------------------------------------------------------------------------------------

SCALED = [("gpt2-xl", "dgx-h100"), ("llama-7b", "dgx-h100"), ("gpt2-xl", "dgx-a100")]


def efficiencies(name, cluster, zero, batch=512):
    """{gpus: (strong, weak)}: the step against the one on 8 GPUs, over the ideal."""

    def step_s(gpus, microbatches):
        plan = sl.Plan(dp=gpus, zero=zero, microbatches=microbatches)
        where = sl.load_cluster(cluster, nodes=gpus // 8)
        return sl.predict(sl.load_model(name), plan, where).step_s

    before_s = step_s(8, batch // 8)
    return {
        gpus: (
            before_s / (step_s(gpus, batch // gpus) * gpus / 8),
            before_s / step_s(gpus, batch // 8),
        )
        for gpus in (128, 512)
    }


@pytest.mark.parametrize(("name", "cluster"), SCALED)
@pytest.mark.parametrize("zero", [0, 1])
def test_strong_scaling_falls_sooner_where_communication_is_paid_once_per_step(name, cluster, zero):
    for strong, weak in efficiencies(name, cluster, zero).values():
        assert strong < weak - 0.05 and weak > 0.9


@pytest.mark.parametrize(("name", "cluster"), SCALED)
def test_under_zero_3_strong_and_weak_scaling_fall_alike(name, cluster):
    for strong, weak in efficiencies(name, cluster, zero=3).values():
        assert strong == pytest.approx(weak, rel=0.06) and weak < 0.9


@pytest.mark.parametrize(("name", "cluster"), SCALED)
@pytest.mark.parametrize("sequences", [4, 8])
def test_under_zero_3_a_fixed_batch_shrinks_the_microbatch_and_strong_scaling_falls_far_below_weak(
    name, cluster, sequences
):
    """8 GPUs compute `sequences` at a time; of 512 sequences a step, 512 GPUs have one each."""

    def step_s(gpus, size, microbatches):
        plan = sl.Plan(dp=gpus, zero=3, microbatch_size=size, microbatches=microbatches)
        return sl.predict(
            sl.load_model(name), plan, sl.load_cluster(cluster, nodes=gpus // 8)
        ).step_s

    before_s = step_s(8, sequences, 64 // sequences)
    strong = before_s / (step_s(512, 1, 1) * 512 / 8)
    weak = before_s / step_s(512, sequences, 64 // sequences)
    assert strong < 0.5 * weak


@pytest.mark.parametrize(("name", "cluster"), SCALED)
def test_amdahls_law_is_too_kind_to_strong_scaling(name, cluster):
    """Amdahl keeps what communication leaves exposed on 8 GPUs; the simulated step exposes more."""
    model, batch = sl.load_model(name), 512
    step = sl.predict(
        model, sl.Plan(dp=8, zero=1, microbatches=batch // 8), sl.load_cluster(cluster)
    )
    kept = step.exposed_s["dp"] / step.step_s
    for gpus, (strong, _) in efficiencies(name, cluster, zero=1).items():
        amdahl = 1 / ((1 - kept) + kept * gpus / 8)
        assert strong < amdahl


# t1
# ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [2, 4, 8, 16])
def test_by_bytes_a_pipelined_reduce_and_broadcast_take_n_over_n_minus_1_of_a_ring_all_reduce(gpus):
    """A chain passes the buffer in many pieces, so a link carries it once down and once back."""
    ring = sl.most_sent_bytes(sl.all_reduce_rounds("ring", range(gpus), 1.0))
    there_and_back = 2.0
    assert there_and_back / ring == pytest.approx(gpus / (gpus - 1))
    for tongue in ("en", "zh"):
        (given,) = re.findall(r"1\.\d+", entry("t1.refuted", tongue=tongue))
        assert float(given) == pytest.approx(8 / 7, abs=0.005)


# follow-ups
# ---------------------------------------------------------------------------------------------


def test_the_busiest_rank_of_ring_and_halving_doubling_sends_the_least_and_only_the_latter_in_few_rounds():
    for n in (4, 8, 16, 64):
        forms = {
            name: sl.all_reduce_rounds(name, range(n), 1.0) for name in ("ring", "halving-doubling")
        }
        for rounds in forms.values():
            assert sl.most_sent_bytes(rounds) == pytest.approx(2 * (n - 1) / n)
        assert len(forms["ring"]) == 2 * (n - 1)
        assert len(forms["halving-doubling"]) == 2 * (n.bit_length() - 1)


@pytest.mark.parametrize("buckets", [1, 2, 8, 64])
def test_one_bucket_hides_nothing_and_the_last_of_many_is_always_exposed(buckets):
    exposed = book.exercise("d08").oracle
    for reduce_s, backward_s in ((0.1, 0.3), (0.3, 0.1)):
        left = exposed(reduce_s, backward_s, buckets)
        assert left >= reduce_s / buckets - 1e-12
        assert (left == pytest.approx(reduce_s)) == (buckets == 1)


@pytest.mark.parametrize("gbit", [400, 100, 25])
def test_parameters_that_are_kept_save_one_gather_of_three(gbit):
    inter = replace(A100.inter, bandwidth_bytes_per_s=gbit * 1e9 / 8)
    plans = [sl.Plan(dp=32, zero=3, reshard=reshard) for reshard in (True, False)]
    sent = [sl.traffic(LLAMA, replace(plan, gradient_bytes=2))[0].dp for plan in plans]
    assert sent[1] / sent[0] == pytest.approx(2 / 3, rel=0.01)
    steps = [sl.predict(LLAMA, plan, replace(A100, inter=inter)).step_s for plan in plans]
    assert steps[1] <= steps[0]


# figures that a question gives
# ---------------------------------------------------------------------------------------------


def test_the_times_that_w06_gives_are_those_of_its_cells():
    text = entry("w06.prediction", tongue="en")["text"]
    given = [float(number) for number in re.findall(r"([\d.]+) ms", text)]
    six = replace(LLAMA, layers=6)
    inter = replace(A100.inter, bandwidth_bytes_per_s=200e9 / 8)
    cluster, plan = replace(A100, inter=inter), sl.Plan(dp=32, zero=3, prefetch=1)
    spans = sl.layer_trace(six, plan, cluster).spans
    took = {span.op: 1e3 * (span.end_s - span.start_s) for span in spans if span.rank == 0}
    layer = ("0F0 layer 2", "0B0 layer 2", "0F0 layer 2 gather", "0B0 layer 2 gradients")
    names = (*layer, "0F0 head gather", "0B0 embedding gradients")
    late = 1e3 * sl.predict(six, replace(plan, prefetch=0), cluster).exposed_s["dp"]
    assert given == pytest.approx([*(took[name] for name in names), late], rel=0.02)


def test_what_is_exposed_at_400_gbit_is_what_refutes_w06():
    (given,) = re.findall(r"(\d+) milliseconds", entry("w06.refuted", tongue="en"))
    inter = replace(A100.inter, bandwidth_bytes_per_s=400e9 / 8)
    plan = sl.Plan(dp=32, zero=3, prefetch=1)
    step = sl.predict(replace(LLAMA, layers=6), plan, replace(A100, inter=inter))
    assert round(1e3 * step.exposed_s["dp"]) == int(given)
    sent = [sl.traffic(LLAMA, sl.Plan(dp=32, zero=zero))[0].dp for zero in (0, 3)]
    assert sent[1] == pytest.approx(sent[0], rel=0.01), "fp32 gradients: as many bytes"

"""What a prediction says of itself, in text, as plain values and as spans: against the step that it
was made from, the plan's own numbers, and the same step played layer by layer."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import accumulate, pairwise

import pytest
from plan_oracles import cluster_of

import simlab as sl
from simlab.cli.main import main
from simlab.explorers.plan.step import _note
from simlab.units import bytes_text

LLAMA, NODE = sl.load_model("llama-3-8b"), sl.load_cluster("dgx-h100")
PLAN = sl.Plan(dp=2, tp=2, pp=2, microbatches=8, microbatch_size=4, seq=4096, recompute="full")
UNITS = {"µs": 1e-6, "ms": 1e-3, "s": 1.0, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}


def quantity(text):
    """A number of bytes or seconds that is written for people."""
    number, unit = text.split()
    return float(number) * UNITS[unit]


@pytest.fixture(scope="module")
def fitting():
    return sl.predict(LLAMA, PLAN, NODE)


def with_memory(prediction, gpu_bytes, host_bytes=None):
    """The same prediction on GPUs, and hosts, with another memory."""
    gpu = replace(prediction.cluster.gpu, memory_bytes=gpu_bytes)
    host = host_bytes or prediction.cluster.host_memory_bytes
    cluster = replace(prediction.cluster, gpu=gpu, host_memory_bytes=host)
    return replace(prediction, cluster=cluster)


def held(prediction):
    """[{op: bytes} of each pipeline rank], at the peak of each op."""
    return [
        {m.op: sum(m.held.values()) for m in prediction.memory.moments(rank) if m.op}
        for rank in range(prediction.plan.pp)
    ]


# plain values
# ------------------------------------------------------------------------------------------


def test_its_plain_values_are_the_plans_and_the_steps(fitting):
    """As many microbatches live on a rank of 1F1B as ranks follow it, and its own; with the layers
    recomputed each holds the inputs of 16 layers, 4 x 4096 x 4096 numbers of 16 bits."""
    small = with_memory(fitting, max(held(fitting)[0].values()) - 1)
    for found in (fitting, small):
        values = found.to_dict()
        assert sl.Plan(**values.pop("plan")) == PLAN
        assert values.pop("assumptions") == []  # its GPU was measured
        assert values.pop("uncertainty")["suites"] == ["nvidia_dgxc_h100_bf16"]
        assert values.pop("fit") == found.fit._asdict()
        assert values.pop("peak_activations_bytes")[0] == 2 * 16 * 4 * 4096 * 4096 * 2
        breaches = values.pop("breaches")
        assert [breach["rank"] for breach in breaches] == ([] if found is fitting else [0, 1])
        assert all(held(found)[its["rank"]][its["op"]] == its["amount"] for its in breaches)
        assert values.pop("bubble") == sl.bubble(found.trace)._asdict()
        assert values.pop("bubble_parts") == found.bubble_parts._asdict()
        spent = values.pop("waterfall_s")
        assert sum(spent.values()) == pytest.approx(found.step_s)
        assert {name: spent[name] for name in ("dp", "tp", "pp", "cp", "ep")} == values.pop(
            "exposed_s"
        )
        tokens = 64 * 4096
        assert values == {
            "model": "llama-3-8b", "cluster": "dgx-h100", "gpus": 8, "seq": 4096,
            "global_batch": 2 * 8 * 4, "schedule": "1f1b", "stages": 2, "microbatches": 8,
            "step_s": found.step_s, "tokens_per_s": pytest.approx(tokens / found.step_s),
            "mfu": found.mfu, "hfu": found.hfu, "mfu_attention": "full",
            "memory_bytes": found.held[1], "peak_rank": 1, "fits": found is fitting,
            "gpu_memory_bytes": found.cluster.gpu.memory_bytes,
            "peak_live_microbatches": [2, 1],
        }  # fmt: skip


def test_without_a_length_in_the_plan_the_models_counts():
    found = sl.predict(sl.load_model("gpt2"), sl.Plan(dp=8), NODE)
    assert found.to_dict()["seq"] == 1024
    assert "global batch             8 sequences of 1024 tokens" in found.summary()


# text
# ------------------------------------------------------------------------------------------


def test_a_summary_has_the_plan_and_each_part_of_the_step_with_its_share(fitting):
    head, *lines = fitting.summary().splitlines()
    at = lines.index("the step's time, as means over ranks:")
    said = {line[:24].strip(): line[25:] for line in lines[:at]}
    assert head == (
        "llama-3-8b on 8 x h100-sxm-80gb: dp 2, tp 2, pp 2, cp 1, ZeRO-0, 1f1b, 8 microbatches of 4"
    )
    assert said.pop("global batch") == "64 sequences of 4096 tokens"
    assert quantity(said.pop("step")) == pytest.approx(fitting.step_s, rel=0.001)
    assert said.pop("error of such steps") == str(fitting.uncertainty)
    assert said.pop("fit") == str(fitting.fit)
    all_gpus, each = re.findall(r"[\d,]+", said.pop("tokens/s"))
    rates = [int(its.replace(",", "")) for its in (all_gpus, each)]
    assert rates == pytest.approx([fitting.tokens_per_s, fitting.tokens_per_s / 8], abs=1)
    utilisations = re.fullmatch(
        r"([\d.]+)%, ([\d.]+)%   attention counted in full", said.pop("MFU, HFU")
    )
    assert [float(its) / 100 for its in utilisations.groups()] == pytest.approx(
        [fitting.mfu, fitting.hfu], abs=0.0006
    )
    total, there, rank, parts = re.fullmatch(
        r"([\d.]+ GiB) of ([\d.]+ GiB) on pipeline rank (\d): (.*)", said.pop("peak memory")
    ).groups()
    assert said.pop("pipeline idle").startswith(
        f"{sum(fitting.waterfall_s[6:8]) / fitting.step_s:.1%} of"
    )
    assert not said and rank == "1"
    assert quantity(total) == pytest.approx(sum(fitting.held[1].values()), rel=0.01)
    assert quantity(there) == pytest.approx(fitting.cluster.gpu.memory_bytes, rel=0.01)
    sizes = dict(re.findall(r"(\w+) ([\d.]+ GiB)", parts))
    assert {name: quantity(its) for name, its in sizes.items()} == pytest.approx(
        {name: its for name, its in fitting.held[1].items() if its}, rel=0.02
    )
    spent = {name: its for name, its in fitting.waterfall_s._asdict().items() if its}
    for line, (name, seconds) in zip(lines[at + 1 :], spent.items(), strict=True):
        told, value, share, bar = re.fullmatch(
            r"  (\w+) +([\d.]+ \w+) +([\d.]+)%  (#*)", line
        ).groups()
        assert told == name and quantity(value) == pytest.approx(seconds, rel=0.02)
        assert float(share) / 100 == pytest.approx(seconds / fitting.step_s, abs=0.0006)
        assert len(bar) == pytest.approx(40 * seconds / fitting.step_s, abs=0.5)


@pytest.mark.parametrize("first_rank", [0, 1])
def test_what_does_not_fit_says_how_much_where_since_when_and_what_most_of_it_is(
    fitting, first_rank
):
    """With less memory than two microbatches need, rank 0 holds too much first; with less than its
    backward needs, the last rank does."""
    ops = held(fitting)[0]
    too_small = max(ops.values()) - 1 if first_rank else (ops["0F0"] + ops["0F1"]) / 2
    found = with_memory(fitting, too_small)
    total, rank, more, op, start, first, size, second, other = re.fullmatch(
        r"([\d.]+ GiB) on pipeline rank (\d), ([\d.]+ \wiB) more than a GPU has, "
        r"from (\w+) at ([\d.]+ \w+) on; most are (\w+) ([\d.]+ GiB) and (\w+) ([\d.]+ GiB)",
        found.excess_text,
    ).groups()
    there = found.cluster.gpu.memory_bytes
    assert not found.fits and quantity(total) == pytest.approx(
        sum(found.held[1].values()), rel=0.01
    )
    assert quantity(more) == pytest.approx(sum(found.held[1].values()) - there, rel=0.02)
    starts = {}
    for its, moments in enumerate(held(found)):
        too_much = {name for name, size in moments.items() if size > there}
        starts |= {s.op: s.start_s for s in found.trace.compute(its) if s.op in too_much}
    earliest = min(starts, key=starts.get)
    assert (rank, op) == ("1", earliest) and earliest.startswith(str(first_rank))
    assert quantity(start) == pytest.approx(starts[earliest], abs=0.006)
    assert {first: quantity(size), second: quantity(other)} == pytest.approx(
        {name: found.held[1][name] for name in ("optimizer", "activations")}, rel=0.02
    )
    assert first == "optimizer" and found.excess_text in found.summary()
    assert "does not fit: " in found.summary()
    assert fitting.excess_text == "" and "does not fit" not in fitting.summary()


def test_states_that_no_host_has_room_for_say_so():
    found = sl.predict(LLAMA, replace(PLAN, offload="optimizer"), NODE)
    small = with_memory(found, NODE.gpu.memory_bytes, host_bytes=2**37)
    # 12 bytes and a gradient of 4 for each parameter, on two replicas
    states = 2 * 16 * LLAMA.parameters
    assert found.host_bytes == pytest.approx(states, rel=0.02) and not small.fits
    said = re.fullmatch(
        r"([\d.]+ GiB) of optimizer on a node's host, which has (.*)", small.fit.why
    )
    assert quantity(said[1]) == pytest.approx(found.host_bytes, rel=0.01) and said[2] == "128.0 GiB"


def test_a_stack_has_the_name_of_its_model_and_rank_and_ends_with_the_step(fitting):
    assert fitting.memory_stack().name == fitting.memory_stack(1).name == "llama-3-8b, rank 1 of 2"
    first = fitting.memory_stack(0)
    assert first.name == "llama-3-8b, rank 0 of 2"
    assert first.edges[-1] == pytest.approx(fitting.step_s)
    alone = sl.predict(sl.load_model("gpt2"), sl.Plan(dp=8), NODE)
    assert alone.memory_stack().name == "gpt2"
    for rank in (-1, 2):
        with pytest.raises(sl.InputError, match=rf"rank {rank}: there are"):
            fitting.memory_stack(rank)


# spans
# ------------------------------------------------------------------------------------------

SMALL = sl.Model(
    name="small", layers=6, hidden=64, heads=8, vocab=1000, positions=64, seq=64, tied_head=False
)


def reduced(trace, layers):
    """{(rank, stage, stream, kind): (first begin, last end, bytes)} of a trace's communication
    between ranks with the same part of the model."""
    stage_of = {"embedding": 0, "head": len(layers) - 1}
    for stage, after in enumerate(accumulate(layers)):
        stage_of |= {f"layer {n}": stage for n in range(after - layers[stage], after)}
    found = defaultdict(list)
    for span in trace.spans:
        unit = re.search(r"embedding|layer \d+|head", span.op)
        if span.stream in ("dp", "replicas") and unit:
            found[span.rank, stage_of[unit[0]], span.stream, span.kind].append(span)
    return {
        key: (min(s.start_s for s in its), max(s.end_s for s in its), sum(s.bytes for s in its))
        for key, its in found.items()
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"zero": 0}, {"zero": 1}, {"zero": 1, "hybrid": 2}, {"zero": 2, "hybrid": 2},
        {"zero": 1, "schedule": "interleaved-1f1b", "chunks": 3}, {"zero": 0, "dp_overlap": False},
    ],
    ids=str,
)  # fmt: skip
def test_its_spans_of_reductions_cover_those_of_the_layers_played(fields):
    plan = sl.Plan(dp=4, pp=2, microbatches=2, **fields)
    found = sl.predict(SMALL, plan, cluster_of(8))
    played = reduced(sl.layer_trace(SMALL, plan, cluster_of(8)), [6 // plan.stages] * plan.stages)
    if plan.zero == 2:  # each op's scatters are its own
        played = {key: its for key, its in played.items() if key[3] != "reduce_scatter"}
    spans = [s for s in found.trace.spans if s.stream in ("dp", "replicas")]
    told = {(s.rank, s.stage, s.stream, s.kind): (s.start_s, s.end_s, s.bytes) for s in spans}
    assert len(told) == len(spans) and set(told) == set(played) and told
    for key, its in told.items():
        assert its == pytest.approx(played[key], rel=1e-9)
    words = {"all_gather": "parameters", "reduce_scatter": "gradients", "all_reduce": "gradients"}
    for span in spans:
        what = "sum over replicas" if span.stream == "replicas" else words[span.kind]
        assert span.op == f"{span.stage} {what}"


def test_the_optimizers_spans_follow_the_last_reduction_on_every_rank():
    plan = sl.Plan(dp=2, pp=4, microbatches=4, stage_layers="uneven")
    found = sl.predict(SMALL, plan, cluster_of(8))
    spans = [s for s in found.trace.spans if s.stream == "optimizer"]
    assert [(s.rank, s.op, s.kind, s.bytes) for s in spans] == [
        (rank, "step", "optimizer", 0) for rank in range(4)
    ]
    compute_s = max(span.end_s for span in found.trace.compute())
    for span in spans:
        assert span.start_s == pytest.approx(compute_s + found.after_s)
        assert span.end_s - span.start_s == pytest.approx(found.optimizer_s)
    assert (found.step_s, found.offload_s) == (pytest.approx(span.end_s), 0)


@pytest.mark.parametrize("pp", [1, 4])
@pytest.mark.parametrize("to", ["host", "nvme"])
@pytest.mark.parametrize("offload", ["optimizer", "parameters"])
def test_the_trace_of_a_prediction_has_the_copies_at_the_end_of_the_step(offload, to, pp):
    """They are those that the layer trace plays; and what the ops leave out of the step's time is the
    length of the spans, as the waterfall has it."""
    plan = sl.Plan(
        dp=2, pp=pp, microbatches=4, zero=3 if pp == 1 else 1, offload=offload, offload_to=to
    )
    cluster = cluster_of(plan.gpus)
    found, played = sl.predict(SMALL, plan, cluster), sl.layer_trace(SMALL, plan, cluster)
    assert found.trace.whole_step_s == pytest.approx(found.step_s)
    copies, theirs = (
        [s for s in trace.spans if s.kind == "copy" and not s.unit]
        for trace in (found.trace, played)
    )
    assert {(s.rank, s.stream, s.op, s.bytes) for s in copies} == {
        (s.rank, s.stream, s.op, s.bytes) for s in theirs
    }
    assert all(s.bytes > 0 for s in copies) and len(copies) >= pp
    assert any(s.stream == "drive" for s in copies) == (to == "nvme")
    after = [s for s in found.trace.spans if s in copies or s.stream == "optimizer"]
    for rank in range(pp):
        its = sorted((s for s in after if s.rank == rank), key=lambda s: s.start_s)
        assert its[0].start_s == pytest.approx(found.trace.end_s + found.after_s)
        assert all(s.end_s == pytest.approx(t.start_s) for s, t in pairwise(its))
    lengths_s = [sum(s.end_s - s.start_s for s in copies if s.rank == r) for r in range(pp)]
    in_ops_s = sum(parts.offload for parts in found.spent) / pp
    assert max(lengths_s) + in_ops_s == pytest.approx(found.waterfall_s.offload)
    updates_s = sum(s.end_s - s.start_s for s in after if s.stream == "optimizer") / pp
    assert updates_s == pytest.approx(found.waterfall_s.optimizer)


def test_a_rank_reduces_what_is_left_after_its_last_message_has_been_sent():
    """Most layers are on the last rank, whose reductions end the step on a slow link: it first sends
    the gradient of its input, which keeps it (as Megatron-LM's 1F1B does)."""
    model = replace(SMALL, layers=12, hidden=512, ffn=2048, head_size=64)
    plan = sl.Plan(dp=4, pp=2, microbatches=2, stage_layers=(1, 11), dp_overlap=False)
    node = cluster_of(8)
    rate = node.intra.bandwidth_bytes_per_s / 400
    slow = replace(node, intra=replace(node.intra, bandwidth_bytes_per_s=rate))
    found, trace = sl.predict(model, plan, slow), sl.layer_trace(model, plan, slow)
    assert found.step_s == pytest.approx(trace.whole_step_s, rel=1e-9)
    told = trace.metadata
    assert (told["name"], told["level"]) == ("small, layer by layer", "layers")
    sent = [s for s in trace.spans if s.rank == 1 and s.stream == "send"]
    last_s = max(s.end_s for s in found.trace.compute(1))
    kept_s = max(s.end_s for s in sent) - last_s
    left = [s.start_s for s in found.trace.spans if s.rank == 1 and s.kind == "all_reduce"]
    assert kept_s > 0 and min(left) >= last_s + kept_s * (1 - 1e-9)


@pytest.mark.parametrize(
    ("beside", "verdict", "left"), [(20, "fits", 1), (2, "tight", 1), (2, "does not fit", -1)]
)
def test_a_judgement_is_the_same_in_text_in_json_and_in_the_explorers_note(
    fitting, capsys, beside, verdict, left
):
    """With so many GB more, or fewer, than tensors, usual waste and reserve need."""
    gb = 1e9
    needed = fitting.fit.needed_bytes
    memory = needed + (beside * gb if verdict == "fits" else left * gb)
    found = with_memory(fitting, memory)
    fit = found.fit
    assert fit.verdict == verdict and fit.fits is (left > 0)
    assert fit.margin_bytes == pytest.approx(memory - needed)
    rest = f"{bytes_text(abs(memory - needed))} {'free' if left > 0 else 'missing'}"
    assert fit.why.endswith(f"{bytes_text(memory)}, {rest}") and str(fit) == f"{verdict}: {fit.why}"
    assert f"\nfit                      {fit}\n" in found.summary()
    facts = found.to_dict()
    assert facts["fits"] is fit.fits and facts["fit"] == fit._asdict()
    assert _note(found, whole=True).en.startswith(f"Memory: {fit}. ") == (verdict != "fits")
    if left < 0:
        with pytest.raises(sl.InputError, match=re.escape(str(fit))):
            sl.predict(found.model, found.plan, found.cluster, strict=True)


@pytest.mark.parametrize(("recompute", "status"), [("none", 1), ("full", 0)])
def test_strict_makes_the_judgement_the_exit_status(capsys, recompute, status):
    words = "simulate --model llama-2-13b --cluster dgx-h100 --tp 8 --microbatch-size 16"
    words += f" --sequence-parallel yes --recompute {recompute}"
    assert main(words.split()) == 0 and main([*words.split(), "--strict"]) == status
    said = capsys.readouterr().out
    assert said.count("does not fit: ") == 2 * status
    times = (
        "simulate --schedule 1f1b --pp 2 --microbatches 4 --forward-ms 1 --backward-ms 2 --strict"
    )
    assert main([*times.split(), "--activation-cap", "9"]) == 0
    assert main([*times.split(), "--activation-cap", "1"]) == 1
    assert main(times.split()) == 2


def test_a_summary_names_expert_parallelism_where_there_is_some():
    plan = sl.Plan(dp=8, ep=4, zero=1, microbatches=2, seq=4096)
    head = sl.predict(sl.load_model("mixtral-8x7b"), plan, NODE).summary().splitlines()[0]
    assert ", cp 1, ep 4, ZeRO-1, " in head

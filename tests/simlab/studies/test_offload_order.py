"""When each part of a step with an offloaded optimizer starts: what must have ended before it is
written down here once more, by name, and how long each takes in closed form."""

import re
from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import pytest

import simlab as sl
from simlab.cost.stage_times import StageCost
from simlab.studies.offload import OVERLAPS, TARGETS, offload_step

HIDDEN, VOCAB, SEQ = 256, 2048, 128
MODEL = sl.Model(
    name="small", layers=3, hidden=HIDDEN, heads=8, vocab=VOCAB, positions=SEQ, seq=SEQ,
    tied_head=False,
)  # fmt: skip
NODE = sl.load_cluster("dgx-h100")
PARTS = ["embedding", "layer 0", "layer 1", "layer 2", "head"]
PARAMETERS = dict.fromkeys(PARTS, 12 * HIDDEN**2 + 13 * HIDDEN) | {
    "embedding": (VOCAB + SEQ) * HIDDEN,
    "head": VOCAB * HIDDEN + 2 * HIDDEN,
}
"""Of a GPT's layer: four matrices of 12 h x h together, their biases and two norms."""
ADAM_S, STATE_BYTES, GRADIENT_BYTES, ELEMENT_BYTES = 1e-9, 12, 4, 2

ORDER = {
    "compute": [*(f"F {p}" for p in PARTS), "other microbatches", *(f"B {p}" for p in PARTS[::-1])],
    "dp": [*(f"reduce {p}" for p in PARTS[::-1]), *(f"gather {p}" for p in PARTS)],
    "pcie out": [f"gradients {p}" for p in PARTS[::-1]],
    "host": [f"Adam {p}" for p in PARTS],
    "nvme": [  # no more than two parts are there at a time
        "read embedding", "read layer 0", "write embedding", "read layer 1", "write layer 0",
        "read layer 2", "write layer 1", "read head", "write layer 2", "write head",
    ],
    "pcie in": [f"parameters {p}" for p in PARTS],
}  # fmt: skip
"""{stream: what it does in a step, in order}"""


def work(plan, to):
    """{stream: what it does of `ORDER` under `plan`}"""
    absent = set()
    if plan.microbatches == 1:
        absent.add("other")
    if plan.dp == 1:
        absent.add("reduce")
    if plan.dp == 1 or not plan.zero:
        absent.add("gather")
    if to == "host":
        absent |= {"read", "write"}
    return {
        stream: [name for name in names if name.split()[0] not in absent]
        for stream, names in ORDER.items()
    }


def needs(step, name, overlap, does):
    """[(step, name)] of what must have ended before `name` of `step` starts, but for what is before
    it on its own stream."""
    what, _, part = name.partition(" ")
    returned = "gather" if "gather head" in does["dp"] else "parameters"
    made = "B embedding" if overlap == "none" else f"B {part}"
    sent = [(step, f"gradients {p}") for p in PARTS]  # the norm is of all gradients
    read = [(step, f"read {part}")] if does["nvme"] else []
    return {
        "F": [
            (step - (2 if overlap == "delayed" else 1), f"{returned} {p}")
            for p in (PARTS if overlap == "none" else [part])
        ],
        "other": [],
        "B": [],
        "reduce": [(step, made)],
        "gradients": [(step, f"reduce {part}" if "reduce head" in does["dp"] else made)],
        "read": sent,
        "Adam": sent + read,
        "write": [(step, f"Adam {part}")],
        "parameters": [(step, "Adam head" if overlap == "none" else f"Adam {part}")],
        "gather": [(step, f"parameters {part}")],
    }[what]


CASES = [(1, 0, 1), (1, 0, 3), (8, 0, 2), (8, 1, 1), (4, 2, 2)]
"""(dp, ZeRO stage, microbatches)"""


@pytest.fixture(params=[(*c, to, o) for c in CASES for to in TARGETS for o in OVERLAPS], ids=str)
def case(request):
    """(plan, where to, overlap, the step)"""
    dp, zero, microbatches, to, overlap = request.param
    plan = sl.Plan(dp=dp, zero=zero, microbatches=microbatches, microbatch_size=2)
    cluster = NODE if dp == 8 else sl.Cluster(**{**vars(NODE), "gpus_per_node": dp})
    step = offload_step(MODEL, plan, cluster, to=to, overlap=overlap, host_adam_s=ADAM_S)
    return plan, cluster, to, overlap, step


def named(trace):
    """{(step, name): `Span`} of two steps."""
    found = {}
    for span in trace.spans:
        step, name = re.fullmatch(r"step (\d+) (.*)", span.op).groups()
        assert (int(step), name) not in found
        found[int(step), name] = span
    return found


def test_each_starts_as_soon_as_what_it_needs_has_ended_and_its_stream_is_free(case):
    plan, _, to, overlap, step = case
    spans, does, streams = named(step.trace), work(plan, to), defaultdict(list)
    for key, span in spans.items():
        streams[span.stream].append((span.start_s, span.end_s, key))
    assert set(streams) == {stream for stream, names in does.items() if names}
    exact = 0
    for stream, its in streams.items():
        assert len(its) == 2 * len(does[stream])
        for (_, free_s, before), (start_s, _, key) in pairwise(sorted(its)):
            at = does[stream].index(key[1])
            if at:
                assert before == (key[0], does[stream][at - 1])
            needed = needs(*key, overlap, does)
            ready_s = [spans[need].end_s for need in needed if need in spans]
            assert start_s >= max([free_s, *ready_s]) - 1e-12
            if len(ready_s) == len(needed):
                exact += 1
                assert start_s == pytest.approx(max([free_s, *ready_s]), abs=1e-12)
    assert exact > 2 * sum(map(len, does.values())) / 3


def test_each_takes_the_time_of_its_bytes_or_of_its_parameters(case):
    plan, cluster, _, _, step = case
    cost, shards = StageCost(MODEL, plan, cluster), plan.dp if plan.zero else 1
    reduce = "reduce_scatter" if plan.zero else "all_reduce"
    for (_, name), span in named(step.trace).items():
        what, _, part = name.partition(" ")
        whole = PARAMETERS.get(part, 0)
        own = whole / shards
        sizes = {"gradients": own * GRADIENT_BYTES, "parameters": own * ELEMENT_BYTES}
        assert span.bytes == int(sizes.get(what, 0)) and span.rank == 0
        drive_s = own * STATE_BYTES * plan.dp / cluster.nvme_bytes_per_s
        closed_s = {
            "reduce": cost.collective_s(reduce, whole * GRADIENT_BYTES, cost.groups.dp),
            "gather": cost.collective_s("all_gather", whole * ELEMENT_BYTES, cost.groups.dp),
            "Adam": own * plan.dp * ADAM_S,
            "read": drive_s,
            "write": drive_s,
        } | {its: size / cluster.pcie_bytes_per_s for its, size in sizes.items()}
        if what in closed_s:
            assert span.end_s - span.start_s == pytest.approx(closed_s[what], rel=1e-9)


def test_it_computes_what_predict_says_and_a_trace_of_two_steps_has_twice_what_each_takes(case):
    plan, cluster, to, overlap, step = case
    spans, totals = named(step.trace), defaultdict(float)
    for (_, name), span in spans.items():
        totals[name.split()[0]] += span.end_s - span.start_s
        totals[span.stream] += span.end_s - span.start_s
    (one,) = sl.predict(MODEL, plan, cluster).stages
    assert totals["F"] == pytest.approx(2 * one.forward.total)
    if plan.zero < 2:  # else each backward reduces, which slows it
        assert totals["B"] == pytest.approx(2 * one.backward.total)
    assert totals["other"] == pytest.approx((plan.microbatches - 1) * (totals["F"] + totals["B"]))
    assert [totals[stream] / 2 for stream in ORDER] == pytest.approx(list(step.busy_s))
    begins = sorted(span.start_s for (_, name), span in spans.items() if name == "F embedding")
    # where the update is delayed, a longer step may follow a shorter one: the mean is between them
    assert begins == pytest.approx([0.0, step.step_s], rel=0.1 if overlap == "delayed" else 1e-6)
    assert step.exposed_s == step.step_s - step.busy_s.compute
    assert step.trace.metadata == {
        "name": f"small, optimizer on {to}, {overlap}",
        "source": "simulated", "ranks": 1, "level": "layers",
    }  # fmt: skip


def test_a_tied_head_is_updated_once_with_the_embedding():
    tied = replace(MODEL, tied_head=True)
    step = offload_step(tied, sl.Plan(dp=8), NODE, host_adam_s=ADAM_S)
    updated = sum(PARAMETERS.values()) - VOCAB * HIDDEN
    assert step.busy_s.host == pytest.approx(8 * updated * ADAM_S)


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ({}, {"to": "tape"}, "to = 'tape': give one of host, nvme"),
        ({}, {"overlap": "all"}, "overlap = 'all': give one of none, transfers, delayed"),
        ({"pp": 2, "microbatches": 2}, {}, "pp = 2.*offload is for dp alone"),
        ({"cp": 2}, {}, "cp = 2.*offload is for dp alone"),
        ({"dp": 4, "zero": 1, "hybrid": 2}, {}, "offload is for dp alone"),
        ({"dp": 4, "bucket_bytes": 2**20}, {}, "bucket_bytes = 1048576: gradients go unit by unit"),
    ],
)
def test_a_plan_that_has_more_than_replicas_of_whole_units_is_refused(changes, options, words):
    with pytest.raises(sl.InputError, match=words):
        offload_step(MODEL, sl.Plan(**changes), NODE, **options)

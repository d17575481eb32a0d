"""What a list says beside what realrun and torch do: how far parameters are gathered ahead, how
many bytes the norm, the overflow flag and padded units have, and for what a played step waits."""

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_oracles import plan_of

import simlab as sl
from simlab.engine.play import ClusterTimes, play
from simlab.lowering.build import program_of
from simlab.lowering.instructions import BEGIN, COMPUTE, rank_instructions

MODEL = sl.Model(layers=6, hidden=64, heads=8, vocab=1000, positions=64, seq=64, tied_head=False)
SOME = settings(max_examples=15)


def listed(plan, model=MODEL):
    """[the instructions of each pipeline rank]"""
    program = program_of(plan)
    return [rank_instructions(model, plan, program, rank) for rank in range(plan.pp)]


def is_gather(instruction):
    return instruction.dimension == "dp" and instruction.kind == "all_gather"


# ZeRO-3
# ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1"])
@pytest.mark.parametrize("prefetch", [0, 1, 2, 9])
def test_while_a_unit_computes_so_many_more_are_being_gathered_forward_and_backward(
    schedule, prefetch
):
    """Of what follows in the op: never fewer while there are some, never more; and what computes
    has been waited for. A weight gradient needs no parameters."""
    plan = sl.Plan(dp=2, pp=2, zero=3, prefetch=prefetch, microbatches=3, schedule=schedule)
    kinds = set()
    units = [
        ["embedding", "layer 0", "layer 1", "layer 2"],
        ["layer 3", "layer 4", "layer 5", "head"],
    ]
    for rank, its in enumerate(listed(plan)):
        begun, arrived = {}, {}
        for i in its:
            kind = i.op.lstrip("0123456789")[:1]
            if is_gather(i):
                target = begun if i.action == BEGIN else arrived
                target.setdefault(i.op, []).append(i.name.removesuffix(" gather"))
            elif i.action == COMPUTE and kind == "W":
                assert i.op not in begun
            elif i.action == COMPUTE and kind:
                kinds.add(kind)
                order = units[rank] if kind == "F" else units[rank][::-1]
                at = order.index(i.name)
                assert arrived[i.op] == order[: at + 1]
                assert begun[i.op] == order[: at + 1 + prefetch]
    assert kinds == {"F", "B"} if schedule == "1f1b" else kinds >= {"F", "I"}


def gathers(instructions):
    """[(op, unit) of each gathering, in order]"""
    return [(i.op, i.unit) for i in instructions if is_gather(i) and i.action == BEGIN]


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1", "interleaved-1f1b", "zb-v"])
def test_in_a_pipeline_parameters_that_stay_are_gathered_by_a_stages_first_forward_alone(schedule):
    """torch's runtime of pipelines turns FSDP2's reshard_after_backward off until the gradients of
    the stage are complete."""
    plan = sl.Plan(dp=2, pp=2, zero=3, microbatches=4, schedule=schedule)
    for again, once in zip(listed(plan), listed(replace(plan, reshard=False))):
        units = list(dict.fromkeys(unit for _, unit in gathers(again)))
        assert sorted(unit for _, unit in gathers(once)) == sorted(units)
        assert all(op.endswith("F0") for op, _ in gathers(once))
        assert len(gathers(again)) == 2 * 4 * len(units)


def test_without_a_pipeline_a_backward_frees_what_stays_and_the_next_op_gathers():
    """FSDP2 with reshard_after_forward=False: 'unshard' does nothing where parameters are there,
    and each post-backward reshards."""
    plan = sl.Plan(dp=2, zero=3, microbatches=3, reshard=False, schedule="gpipe")
    ops = [op for op, unit in gathers(listed(plan)[0]) if unit == "layer 0"]
    assert ops == ["0F0", "0B1", "0B2"]
    ops = [op for op, unit in gathers(listed(replace(plan, schedule="1f1b"))[0]) if unit == "head"]
    assert ops == ["0F0", "0F1", "0F2"]


# bytes, beside what realrun sends
# ------------------------------------------------------------------------------------------


class Counting:
    """A group of realrun's that sends nothing and notes the bytes that it was asked to send."""

    def __init__(self, size, place=0):
        self.size, self.place, self.dimension, self.asked = size, place, "dp", []

    def own(self, tensor, dim):
        return tensor.chunk(self.size, dim)[self.place]

    def _note(self, tensor):
        self.asked.append(tensor.nbytes)
        return self

    def all_reduce(self, tensor, operation="sum"):
        return self._note(tensor)

    def reduce_scatter(self, tensor):
        return self._note(tensor)

    def all_gather(self, tensor, out):
        return self._note(out)

    def wait(self):
        return None


def sizes(instructions, words):
    return {
        i.size_bytes for i in instructions if i.action == BEGIN and all(w in i.name for w in words)
    }


def test_the_norm_and_the_overflow_flag_have_the_bytes_that_realruns_have():
    torch = pytest.importorskip("torch")
    from realrun.parallel.clipping import global_norm
    from realrun.parallel.precision import LossScaler

    flag, norm = Counting(2), Counting(2)
    LossScaler([flag]).unscale([torch.ones(3)])
    # of what tensor-parallel ranks hold parts of, and of what all have whole
    global_norm([([torch.ones(3)], [norm]), ([torch.ones(5)], [])])
    plan = sl.Plan(tp=2, pp=2, dp=2, zero=1, microbatches=2, precision="fp16")
    for its in listed(plan):
        assert sizes(its, ["overflow"]) == set(flag.asked)
        assert sizes(its, ["norm over"]) == set(norm.asked)
        ends = [(i.name, i.dimension) for i in its if i.action == BEGIN and " over " in i.name]
        assert ends == [
            (f"{what} over {group}", group)
            for what in ("overflow", "norm")
            for group in ("tp", "pp", "dp")
        ]
    assert not sizes(listed(replace(plan, precision="bf16"))[0], ["overflow"])
    assert not sizes(listed(replace(plan, zero=0))[0], ["over dp"])


@pytest.mark.parametrize("dp", [2, 3, 5, 7])
@pytest.mark.parametrize("precision, gradient_bytes", [("bf16", 4), ("fp16", 2), ("fp32", 4)])
def test_padded_units_have_the_bytes_of_realruns_flat_buffers(dp, precision, gradient_bytes):
    torch = pytest.importorskip("torch")
    from realrun.parallel.sharded import ShardedUnit

    types = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}
    plan = sl.Plan(dp=dp, zero=3, precision=precision, gradient_bytes=gradient_bytes)
    group = Counting(dp)
    layer = torch.nn.TransformerEncoderLayer(64, 8, 4 * 64, dtype=types[precision])
    unit = ShardedUnit(
        "layer",
        layer.parameters(),
        group,
        frees=True,
        reduce={2: torch.float16, 4: torch.float32}[gradient_bytes],
    )
    unit.gather()
    unit.reduce()
    gathered, scattered = group.asked
    (its,) = listed(plan)
    assert sizes(its, ["layer 3 gather"]) == {gathered}
    assert sizes(its, ["layer 3 gradients"]) == {scattered}
    assert gathered % dp == 0 and unit.padding < dp


# what a played step waits for
# ------------------------------------------------------------------------------------------


@SOME
@given(
    st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.sampled_from([1, 2]), st.integers(0, 3),
    st.sampled_from(["1f1b", "zb-h1", "interleaved-1f1b"]), st.booleans(),
)  # fmt: skip
def test_what_a_rank_does_not_compute_until_its_step_ends_it_waits_for(
    dp, tp, pp, zero, schedule, sequence_parallel
):
    """Time is cut at every begin and end of a span: where none of the rank's own computing runs, it
    waits; that is what the trace calls exposed."""
    plan = plan_of(
        dp=dp, tp=tp, pp=2 * pp, zero=zero, microbatches=4 * pp, schedule=schedule,
        sequence_parallel=sequence_parallel, chunks=2 if schedule == "interleaved-1f1b" else None,
    )  # fmt: skip
    model = replace(MODEL, layers=8)
    program = program_of(plan)
    cluster = replace(
        sl.load_cluster("dgx-a100"), nodes=plan.gpus, gpus_per_node=1, nics_per_node=1
    )
    trace = play(model, plan, program, ClusterTimes(model, plan, cluster, program))
    for rank, exposed in enumerate(trace.metadata["exposed_s"]):
        own = [s for s in trace.spans if s.rank == rank and s.stream in ("compute", "optimizer")]
        end_s = max(span.end_s for span in own)
        cuts = sorted({0.0, end_s, *(t for s in own for t in (s.start_s, s.end_s))})
        idle_s = sum(
            after - before
            for before, after in pairwise(cuts)
            if not any(s.start_s <= before and after <= s.end_s for s in own)
        )
        assert sum(exposed.values()) == pytest.approx(idle_s, rel=1e-9, abs=1e-12)
        ranks = {"tp": tp, "dp": dp, "pp": 2 * pp, "cp": 1}
        assert all(ranks[name] > 1 for name, seconds in exposed.items() if seconds)
        assert exposed.get("pp", 0.0) > 0


@pytest.mark.parametrize("shards, replicas", [(2, 2), (3, 2), (2, 4), (4, 1)])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_of_a_shard_that_is_replicated_its_own_part_of_each_unit_is_summed_once(
    zero, shards, replicas
):
    """Scattered over the shards after a backward, then summed between those that hold the same, an
    s-th of a unit, after the last one."""
    plan = sl.Plan(dp=shards * replicas, zero=zero, hybrid=shards, microbatches=2)
    (its,) = listed(plan)
    begun = [i for i in its if i.action == BEGIN]
    scattered = {i.unit: i.size_bytes for i in begun if i.kind == "reduce_scatter"}
    summed = [(i.unit, i.size_bytes) for i in begun if i.dimension == "replicas"]
    parts = [(unit, size / shards) for unit, size in scattered.items()]
    assert sorted(summed) == (sorted(parts) if replicas > 1 else [])
    assert len(scattered) == MODEL.layers + 2


def test_a_bucket_that_would_cut_a_unit_in_more_than_ten_thousand_parts_is_refused():
    model, node = sl.load_model("gpt2"), sl.load_cluster("dgx-h100")
    with pytest.raises(sl.InputError, match=r"^bucket_bytes = 1 makes more than 10000 buckets"):
        sl.predict(model, sl.Plan(dp=8, bucket_bytes=1), node)

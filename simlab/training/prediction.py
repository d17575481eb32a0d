"""What a predicted step is: its time, what it is spent on, its utilisation, its memory."""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from simlab.analysis import breaches, trace_stack
from simlab.cost import OpTimes
from simlab.cost.roofline import peak_flops
from simlab.cost.stage_times import Parts
from simlab.engine import simulate
from simlab.units import bytes_text, seconds_text


class Waterfall(NamedTuple):
    """Seconds of a step by what they are spent on, as means over ranks; they add up to the step."""

    compute: float
    host: float
    tp: float
    cp: float
    dp: float
    pp: float
    bubble: float
    optimizer: float
    offload: float


@dataclass(frozen=True)
class Prediction:
    """What a step is predicted to take."""

    model: object
    plan: object
    cluster: object
    stages: list
    """`StageTimes` of each pipeline stage."""
    trace: object
    """Of one pipeline: compute, messages, and on streams 'dp' and 'optimizer' what follows."""
    step_s: float
    before_s: float
    """Exposed gathering of sharded parameters before the first forward."""
    after_s: float
    """From the last backward's end to the optimizer's begin, on the rank that is last: exposed reduction of gradients."""
    optimizer_s: float
    offload_s: float
    memory_bytes: dict
    """{category: bytes} at the peak of the rank with the highest one."""
    peak_rank: int
    program: object
    held: list
    """[per rank: {category: bytes} at its own peak]."""
    host_bytes: float = 0.0
    """What a node's host holds of its GPUs' offloaded states. Activations that are there are not counted."""

    @property
    def tokens(self):
        """Tokens in a step."""
        return self.plan.global_batch * (self.plan.seq or self.model.seq)

    @property
    def tokens_per_s(self):
        """Of all GPUs together."""
        return self.tokens / self.step_s

    @property
    def peak_flops(self):
        """The peak of all GPUs in 16 bits (what utilisation is given of, in fp8 too)."""
        precision = "fp32" if self.plan.precision == "fp32" else "bf16"
        return sum(part.gpus * peak_flops(part.gpu, precision) for part in self.cluster.parts)

    @property
    def mfu(self):
        """Model FLOPs utilisation (Chowdhery et al. 2022, appendix B): nothing computed twice is counted twice."""
        return self.model.flops_per_token(self.plan.seq) * self.tokens_per_s / self.peak_flops

    @property
    def hfu(self):
        """Hardware FLOPs utilisation: what is computed again counts."""
        flash = self.plan.attention != "unfused"
        per_token = self.model.hardware_flops_per_token(self.plan.seq, self.plan.recompute, flash=flash)
        return per_token * self.tokens_per_s / self.peak_flops

    @property
    def fits(self):
        """Whether the peak is within the GPU's memory, and what is offloaded within the hosts'."""
        return sum(self.memory_bytes.values()) <= capacity_bytes(self.cluster) and self.host_bytes <= host_capacity_bytes(self.cluster)

    @property
    def breaches(self):
        """[`Breach`]: per pipeline rank the first op with which it holds more than the GPU has; amounts are of activations, in bytes."""
        capacity = capacity_bytes(self.cluster)
        return breaches(self.trace, [max(0.0, capacity - sum(held.values()) + held["activations"]) for held in self.held])

    def memory_stack(self, rank=None):
        """What `rank` (None: the one with the highest peak) holds over the step, as a `Stack`: states for good, activations as the trace
        has them, buffers while an op runs."""
        rank = self.peak_rank if rank is None else rank
        held = dict(self.held[rank])
        del held["activations"]
        name = f"{self.model.name}, rank {rank} of {self.plan.pp}" if self.plan.pp > 1 else self.model.name
        end_s = max(self.trace.end_s, *(span.end_s for span in self.trace.spans))
        return trace_stack(
            self.trace, rank, held, buffers=held.pop("buffers"), end_s=end_s, capacity_bytes=capacity_bytes(self.cluster), name=name
        )

    @cached_property
    def waterfall_s(self):
        """`Waterfall`. Messages' share is told apart from the bubble by simulating the same pipeline with messages that take no time."""
        spent = [Parts()] * self.plan.pp
        per_op = {(s, kind): parts for s, times in enumerate(self.stages) for kind, parts in parts_by_kind(times).items()}
        counts = {}
        for rank, ops in enumerate(self.program.ranks):
            for op in ops:
                counts[rank, op.stage, op.kind] = counts.get((rank, op.stage, op.kind), 0) + 1
        for (rank, stage, kind), count in counts.items():
            spent[rank] = spent[rank].plus(per_op[stage, kind].times(count))
        mean = Parts(*(sum(parts) / self.plan.pp for parts in zip(*spent)))
        pipeline_s = self.trace.step_s
        pp_s = 0.0
        if self.plan.pp > 1:
            pp_s = max(0.0, pipeline_s - simulate(self.program, op_times(self.stages)).step_s)
        bubble_s = max(0.0, pipeline_s - mean.total - pp_s)
        return Waterfall(
            mean.compute, mean.host, mean.tp, mean.cp, mean.dp + self.before_s + self.after_s, pp_s, bubble_s,
            self.optimizer_s, mean.offload + self.offload_s,
        )  # fmt: skip

    @property
    def exposed_s(self):
        """{dimension: seconds that it adds to the step}."""
        spent = self.waterfall_s
        return {"dp": spent.dp, "tp": spent.tp, "pp": spent.pp, "cp": spent.cp}


def capacity_bytes(cluster):
    """Memory of a GPU, bytes; of the smallest where there are several kinds."""
    return min(part.gpu.memory_bytes for part in cluster.parts)


def host_capacity_bytes(cluster):
    """Memory of a node's host, bytes; of the smallest where there are several kinds."""
    return min(part.host_memory_bytes for part in cluster.parts)


def does_not_fit(prediction):
    """What is too much, where, from which op on."""
    if prediction.host_bytes > host_capacity_bytes(prediction.cluster):
        room = bytes_text(host_capacity_bytes(prediction.cluster))
        return f"{bytes_text(prediction.host_bytes)} of {prediction.plan.offload} on a node's host, which has {room}"
    memory = prediction.memory_bytes
    largest = sorted(memory, key=memory.get, reverse=True)[:2]
    too_much = sum(memory.values()) - capacity_bytes(prediction.cluster)
    first = min(prediction.breaches, key=lambda breach: breach.time_s, default=None)
    when = f" from {first.op} at {seconds_text(first.time_s)} on" if first else " before the first op"
    return (
        f"{bytes_text(sum(memory.values()))} on pipeline rank {prediction.peak_rank}, {bytes_text(too_much)} more than a GPU has,{when}; "
        f"most are {' and '.join(f'{name} {bytes_text(memory[name])}' for name in largest)}"
    )


def op_times(stages):
    return OpTimes(
        forward_s=tuple(s.forward.total for s in stages), backward_s=tuple(s.backward.total for s in stages),
        input_grad_s=tuple(s.again.total + s.input_grad.total for s in stages), weight_grad_s=tuple(s.weight_grad.total for s in stages),
    )  # fmt: skip


def parts_by_kind(times):
    return {"F": times.forward, "B": times.backward, "I": times.again.plus(times.input_grad), "W": times.weight_grad}

"""It defines `Prediction`: a step's time, what it is spent on, its utilisation and its memory."""

import html
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from simlab.analysis import (
    Breach,
    BubbleParts,
    Stack,
    bubble,
    bubble_parts,
    peak_memory,
    walk_stack,
    warm_up_form,
)
from simlab.cost.rank_walk import RankWalk
from simlab.cost.roofline import assumptions, peak_flops
from simlab.cost.stage_times import StageTimes
from simlab.cost.walk import Parts
from simlab.display import facts_of
from simlab.engine import simulate
from simlab.errors import require_index
from simlab.layer.microbatch import plan_operations
from simlab.lowering.kernels.recomputed import stops_early
from simlab.memory.step import StepWalk, folded
from simlab.program import Program
from simlab.spec.cluster import Cluster
from simlab.spec.model import MFU_ATTENTION, Model
from simlab.spec.plan import Plan
from simlab.trace import ACTIVATIONS, Trace
from simlab.training.fit import Fit, judged, workspace_bytes
from simlab.training.summary import PredictionFacts, Waterfall, step_text
from simlab.training.uncertainty import Uncertainty, uncertainty
from simlab.units import bytes_text, seconds_text


@dataclass(frozen=True)
class Prediction:
    """The prediction of one training step, which `simlab.predict` makes."""

    model: Model
    plan: Plan
    cluster: Cluster
    stages: list[StageTimes]
    """[per pipeline stage] the times of its ops."""
    trace: Trace
    """The trace of one pipeline: compute and messages, and on the streams 'dp', 'optimizer',
    'offload out', 'offload in' and 'drive' what follows them. `Trace.whole_step_s` is `step_s`."""
    step_s: float
    """The time of the step, in seconds."""
    after_s: float
    """The exposed reduction of gradients, in seconds: the time from the end of the last backward to
    the start of the optimizer, on the rank that is last."""
    optimizer_s: float
    """The time of the optimizer's step, in seconds."""
    offload_s: float
    """The exposed copies of offloaded optimizer states, to hosts or drives, at the end of the step, in
    seconds."""
    memory_bytes: dict[str, float]
    """{category: bytes} at the peak of the rank with the highest peak."""
    peak_rank: int
    """The pipeline rank with the highest peak."""
    program: Program
    """The order of the ops of one pipeline."""
    held: list[dict[str, float]]
    """[per pipeline rank] {category: bytes} at its own peak."""
    host_bytes: float = 0.0
    """The bytes that the host of a node holds of the offloaded states of its GPUs. Offloaded
    activations are not counted."""
    spent: list[Parts] = field(default_factory=list, compare=False)
    """[per pipeline rank] the `Parts` of all its ops."""
    walks: Callable[[], list[RankWalk]] = field(default=list, compare=False)
    """It gives the walks of the step's ranks anew, for another simulation of the same ops."""

    def __repr__(self) -> str:
        held, there = bytes_text(sum(self.memory_bytes.values())), bytes_text(self.capacity_bytes)
        return (
            f"<Prediction: {self.model.name} on {self.plan.gpus} x {self.cluster.gpu.name}, "
            f"step {seconds_text(self.step_s)}, MFU {self.mfu:.1%}, memory {held} of {there}>"
        )

    def _repr_html_(self) -> str:
        """The summary as notebooks show it, in the colours of their theme."""
        return f"<pre>{html.escape(self.summary())}</pre>"

    def summary(self) -> str:
        """The prediction as text: the plan, the time of the step and what it is spent on, the
        utilisation and the memory."""
        idle = self.bubble_parts.text(self.step_s, warm_up_form(self.program))
        return step_text(
            self.to_dict(),
            self.cluster.gpu.name,
            self.fit,
            self.excess_text,
            self.uncertainty,
            idle,
        )

    def to_dict(self) -> PredictionFacts:
        """The prediction as plain values that JSON knows, in SI base units, without its trace."""
        return facts_of(
            self,
            PredictionFacts,
            model=self.model.name,
            cluster=self.cluster.name,
            gpus=self.plan.gpus,
            seq=self.plan.seq or self.model.seq,
            global_batch=self.plan.global_batch,
            schedule=self.program.name,
            stages=self.program.stages,
            microbatches=self.program.microbatches,
            assumptions=assumptions(self.cluster),
            bubble=bubble(self.trace)._asdict(),
            bubble_parts=self.bubble_parts._asdict(),
            fits=self.fit.fits,
            gpu_memory_bytes=self.capacity_bytes,
            peak_live_microbatches=peak_memory(self.trace),
            peak_activations_bytes=peak_memory(self.trace, ACTIVATIONS),
        )

    @property
    def capacity_bytes(self) -> float:
        """The memory of a GPU in bytes; of the smallest if there are several kinds."""
        return self.cluster.gpu_memory_bytes

    @property
    def excess_text(self) -> str:
        """One sentence that says by how much tensors alone exceed the memory, where, and from when on; ''
        if they do not."""
        return tensors_exceed(self) if self.breaches else ""

    @property
    def tokens(self) -> int:
        """The number of tokens of a step."""
        return self.plan.global_batch * (self.plan.seq or self.model.seq)

    @property
    def tokens_per_s(self) -> float:
        """The tokens of all GPUs together per second."""
        return self.tokens / self.step_s

    @property
    def peak_flops(self) -> float:
        """The peak of all GPUs in FLOP/s, of which the utilisations are fractions.

        It is the peak in 16 bits, also for a plan in fp8; for a plan in fp32 it is that of fp32.
        """
        precision = "fp32" if self.plan.precision == "fp32" else "bf16"
        return sum(part.gpus * peak_flops(part.gpu, precision) for part in self.cluster.parts)

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation, a fraction: model FLOPs per token x `tokens_per_s` /
        `peak_flops`.

        Recomputed FLOPs are not counted, and attention is counted in full (`mfu_attention`).
        Source: Chowdhery et al. 2022 (PaLM), arXiv 2204.02311, appendix B.
        """
        return self.model.flops_per_token(self.plan.seq) * self.tokens_per_s / self.peak_flops

    @property
    def mfu_attention(self) -> str:
        """How `mfu` and `hfu` count attention: 'full', see `simlab.spec.model.MFU_ATTENTION`."""
        return MFU_ATTENTION

    @property
    def hfu(self) -> float:
        """Hardware FLOPs utilisation, a fraction: as `mfu`, but recomputed FLOPs count, too."""
        per_token = self.model.hardware_flops_per_token(
            self.plan.seq,
            self.plan.recompute,
            flash=self.plan.attention != "unfused",
            stops_early=stops_early(plan_operations(self.model, self.plan), self.plan),
        )
        return per_token * self.tokens_per_s / self.peak_flops

    @property
    def fits(self) -> bool:
        """Whether the tensors alone are no more than a GPU has, and the offloaded states than a host. The
        judgement with all that a GPU holds besides, which texts, JSON and searches go by, is `fit`."""
        held = sum(self.memory_bytes.values())
        kept_on_host = not self.host_bytes or self.host_bytes <= self.cluster.node_memory_bytes
        return held <= self.cluster.gpu_memory_bytes and kept_on_host

    @property
    def fit(self) -> Fit:
        """The judgement whether the step runs in the memory of a GPU, with the CUDA context, NCCL's
        buffers and what the allocator wastes: it fits, is tight, or does not; by how much, and why."""
        return judged(self.plan, self.cluster, self.memory_bytes, self.host_bytes)

    @property
    def uncertainty(self) -> Uncertainty:
        """How far predictions of published runs of this kind were off: of the same GPU, precision and
        library, with experts or dense, or of the nearest that there are."""
        return uncertainty(self.model, self.plan, self.cluster)

    @property
    def allocated_bytes(self) -> list[float]:
        """[per pipeline rank] what `torch.cuda.max_memory_allocated` would say after a step: the peak
        of the tensors, which `held` gives by category, and cuBLAS's workspaces."""
        last = self.program.stages - 1
        return [
            sum(held.values())
            + workspace_bytes(
                self.model, self.plan, self.cluster.gpu_of(0), last in self.program.stages_of(rank)
            )
            for rank, held in enumerate(self.held)
        ]

    @cached_property
    def memory(self) -> StepWalk:
        """The walk through the step that finds what each rank holds at each moment."""
        layers = self.plan.layers_of_stages(self.model.layers, self.program.stages)
        return StepWalk(self.model, self.plan, self.program, layers)

    @property
    def breaches(self) -> list[Breach]:
        """For each pipeline rank that exceeds the memory of a GPU, the first op at which it does.

        The amount of a `Breach` is all that the rank then holds, in bytes.
        """
        capacity, found = self.cluster.gpu_memory_bytes, []
        for rank, held in enumerate(self.held):
            if sum(held.values()) <= capacity:
                continue
            moments = (moment for moment in self.memory.moments(rank) if moment.op)
            first = next(moment for moment in moments if moment.total > capacity)
            starts = {span.op: span.start_s for span in self.trace.compute(rank)}
            time_s = starts.get(first.op, self.trace.end_s)
            found.append(Breach(rank, time_s, first.op, first.total))
        return found

    def memory_stack(self, rank: int | None = None) -> Stack:
        """What a pipeline rank holds over the step.

        rank: the pipeline rank; None means the one with the highest peak.

        While an op runs, the stack shows the peak of that op; while the rank waits, it shows what
        the rank still holds.
        """
        rank = self.peak_rank if rank is None else rank
        require_index("rank", rank, self.plan.pp)
        name = (
            f"{self.model.name}, rank {rank} of {self.plan.pp}"
            if self.plan.pp > 1
            else self.model.name
        )
        moments = [(m.op, folded(m.held)) for m in self.memory.moments(rank)]
        end_s = max(self.trace.end_s, *(span.end_s for span in self.trace.spans))
        return walk_stack(
            self.trace,
            rank,
            moments,
            end_s=end_s,
            capacity_bytes=self.cluster.gpu_memory_bytes,
            name=name,
        )

    @cached_property
    def bubble_parts(self) -> BubbleParts:
        """Why the pipeline idles, on which ranks of it.

        To separate messages from the rest, the same pipeline is simulated with messages that take no
        time.
        """
        step_s = free_s = self.trace.step_s
        if self.plan.pp > 1:
            free_s = simulate(self.program, self.walks()).step_s
        return bubble_parts([parts.total for parts in self.spent], step_s, free_s)

    @cached_property
    def waterfall_s(self) -> Waterfall:
        """The `Waterfall` of the step."""
        mean = Parts(*(sum(parts) / self.plan.pp for parts in zip(*self.spent)))
        parts = self.bubble_parts
        return Waterfall(
            mean.compute,
            mean.host,
            mean.tp,
            mean.cp,
            mean.ep,
            mean.dp + self.after_s,
            parts.messages_s,
            max(0.0, self.trace.step_s - mean.total - parts.messages_s),
            self.optimizer_s,
            mean.offload + self.offload_s,
        )

    @property
    def exposed_s(self) -> dict[str, float]:
        """{dimension: the seconds that its exposed communication adds to the step}."""
        spent = self.waterfall_s
        return {name: getattr(spent, name) for name in ("dp", "tp", "pp", "cp", "ep")}


def tensors_exceed(prediction: Prediction) -> str:
    """What is too much, where, from which op on."""
    memory = prediction.memory_bytes
    largest = sorted(memory, key=memory.__getitem__, reverse=True)[:2]
    too_much = sum(memory.values()) - prediction.cluster.gpu_memory_bytes
    most = " and ".join(f"{name} {bytes_text(memory[name])}" for name in largest)
    first = min(prediction.breaches, key=lambda breach: breach.time_s)
    return (
        f"{bytes_text(sum(memory.values()))} on pipeline rank {prediction.peak_rank}, "
        f"{bytes_text(too_much)} more than a GPU has, "
        f"from {first.op} at {seconds_text(first.time_s)} on; most are {most}"
    )

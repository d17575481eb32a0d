"""A prediction as plain values, and as text for reading."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from simlab.analysis import bubble, peak_memory
from simlab.display import plain
from simlab.spec.model import MFU_CONVENTION
from simlab.trace import ACTIVATIONS
from simlab.units import bytes_text, seconds_text

if TYPE_CHECKING:
    from simlab.training.prediction import Prediction


def facts(prediction: "Prediction") -> dict[str, Any]:
    """What is known of a `Prediction`, as plain values."""
    trace, plan, program = prediction.trace, prediction.plan, prediction.program
    return {
        "model": prediction.model.name,
        "cluster": prediction.cluster.name,
        "gpus": plan.gpus,
        "seq": plan.seq or prediction.model.seq,
        "global_batch": plan.global_batch,
        "plan": {field.name: plain(getattr(plan, field.name)) for field in fields(plan)},
        "schedule": program.name,
        "stages": program.stages,
        "microbatches": program.microbatches,
        "step_s": prediction.step_s,
        "tokens_per_s": prediction.tokens_per_s,
        "mfu": prediction.mfu,
        "hfu": prediction.hfu,
        "mfu_attention": prediction.mfu_attention,
        "bubble": bubble(trace)._asdict(),
        "waterfall_s": prediction.waterfall_s._asdict(),
        "exposed_s": prediction.exposed_s,
        "memory_bytes": prediction.memory_bytes,
        "peak_rank": prediction.peak_rank,
        "fits": prediction.fits,
        "gpu_memory_bytes": prediction.capacity_bytes,
        "breaches": [breach._asdict() for breach in prediction.breaches],
        "peak_live_microbatches": peak_memory(trace),
        "peak_activations_bytes": peak_memory(trace, ACTIVATIONS),
    }


def step_text(prediction: "Prediction") -> str:
    """A prediction for reading."""
    plan = prediction.plan
    peak, there = sum(prediction.memory_bytes.values()), prediction.capacity_bytes
    parts = ", ".join(
        f"{name} {bytes_text(size)}" for name, size in prediction.memory_bytes.items() if size
    )
    lines = [
        f"{prediction.model.name} on {plan.gpus} x {prediction.cluster.gpu.name}: dp {plan.dp}, tp {plan.tp}, pp {plan.pp}, cp {plan.cp}, "
        f"ZeRO-{plan.zero}, {plan.schedule}, {plan.microbatches} microbatches of {plan.microbatch_size}",
        f"global batch             {plan.global_batch} sequences of {plan.seq or prediction.model.seq} tokens",
        f"step                     {seconds_text(prediction.step_s)}",
        f"tokens/s                 {prediction.tokens_per_s:,.0f}   of all GPUs; {prediction.tokens_per_s / plan.gpus:,.0f} of each",
        f"MFU, HFU                 {prediction.mfu:.1%}, {prediction.hfu:.1%}   {MFU_CONVENTION}",
        f"peak memory              {bytes_text(peak)} of {bytes_text(there)} on pipeline rank {prediction.peak_rank}: {parts}",
    ]
    if not prediction.fits:
        lines.append(f"                         does not fit: {prediction.excess_text}")
    lines.append("the step's time, as means over ranks:")
    for name, seconds in prediction.waterfall_s._asdict().items():
        if seconds > 0:
            share = seconds / prediction.step_s
            lines.append(
                f"  {name:<10} {seconds_text(seconds):>10}  {share:>6.1%}  {'#' * round(40 * share)}"
            )
    return "\n".join(lines)

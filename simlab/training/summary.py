"""What a prediction says: as plain values, and as text for reading."""

from typing import Annotated, Any, NamedTuple, TypedDict

from simlab.analysis import Breach, Bubble, BubbleParts
from simlab.spec.model import MFU_CONVENTION
from simlab.spec.plan import Plan
from simlab.training.fit import Fit
from simlab.training.uncertainty import Uncertainty
from simlab.units import bytes_text, seconds_text

BAR = 40  # characters of a bar that is the whole step


class Waterfall(NamedTuple):
    """What the time of a step is spent on: seconds as means over ranks, which add up to the step.

    compute:   the kernels.
    host:      the time in which the GPU waits for its host to launch kernels.
    tp:        the exposed communication of tensor parallelism.
    cp:        the exposed communication of context parallelism.
    ep:        the exposed all-to-alls of expert parallelism.
    dp:        the exposed communication of data parallelism and ZeRO, and every reduction of
               gradients after the last backward: with sequence parallelism those of norms, which
               tensor-parallel ranks add up, and those of a tied head.
    pp:        the messages between stages.
    bubble:    the idle time of the pipeline that remains if messages take no time.
    optimizer: the optimizer's step.
    offload:   the exposed copies between GPUs and their hosts.
    """

    compute: float
    host: float
    tp: float
    cp: float
    ep: float
    dp: float
    pp: float
    bubble: float
    optimizer: float
    offload: float


class PredictionFacts(TypedDict):
    """A `Prediction` as plain values, in SI base units, without its trace."""

    model: str
    cluster: str
    gpus: int
    seq: int
    global_batch: int
    plan: Annotated[dict[str, Any], Plan]
    schedule: str
    stages: int
    microbatches: int
    step_s: float
    tokens_per_s: float
    mfu: float
    hfu: float
    mfu_attention: str
    """How both count attention."""
    assumptions: list[str]
    uncertainty: Annotated[dict[str, Any], Uncertainty]
    """How far predictions of published runs of this kind were off."""
    bubble: Annotated[dict[str, float], Bubble]
    bubble_parts: Annotated[dict[str, Any], BubbleParts]
    waterfall_s: Annotated[dict[str, float], Waterfall]
    exposed_s: dict[str, float]
    memory_bytes: dict[str, float]
    peak_rank: int
    fits: bool
    """Whether `fit` is another one than 'does not fit'."""
    fit: Annotated[dict[str, Any], Fit]
    gpu_memory_bytes: float
    breaches: list[Annotated[dict[str, Any], Breach]]
    peak_live_microbatches: list[int]
    peak_activations_bytes: list[float]


def step_text(
    facts: PredictionFacts, gpu: str, fit: Fit, excess: str, off: Uncertainty, idle: str
) -> str:
    """A prediction for reading.

    facts:  what `Prediction.to_dict` says.
    gpu:    the name of the GPU.
    fit:    the judgement whether it fits.
    excess: what tensors exceed the memory; '' if none do.
    off:    how far such predictions were off.
    idle:   why the pipeline idles; '' if it does not.
    """
    plan, memory, step_s = facts["plan"], facts["memory_bytes"], facts["step_s"]
    parts = ", ".join(f"{name} {bytes_text(size)}" for name, size in memory.items() if size)
    peak, room = bytes_text(sum(memory.values())), bytes_text(facts["gpu_memory_bytes"])
    tokens_per_s = facts["tokens_per_s"]
    experts = f"ep {plan['ep']}, " if plan["ep"] > 1 else ""
    experts += "etp 1, " if plan["etp"] < plan["tp"] else ""
    experts += "tokens once a node, " if plan["dispatcher"] == "once-a-node" else ""
    experts += "ep overlap, " if plan["ep_overlap"] else ""
    lines = [
        f"{facts['model']} on {facts['gpus']} x {gpu}: dp {plan['dp']}, tp {plan['tp']}, "
        f"pp {plan['pp']}, cp {plan['cp']}, {experts}ZeRO-{plan['zero']}, {plan['schedule']}, "
        f"{plan['microbatches']} microbatches of {plan['microbatch_size']}",
        f"global batch             {facts['global_batch']} sequences of {facts['seq']} tokens",
        f"step                     {seconds_text(step_s)}",
        f"error of such steps      {off}",
        f"tokens/s                 {tokens_per_s:,.0f}   of all GPUs; "
        f"{tokens_per_s / facts['gpus']:,.0f} of each",
        f"MFU, HFU                 {facts['mfu']:.1%}, {facts['hfu']:.1%}   {MFU_CONVENTION}",
        f"peak memory              {peak} of {room} on pipeline rank {facts['peak_rank']}: {parts}",
    ]
    lines += [f"assumed                  {one}" for one in facts["assumptions"]]
    lines.append(f"fit                      {fit}")
    lines += [f"                         {excess}"] * bool(excess)
    lines += [f"pipeline idle            {idle}"] * bool(idle)
    lines.append("the step's time, as means over ranks:")
    for name, seconds in facts["waterfall_s"].items():
        if seconds > 1e-9 * step_s:  # less is what rounding leaves
            share = seconds / step_s
            bar = "#" * round(BAR * share)
            lines.append(f"  {name:<10} {seconds_text(seconds):>10}  {share:>6.1%}  {bar}")
    return "\n".join(lines)

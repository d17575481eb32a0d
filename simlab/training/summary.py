"""It writes a prediction as text for reading."""

from collections.abc import Mapping
from typing import Any

from simlab.spec.model import MFU_CONVENTION
from simlab.units import bytes_text, seconds_text

BAR = 40  # characters of a bar that is the whole step


def step_text(facts: Mapping[str, Any], gpu: str, excess: str) -> str:
    """A prediction for reading.

    facts:  what `Prediction.to_dict` says.
    gpu:    the name of the GPU.
    excess: what exceeds the memory; '' if nothing does.
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
        f"tokens/s                 {tokens_per_s:,.0f}   of all GPUs; "
        f"{tokens_per_s / facts['gpus']:,.0f} of each",
        f"MFU, HFU                 {facts['mfu']:.1%}, {facts['hfu']:.1%}   {MFU_CONVENTION}",
        f"peak memory              {peak} of {room} on pipeline rank {facts['peak_rank']}: {parts}",
    ]
    if excess:
        lines.append(f"                         does not fit: {excess}")
    lines.append("the step's time, as means over ranks:")
    for name, seconds in facts["waterfall_s"].items():
        if seconds > 0:
            share = seconds / step_s
            bar = "#" * round(BAR * share)
            lines.append(f"  {name:<10} {seconds_text(seconds):>10}  {share:>6.1%}  {bar}")
    return "\n".join(lines)

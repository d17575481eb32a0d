"""The report of a run as text, and what is wrong with a run."""

from typing import Any

from realrun.report.facts import totals
from realrun.run.job import Job
from simlab.units import bytes_text, percent_text, seconds_text

Facts = dict[str, Any]
"""The facts of a run, see `realrun.report.facts`."""
SHOWN = ("dp", "edp", "ep", "tp", "cp", "pp")
"""The dimensions whose bytes the report gives, in its order."""
GRADIENT_LIMIT, PIPELINE_LIMIT = 1e-9, 1e-10
"""The largest relative error of gradients and loss in float64. In a pipeline alone no sum is cut
over several ranks, and its limit is the smaller one."""


MOST_TIMES, MOST_APART_S = 1.5, 0.25
"""How many times as long as the other one a predicted and a measured step of paced ops may be, and how
many seconds longer, before the error says nothing of the prediction. A machine that keeps to the
times of ops stays within a tenth of that."""


def failures(facts: Facts, *, max_error: float | None = None) -> list[str]:
    """[what is wrong with a run]: its gradients, its loss, what it sent, what it held, and the
    prediction of its step: where it is further off than `max_error` (a fraction) or, if that is not
    given, than a machine can be that paces the ops."""
    name, wrong = facts["name"], []
    limit = PIPELINE_LIMIT if facts["ranks"] == facts["pp"] else GRADIENT_LIMIT
    for what in ("gradient", "loss"):
        error = facts.get(f"{what}_error")
        if error is not None and not error <= limit:
            its = "gradients differ" if what == "gradient" else "the loss differs"
            wrong.append(f"{name}: {its} from one process by {error:.2e}, more than {limit:g}")
    wrong += [f"{name}: all ranks together sent {counts}" for counts in _other_bytes(facts)]
    predicted = facts.get("peak_live_microbatches_predicted")
    if predicted is not None and predicted != facts["peak_live_microbatches_measured"]:
        measured = facts["peak_live_microbatches_measured"]
        wrong.append(f"{name}: live microbatches predicted {predicted}, measured {measured}")
    if max_error is not None and facts["error"] is None:
        wrong.append(
            f"{name}: not predicted, since the program breaks the rules: no error to hold against {max_error:.1%}"
        )
    elif max_error is not None and abs(facts["error"]) > max_error:
        wrong.append(
            f"{name}: the predicted step is {facts['error']:+.1%} off, more than {max_error:.1%}"
        )
    elif max_error is None:
        wrong += _not_paced(facts)
    return wrong


def _not_paced(facts: Facts) -> list[str]:
    """[why a run's error is none of the prediction] where every step of paced ops was far from it."""
    if facts["compute"] != "padded" or not facts.get("op_s"):
        return []
    predicted_s, steps_s = facts["predicted_step_s"], facts["steps_s"]
    low, high = sorted((predicted_s, min(max(predicted_s, min(steps_s)), max(steps_s))))
    if high <= MOST_TIMES * low or high - low <= MOST_APART_S:
        return []
    pairs = facts["op_s"].items()
    late = {
        kind: its["measured"] / its["predicted"]
        for kind, its in pairs
        if its["measured"] and its["predicted"]
    }
    kind = max(late, key=lambda each: abs(late[each] - 1))
    asked, took = (seconds_text(facts["op_s"][kind][it]) for it in ("predicted", "measured"))
    disturbed = f", where {facts['disturbed_by']}" if facts.get("disturbed_by") else ""
    return [
        f"{facts['name']}: the predicted step is {facts['error']:+.1%} off, which is far outside what "
        f"this machine reaches when it can pace the ops: one {kind} took {took}, and {asked} when it "
        f"was calibrated{disturbed}. It has too few cores for the ranks, or something else used it: "
        "give fewer ranks or longer ops, or run again (--max-error PERCENT sets a limit of your own)"
    ]


def _other_bytes(facts: Facts) -> list[str]:
    """[how many bytes all ranks sent over a dimension, and how many they should have sent] where
    these are not equal. What torch's back-end sends is its own to decide."""
    if facts["backend"] == "torch" or facts["sent_bytes_predicted"] is None:
        return []
    asked, sent = (totals(facts[f"sent_bytes_{which}"]) for which in ("predicted", "measured"))
    return [
        f"{sent.get(name, 0)} bytes over {name}, not {asked.get(name, 0)}"
        for name in sorted({*asked, *sent})
        if asked.get(name, 0) != sent.get(name, 0)
    ]


def summary(job: Job, facts: Facts) -> str:
    """The run in a few lines of text."""
    head = (
        "{name}: {ranks} ranks, {microbatches} microbatches, {layers} layers, "
        "{compute} compute ({why_compute}), {device}"
    )
    lines = [
        head.format(**facts, layers=facts["model"]["layers"]),
        *_machine_lines(job, facts),
        *_step_lines(facts),
        *_op_lines(facts),
        *_traffic_lines(facts),
        *_memory_lines(facts),
        *_training_lines(job, facts),
    ]
    for rank, times in facts["stragglers"]:
        lines.append(
            f"  straggler  rank {rank} computes {times:.2f} times as long as those that compute the same"
        )
    return "\n".join(lines)


def _machine_lines(job: Job, facts: Facts) -> list[str]:
    if job.box is not None:
        of = f"{job.box_cluster.name}, {job.box_model.name}'s layers"
        return [f"  box        {of}, {facts['time_scale']:.1f} times as slow"]
    if job.predict_on is not None:
        machine = job.machine
        size = f"{machine.nodes} x {machine.gpus_per_node}"
        return [f"  machine    predicted for {machine.name}: {size}"]
    return []


def _step_lines(facts: Facts) -> list[str]:
    steps_s = facts["steps_s"]
    range_text = f"{seconds_text(min(steps_s))} to {seconds_text(max(steps_s))}"
    steps = f"{len(steps_s)} step{'s' if len(steps_s) > 1 else ''}"
    measured = f"measured {seconds_text(facts['measured_step_s'])} ({range_text} in {steps})"
    if facts["error"] is None:
        return [f"  step       {measured}; not predicted"]
    predicted = f"predicted {seconds_text(facts['predicted_step_s'])}"
    return [f"  step       {predicted}   {measured}   error {percent_text(facts['error'])}"]


def _op_lines(facts: Facts) -> list[str]:
    """Bubble, op times and live microbatches, of a program that was timed op by op."""
    if "bubble_measured" not in facts:
        return []
    whiches = [which for which in ("predicted", "measured") if f"bubble_{which}" in facts]
    bubbles = [f"{it} {facts[f'bubble_{it}']['idle_over_makespan']:.4f}" for it in whiches]
    held = [f"{it} {facts[f'peak_live_microbatches_{it}']}" for it in whiches]
    lines = [f"  bubble     {'   '.join(bubbles)}   of the makespan"]
    lines += disturbed_lines(facts.get("disturbed_by"))
    for kind, pair in facts.get("op_s", {}).items():
        both = "   ".join(f"{it} {seconds_text(pair[it])}" for it in ("predicted", "measured"))
        lines.append(f"  one {kind}      {both}   error {percent_text(pair['error'])}")
    return [*lines, f"  held       {'   '.join(held)} microbatches, peak per rank"]


def disturbed_lines(by: str | None) -> list[str]:
    """What disturbed the calibration that a step was predicted from; [] for nothing."""
    if not by:
        return []
    return [
        f"  disturbed  the calibration: {by}, as where something else uses the machine: the prediction "
        "says little; run again when it is quiet"
    ]


def _traffic_lines(facts: Facts) -> list[str]:
    """What all ranks sent over each dimension, beside what their lists say."""
    asked, sent = (
        totals(facts[f"sent_bytes_{which}"] or []) for which in ("predicted", "measured")
    )
    lines = []
    for dimension in (name for name in SHOWN if sent.get(name)):
        expected = asked.get(dimension, 0)
        same = f"predicted {bytes_text(expected)}"
        if facts["backend"] == "torch":
            same = f"realrun's own send {bytes_text(expected)}"
        elif sent[dimension] == expected:
            same = "as predicted, to the byte"
        waits = [
            f"{which} {seconds_text(max(part.get(dimension, 0.0) for part in facts[f'exposed_s_{which}']))}"
            for which in ("predicted", "measured")
            if facts[f"exposed_s_{which}"]
        ]
        waited = f"; longest wait {', '.join(waits)}" if waits else ""
        lines.append(
            f"  {dimension:<9}  {bytes_text(sent[dimension])} sent by all ranks, {same}{waited}"
        )
    return lines


def _memory_lines(facts: Facts) -> list[str]:
    """What the fullest rank holds, and how far simlab's bytes are from that."""
    held_by_rank = facts["memory_bytes"]
    rank = max(range(facts["ranks"]), key=lambda rank: sum(held_by_rank[rank].values()))
    held, asked = held_by_rank[rank], (facts["memory_bytes_predicted"] or {rank: None})[rank]
    if asked is None:
        parts = [f"{name} {bytes_text(size)}" for name, size in held.items()]
        return [f"  memory     rank {rank}: {', '.join(parts)}"]
    parts = [
        f"{name} {bytes_text(size)} ({percent_text(asked[name] / size - 1) if size else 'none'})"
        for name, size in held.items()
    ]
    lines = [
        f"  memory     rank {rank}, and how far simlab's bytes are from it: {', '.join(parts)}"
    ]
    if (peak := facts["allocator_bytes"][rank]) is not None:
        off = percent_text(sum(asked.values()) / peak - 1)
        lines.append(
            f"  allocator  rank {rank}: {bytes_text(peak)} at most; simlab's bytes are {off} from it"
        )
    return lines


def _training_lines(job: Job, facts: Facts) -> list[str]:
    """Gradients and losses, beside those of one process where it trained the same."""
    lines, losses = [], facts["losses"]
    if "gradient_error" in facts:
        errors = f"{facts['gradient_error']:.1e} (float64); loss by {facts['loss_error']:.1e}"
        lines.append(f"  gradients  differ from one process by {errors}")
    trained = f"{losses[0]:.4f} → {losses[-1]:.4f} nats per byte in {len(losses)} steps"
    lines.append(f"  loss       {trained}")
    if facts["loss_scale"]:
        skipped = sum(norm is None for norm in facts["norms"])
        lines.append(
            f"  loss scale {facts['loss_scale']:g} at the end; {skipped} steps skipped for an infinite gradient"
        )
    if facts["reference_losses"]:
        in_fp32 = "" if facts["precision"] == "fp32" else " in fp32"
        alone = facts["reference_losses"]
        apart = max(abs(own / its - 1) for own, its in zip(losses, alone))
        lines.append(
            f"  reference  one process{in_fp32}: {alone[-1]:.4f} at the end; at most {apart:.1e} apart"
        )
    elif job.reference:
        lines.append("  reference  none: one process would have to begin where the training did")
    return lines

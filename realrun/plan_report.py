"""What people get to see of a plan's run: recordings → traces; step time, bytes, waits, memory, predicted and measured."""

from itertools import accumulate
from statistics import median

from realrun.faults import stragglers
from simlab.cost import OpMemory
from simlab.cost.memory import stage_memory
from simlab.instructions import BEGIN, COMPUTE, WAIT
from simlab.playback import sent_bytes, stream_of, whole_step_s
from simlab.trace import ACTIVATIONS, LIVE, SEND, MemoryPoint, Span, Trace
from simlab.units import bytes_text, percent_text, seconds_text
from simlab.views import layer_timeline, timeline
from simlab.views.still import Picture

GRADIENT_LIMIT = 1e-9


def measured_traces(job, recordings, device):
    """[`Trace` of each measured step], on rank 0's clock, from 0 s: a span for each compute instruction and, on each rank of its group, for
    each communication, from when the last member had begun it to when it was over on that rank."""
    instructions = [job.instructions(rank) for rank in range(job.ranks)]
    recorded = {record.step for record in recordings[0].records}
    return [_trace(job, recordings, instructions, step, device) for step in range(job.steps) if step in recorded]


def _trace(job, recordings, instructions, step, device):
    layout = Members(job.executed)
    spans, memory, begun, waits = [], [], {}, [{} for _ in recordings]
    rows = [
        [(instructions[rank][r.position], r, recording.clock_offset_s) for r in recording.records if r.step == step]
        for rank, recording in enumerate(recordings)
    ]
    for rank, its in enumerate(rows):
        for instruction, record, offset_s in its:
            if instruction.action == BEGIN:
                key = layout.key(rank, instruction)
                begun[key] = max(begun.get(key, float("-inf")), record.start_s + offset_s)
    for rank, its in enumerate(rows):
        free_s = {}  # {dimension: when the last communication was over}: a group's follow each other
        for instruction, record, offset_s in its:
            start_s, end_s = record.start_s + offset_s, record.end_s + offset_s
            name = f"{instruction.op} {instruction.name}".strip()
            if instruction.action == COMPUTE:
                spans.append(Span(rank, stream_of(instruction), name, start_s, end_s))
                memory.append(MemoryPoint(rank, LIVE, end_s, record.live))
                memory.append(MemoryPoint(rank, ACTIVATIONS, end_s, record.bytes))
            elif instruction.action == WAIT:
                since_s, over_s = begun[layout.key(rank, instruction)], record.done_s + offset_s
                waits[rank][instruction.dimension] = waits[rank].get(instruction.dimension, 0.0) + record.end_s - record.start_s
                if instruction.kind == "message":
                    sender = layout.other(rank, instruction)
                    spans.append(Span(sender, SEND, instruction.op, since_s, over_s, int(instruction.size_bytes), rank))
                else:
                    since_s = max(since_s, free_s.get(instruction.dimension, since_s))
                    free_s[instruction.dimension] = over_s
                    spans.append(Span(rank, instruction.dimension, name, min(since_s, over_s), over_s, int(instruction.size_bytes)))
    zero_s = min(r.start_s + offset_s for its in rows for _, r, offset_s in its)
    metadata = {
        "name": job.name, "source": "measured", "ranks": job.ranks, "level": "instructions", "step": step, "device": device,
        "exposed_s": waits, "units": {LIVE: "microbatches", ACTIVATIONS: "bytes"},
    }  # fmt: skip
    return Trace(
        [span._replace(start_s=span.start_s - zero_s, end_s=span.end_s - zero_s) for span in spans],
        [point._replace(time_s=point.time_s - zero_s) for point in memory],
        metadata,
    )


class Members:
    """Which communication an instruction of a rank is: the same key on all ranks that take part."""

    def __init__(self, plan):
        self.coordinates = plan.ranks()
        self.number = {coordinate: rank for rank, coordinate in enumerate(self.coordinates)}

    def key(self, rank, instruction):
        d, c, p, t = self.coordinates[rank]
        if instruction.kind == "message":
            return "message", d, c, t, instruction.op
        fixed = {"tp": (d, c, p), "cp": (d, p, t), "dp": (p, t), "pp": (d, c, t)}[instruction.dimension]
        return instruction.dimension, fixed, instruction.op, instruction.name

    def ranks(self, rank, instruction):
        """[those that take part]: of a message its sender and its receiver."""
        if instruction.kind == "message":
            return [rank, self.other(rank, instruction)]
        key = self.key(rank, instruction)
        return [other for other in range(len(self.coordinates)) if self.key(other, instruction) == key]

    def other(self, rank, instruction):
        """The rank at the other end of a message."""
        d, c, _, t = self.coordinates[rank]
        return self.number[d, c, instruction.peer, t]


def result(job, parts, traces):
    """The plain facts of a run."""
    saved = job.folder / "predicted.json"
    predicted_trace = Trace.load(saved) if job.is_predicted else None
    predicted_s = whole_step_s(predicted_trace) if predicted_trace else None
    steps_s = [whole_step_s(trace) for trace in traces]
    predicted = [sent_bytes(job.instructions(rank), job.executed) for rank in range(job.ranks)]
    middle = sorted(traces, key=whole_step_s)[len(traces) // 2]
    vitals = parts[0]["vitals"]
    computed_s = [sum(step[rank]["computed_s"] for step in vitals[-job.steps :]) for rank in range(job.ranks)] if vitals else None
    facts = {
        "engine": job.engine, "plan": job.name, "folder": str(job.folder), "ranks": job.ranks,
        "measured_step_s": median(steps_s), "steps_s": steps_s,
        "predicted_step_s": predicted_s, "error": predicted_s / median(steps_s) - 1 if predicted_s else None,
        "first_step": parts[0]["first_step"],
        "precision": job.executed.precision, "loss_scale": parts[0].get("loss_scale"),
        "losses": parts[0]["losses"], "norms": parts[0]["norms"], "reference_losses": parts[0]["reference_losses"],
        "vitals": vitals, "progress": parts[0].get("progress"),
        "stragglers": stragglers(computed_s, job.executed) if vitals else [],
        "sent_bytes_predicted": predicted, "sent_bytes_measured": [part["sent_bytes"] for part in parts],
        "memory_bytes_predicted": [predicted_memory(job, rank) for rank in range(job.ranks)],
        "memory_bytes": [part["memory_bytes"] for part in parts],
        "allocator_bytes": [part["allocator_bytes"] for part in parts], "exposed_s_measured": middle.metadata["exposed_s"],
        "exposed_s_predicted": predicted_trace.metadata["exposed_s"] if predicted_trace else None,
    }  # fmt: skip
    if "gradient_error" in parts[0]:
        facts["gradient_error"] = max(part["gradient_error"] for part in parts)
        facts["loss_error"] = abs(parts[0]["loss"] / parts[0]["expected_loss"] - 1)
    return facts


def predicted_memory(job, rank):
    """{"parameters", "gradients", "optimizer", "activations": bytes of global rank `rank`} by `simlab.cost.memory`, as they are measured:
    gradients when a step ends (ZeRO-1's are scattered by then), and among the activations, which follow the program's ops, the fp32
    softmax of the logits, which simlab has among its buffers, one microbatch's."""
    model, plan, program = job.model, job.executed, job.program
    layers = plan.layers_of_stages(model.layers, program.stages)
    place = plan.ranks()[rank][2]
    held, states = [0.0] * program.stages, dict.fromkeys(("parameters", "gradients", "optimizer"), 0.0)
    for stage in program.stages_of(place):
        memory = stage_memory(model, plan, layers[stage], first=stage == 0, last=stage == program.stages - 1)
        logits = 4 * plan.microbatch_size * plan.seq // plan.cp * model.vocab / plan.tp
        held[stage] = memory.activations + (logits if stage == program.stages - 1 else 0.0)
        states = {name: size + getattr(memory, name) for name, size in states.items()}
    if plan.zero == 1:
        states["gradients"] /= plan.shards
    changes = OpMemory(activations=held)
    return states | {"activations": max(accumulate(changes.change(op.stage, op.kind) for op in program.ranks[place]))}


def totals(of_ranks):
    """{dimension: bytes that all ranks send in a step}; one rank may send some more of a buffer that a ring cannot cut evenly."""
    dimensions = {dimension for sent in of_ranks for dimension in sent}
    return {dimension: round(sum(sent.get(dimension, 0.0) for sent in of_ranks)) for dimension in dimensions}


def failures(facts, *, max_error=None):
    """[what is wrong with a run]"""
    wrong = []
    for what in ("gradient", "loss"):
        error = facts.get(f"{what}_error")
        if error is not None and not error <= GRADIENT_LIMIT:
            wrong.append(f"{facts['plan']}: {what} differs from one process by {error:.2e}, more than {GRADIENT_LIMIT:g}")
    predicted, measured = (totals(facts[f"sent_bytes_{which}"]) for which in ("predicted", "measured"))
    if facts["engine"] == "torch":  # what it sends is its own to decide
        predicted = measured
    for dimension in sorted({*predicted, *measured}):
        if predicted.get(dimension, 0) != measured.get(dimension, 0):
            counts = f"{measured.get(dimension, 0)} bytes over {dimension}, not {predicted.get(dimension, 0)}"
            wrong.append(f"{facts['plan']}: all ranks together sent {counts}")
    if max_error is not None and abs(facts["error"]) > max_error:
        wrong.append(f"{facts['plan']}: the predicted step is {facts['error']:+.1%} off, more than {max_error:.1%}")
    return wrong


def summary(job, facts):
    """The run in a few lines of text."""
    times = f"measured {seconds_text(facts['measured_step_s'])} ({len(facts['steps_s'])} steps)"
    lines = [f"{facts['plan']}: {facts['ranks']} ranks, {job.given.microbatches} microbatches, {job.sizes['layers']} layers"]
    if facts["error"] is not None:
        times = f"predicted {seconds_text(facts['predicted_step_s'])}   {times}   error {percent_text(facts['error'])}"
        if job.box is None:
            lines.append(f"  machine    predicted for {job.machine.name}: {job.machine.nodes} x {job.machine.gpus_per_node}")
        else:
            lines.append(f"  box        {job.box_cluster.name}, {job.box_model.name}'s layers, {facts['slow_down']:.1f} times as slow")
    lines.append(f"  step       {times}")
    asked, sent = (totals(facts[f"sent_bytes_{which}"]) for which in ("predicted", "measured"))
    for dimension in (name for name in ("dp", "tp", "cp", "pp") if sent.get(name)):
        expected = asked.get(dimension, 0)
        same = "as predicted, to the byte" if sent[dimension] == expected else f"predicted {bytes_text(expected)}"
        if facts["engine"] == "torch":
            same = f"realrun's own send {bytes_text(expected)}"
        waits = [
            f"{which} {seconds_text(max(part.get(dimension, 0.0) for part in facts[f'exposed_s_{which}']))}"
            for which in ("predicted", "measured") if facts[f"exposed_s_{which}"]
        ]  # fmt: skip
        waited = f"; longest wait {', '.join(waits)}" if waits else ""
        lines.append(f"  {dimension:<9}  {bytes_text(sent[dimension])} sent by all ranks, {same}{waited}")
    fullest = max(range(facts["ranks"]), key=lambda rank: sum(facts["memory_bytes"][rank].values()))
    held, asked = facts["memory_bytes"][fullest], facts["memory_bytes_predicted"][fullest]
    parts = [f"{name} {bytes_text(size)} ({percent_text(asked[name] / size - 1) if size else 'none'})" for name, size in held.items()]
    lines.append(f"  memory     rank {fullest}, and how far simlab's bytes are from it: {', '.join(parts)}")
    if (peak := facts["allocator_bytes"][fullest]) is not None:
        together = sum(asked.values())
        lines.append(
            f"  allocator  rank {fullest}: {bytes_text(peak)} at most; simlab's bytes are {percent_text(together / peak - 1)} from it"
        )
    if "gradient_error" in facts:
        lines.append(f"  gradients  differ from one process by {facts['gradient_error']:.1e} (float64); loss by {facts['loss_error']:.1e}")
    lines.append(f"  loss       {facts['losses'][0]:.4f} → {facts['losses'][-1]:.4f} nats per byte in {len(facts['losses'])} steps")
    if facts["loss_scale"]:
        skipped = sum(norm is None for norm in facts["norms"])
        lines.append(f"  loss scale {facts['loss_scale']:g} at the end; {skipped} steps skipped for an infinite gradient")
    if facts["reference_losses"]:
        in_fp32 = "" if facts["precision"] == "fp32" else " in fp32"
        apart = max(abs(own / its - 1) for own, its in zip(facts["losses"], facts["reference_losses"]))
        lines.append(f"  reference  one process{in_fp32}: {facts['reference_losses'][-1]:.4f} at the end; at most {apart:.1e} apart")
    elif job.reference:
        lines.append("  reference  none: one process would have to begin where the training did")
    for rank, times in facts["stragglers"]:
        lines.append(f"  straggler  rank {rank} computes {times:.2f} times as long as those that compute the same")
    return "\n".join(lines)


def write_pictures(job, facts):
    """[paths]: the timeline of the median step, predicted over measured. Both are written for Perfetto, too."""
    folder = job.folder
    steps = sorted((Trace.load(path) for path in folder.glob("measured-step-*.json")), key=whole_step_s)
    measured = steps[len(steps) // 2]
    measured.save(folder / "measured.json")
    traces = {"measured": measured}
    if job.is_predicted:
        traces = {"predicted": Trace.load(folder / "predicted.json")} | traces
    for label, trace in traces.items():
        (folder / f"{label}-perfetto.json").write_text(timeline(trace, renderer="perfetto"), encoding="utf-8")
    picture = folder / "timeline.png"
    layer_timeline(list(traces.values()), captions=[label.capitalize() for label in traces]).savefig(picture)
    if len(facts["losses"]) > 1:
        write_losses(folder / "loss.png", job, facts)
    return [picture, *folder.glob("loss.png")]


def write_losses(path, job, facts):
    """The loss of each step, and of the same training in one process where there is one."""
    picture = Picture(figsize=(8, 3.6), layout="constrained", dpi=110)
    axes = picture.subplots()
    steps = range(facts["first_step"] + 1, facts["first_step"] + 1 + len(facts["losses"]))
    axes.plot(steps, facts["losses"], color="#0072B2", linewidth=2.5, label=f"{job.name}: {job.ranks} processes")
    if facts["reference_losses"]:
        axes.plot(steps, facts["reference_losses"], color="#E69F00", linewidth=1.2, linestyle="--", label="one process")
    axes.set(xlabel="training step", ylabel="loss, nats per byte")
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    picture.savefig(path)

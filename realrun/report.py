"""What people get to see of a run: numbers, PNGs, one HTML file that needs nothing else."""

import html
from dataclasses import asdict
from pathlib import Path

from simlab.analysis import bubble, idle_s, peak_memory
from simlab.calibration import Calibration
from simlab.comparison import compare, median_trace, step_summary
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import bytes_text, percent_text, seconds_text
from simlab.views import timeline


def run_report(job, run):
    """The JSON report of one program's run, and the pair (predicted or None, median measured trace) behind it."""
    folder = Path(run["folder"])
    measured = [Trace.load(folder / f"measured-step-{step}.json") for step in range(job.steps)]
    middle = median_trace(measured)
    middle.save(folder / "measured.json")
    program = job.program(run["schedule"])
    report = {
        "schedule": run["schedule"],
        "pp": len(program.ranks),
        "stages": program.stages,
        "microbatches": program.microbatches,
        "compute": job.compute,
        "why_compute": job.why_compute,
        "device": middle.metadata["device"],
        "model": job.model,
        "link_s": job.link_s,
        "measured_step_s": step_summary(measured),
        "bubble_measured": bubble(middle)._asdict(),
        "idle_s_measured": idle_s(middle),
        "gradient_error": run["gradient_error"],
        "loss_error": run["loss_error"],
        "losses": run["losses"],
        "peak_live_microbatches_measured": peak_memory(middle),
        "peak_activation_bytes_measured": peak_memory(middle, ACTIVATIONS),
    }
    predicted = Trace.load(folder / "predicted.json") if (folder / "predicted.json").exists() else None
    if predicted is not None:
        comparison = compare(predicted, middle)
        report |= {
            "predicted_step_s": predicted.step_s,
            "error": predicted.step_s / report["measured_step_s"]["median"] - 1,
            "bubble_predicted": bubble(predicted)._asdict(),
            "idle_s_predicted": idle_s(predicted),
            "op_s": {kind: asdict(pair) | {"error": pair.error} for kind, pair in comparison.op_s.items()},
            "peak_live_microbatches_predicted": peak_memory(predicted),
        }
    return report, predicted, middle


def failures(report, *, gradient_limit=1e-10, max_error=None):
    """[what is wrong with a run]: gradients, live activations and, if `max_error` (a fraction) is given, the step time."""
    name, wrong = report["schedule"], []
    if not report["gradient_error"] <= gradient_limit:
        wrong.append(f"{name}: gradients differ from one process by {report['gradient_error']:.2e}, more than {gradient_limit:g}")
    if not report["loss_error"] <= gradient_limit:
        wrong.append(f"{name}: the loss differs from one process by {report['loss_error']:.2e}, more than {gradient_limit:g}")
    predicted = report.get("peak_live_microbatches_predicted")
    if predicted is not None and predicted != report["peak_live_microbatches_measured"]:
        wrong.append(f"{name}: live microbatches predicted {predicted}, measured {report['peak_live_microbatches_measured']}")
    if max_error is not None and "error" not in report:
        wrong.append(f"{name}: not predicted, since the program breaks the rules: no error to hold against {max_error:.1%}")
    elif max_error is not None and abs(report["error"]) > max_error:
        wrong.append(f"{name}: the predicted step is {report['error']:+.1%} off, more than {max_error:.1%}")
    return wrong


def summary(job, report):
    """The run in a few lines of text."""
    step = report["measured_step_s"]
    times = f"measured {seconds_text(step['median'])} ({seconds_text(step['min'])} to {seconds_text(step['max'])} in {job.steps} steps)"
    held = f"measured {report['peak_live_microbatches_measured']} microbatches, peak per rank"
    lines = ["{schedule}: pp {pp}, {microbatches} microbatches, {compute} compute ({why_compute}), {device}".format(**report)]
    if "error" in report:
        bubbles = [f"{label} {report[f'bubble_{label}']['idle_over_makespan']:.4f}" for label in ("predicted", "measured")]
        lines.append(f"  step       predicted {seconds_text(report['predicted_step_s'])}   {times}   error {percent_text(report['error'])}")
        lines.append(f"  bubble     {'   '.join(bubbles)}   of the makespan")
        for kind, pair in report["op_s"].items():
            both = f"predicted {seconds_text(pair['predicted'])}   measured {seconds_text(pair['measured'])}"
            lines.append(f"  one {kind}      {both}   error {percent_text(pair['error'])}")
        lines.append(f"  held       predicted {report['peak_live_microbatches_predicted']}   {held}")
    else:
        lines.append(f"  step       {times}; not predicted: the program breaks the rules")
        lines.append(f"  held       {held}")
    gradients = f"{report['gradient_error']:.1e} (float64); loss by {report['loss_error']:.1e}"
    lines.append(f"  gradients  differ from the same model in one process by {gradients}")
    return "\n".join(lines)


def write_pictures(folder, predicted, measured):
    """timeline.png: predicted over measured on one time axis; both traces for Perfetto beside it."""
    folder = Path(folder)
    traces = [trace for trace in (predicted, measured) if trace is not None]
    timeline(traces).savefig(folder / "timeline.png")
    for label, trace in (("predicted", predicted), ("measured", measured)):
        if trace is not None:
            (folder / f"{label}-perfetto.json").write_text(timeline(trace, renderer="perfetto"), encoding="utf-8")


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>realrun report</title>
<style>body {{ font-family: system-ui, sans-serif; margin: 2em auto; max-width: 75em; color: #222 }}
table {{ border-collapse: collapse; margin: 0.6em 0 }} td, th {{ padding: 0.2em 0.8em; text-align: right; border-bottom: 1px solid #ddd }}
td:first-child, th:first-child {{ text-align: left }} pre {{ background: #f6f6f6; padding: 0.8em; overflow-x: auto }}</style>
</head><body><h1>Predicted and measured</h1>
<p>Compute: <b>{compute}</b> ({why}). Device: {device}. Every prediction was made from the calibration below, which was measured apart
from these runs and before them. Times in the pictures are milliseconds; hover over a box, drag to zoom.</p>
{sections}
<h2>Calibration</h2>{calibration}
</body></html>
"""


def write_html(path, job, results, calibrations):
    """One HTML file with everything in it, pictures and their script included: it opens offline.

    results: [(report, predicted trace or None, measured trace)]. calibrations: [`Calibration`].
    """
    sections = []
    for number, (report, predicted, measured) in enumerate(results):
        traces = [trace for trace in (predicted, measured) if trace is not None]
        picture = timeline(traces, renderer="plotly").to_html(full_html=False, include_plotlyjs=number == 0)
        table = f"<pre>{html.escape(str(compare(predicted, measured)))}</pre>" if predicted else ""
        text = f"<pre>{html.escape(summary(job, report))}</pre>"
        sections.append(f"<h2>{html.escape(report['schedule'])}</h2>{text}{picture}<h3>The median step in detail</h3>{table}")
    page = PAGE.format(
        compute=job.compute, why=html.escape(job.why_compute), device=html.escape(results[0][0]["device"]),
        sections="\n".join(sections), calibration="<hr>".join(map(_calibration_html, calibrations)),
    )  # fmt: skip
    Path(path).write_text(page, encoding="utf-8")


def _calibration_html(calibration):
    kinds = list(calibration.op_seconds)
    rows = "".join(
        f"<tr><td>stage {stage}</td>" + "".join(f"<td>{seconds_text(calibration.op_seconds[kind][stage])}</td>" for kind in kinds) + "</tr>"
        for stage in range(len(calibration.op_seconds[kinds[0]]))
    )
    links = "".join(
        f"<tr><td>rank {pair.replace('-', ' to ')}</td><td>{seconds_text(link['latency_s'])}</td>"
        f"<td>{'too fast to tell' if link['bandwidth_bytes_per_s'] >= 1e15 else bytes_text(link['bandwidth_bytes_per_s']) + '/s'}</td></tr>"
        for pair, link in calibration.links.items()
    )
    head = "".join(f"<th>{kind}</th>" for kind in kinds)
    facts = html.escape("\n".join(f"{key}: {value}" for key, value in calibration.metadata.items()))
    return (
        f"<table><tr><th>op alone, median</th>{head}</tr>{rows}</table>"
        f"<table><tr><th>link</th><th>latency</th><th>bandwidth</th></tr>{links}</table>"
        f"<p>A message is {bytes_text(calibration.message_bytes)}.</p><pre>{facts}</pre>"
    )


def load_calibrations(job):
    """[the calibrations that the job's session wrote]"""
    return [Calibration.load(job.calibration_path(stages)) for stages in job.stage_counts]

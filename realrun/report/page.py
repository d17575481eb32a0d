"""The report of a job as one HTML file that needs nothing else."""

import base64
import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from realrun.report import offline
from realrun.report.summary import summary
from realrun.report.traces import RunTraces
from realrun.run.job import Job
from simlab.analysis.comparison import compare
from simlab.spec.hardware import UNSEEN
from simlab.training.calibration import Calibration
from simlab.units import bytes_text, seconds_text
from simlab.views.packing import Panel, panels

CALIBRATED = (
    "Every prediction was made from the calibration below, which was measured apart from these runs "
    "and before them. Times in the pictures are milliseconds; hover over a box, drag to zoom."
)
FROM_FIGURES = (
    "A prediction, where there is one, was made before the run, from the figures of a cluster. The "
    "picture shows the measured step whose time is the median."
)


class Reported(NamedTuple):
    """A run of `job`, its facts and its traces, as the page shows them."""

    job: Job
    facts: dict[str, Any]
    traces: RunTraces


PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>realrun report</title>
<style>{theme}
body {{ font-family: system-ui, sans-serif; margin: 2em auto; padding: 0 1em; max-width: 75em }}
body {{ background: var(--simlab-background); color: var(--simlab-ink) }}
table {{ border-collapse: collapse; margin: 0.6em 0 }} td, th {{ padding: 0.2em 0.8em; text-align: right }}
td, th {{ border-bottom: 1px solid var(--simlab-line) }}
td:first-child, th:first-child {{ text-align: left }} pre {{ border: 1px solid var(--simlab-line); padding: 0.8em; overflow-x: auto }}
img {{ max-width: 100%; background: #fff }}</style>
</head><body><h1>Predicted and measured</h1>
<p>Compute: <b>{compute}</b> ({why}). Device: {device}. {predicted}</p>
{sections}
{calibration}
{script}
</body></html>
"""


def write_html(path: Path, reported: Sequence[Reported], calibrations: list[Calibration]) -> None:
    """Write the page at `path`, with all pictures and their script in it: it opens offline."""
    first = reported[0].facts
    drawn: list[list[Panel]] = []
    sections = [_section(one, drawn) for one in reported]
    shown = "<hr>".join(map(_calibration_html, calibrations))
    page = PAGE.format(
        theme=offline.style(),
        compute=first["compute"],
        why=html.escape(first["why_compute"]),
        device=html.escape(first["device"]),
        predicted=CALIBRATED if calibrations else FROM_FIGURES,
        sections="\n".join(sections),
        calibration=f"<h2>Calibration</h2>{shown}" if shown else "",
        script=offline.script(drawn) if drawn else "",
    )
    path.write_text(page, encoding="utf-8")


def _section(reported: Reported, drawn: list[list[Panel]]) -> str:
    """The part about one run. The panels of its timeline are added to `drawn`, those of the page."""
    job, facts, traces = reported
    text = f"<h2>{html.escape(facts['name'])}</h2><pre>{html.escape(summary(job, facts))}</pre>"
    if job.programs is None:
        still = (Path(facts["folder"]) / "timeline.png").read_bytes()
        source = f"data:image/png;base64,{base64.b64encode(still).decode()}"
        return f'{text}<img alt="timeline of the median step" src="{source}">'
    text += offline.place(len(drawn))
    drawn.append(panels(list(traces.drawn.values())))
    if traces.predicted is not None:
        details = html.escape(str(compare(traces.predicted, traces.measured)))
        text += f"<h3>The median step in detail</h3><pre>{details}</pre>"
    return text


def _calibration_html(calibration: Calibration) -> str:
    kinds = list(calibration.op_seconds)
    rows = "".join(
        f"<tr><td>stage {stage}</td>"
        + "".join(f"<td>{seconds_text(calibration.op_seconds[kind][stage])}</td>" for kind in kinds)
        + "</tr>"
        for stage in range(len(calibration.op_seconds[kinds[0]]))
    )
    links = "".join(
        f"<tr><td>rank {pair.replace('-', ' to ')}</td><td>{seconds_text(link['latency_s'])}</td>"
        f"<td>{_bandwidth_text(link['bandwidth_bytes_per_s'])}</td></tr>"
        for pair, link in calibration.links.items()
    )
    head = "".join(f"<th>{kind}</th>" for kind in kinds)
    facts = html.escape("\n".join(f"{key}: {value}" for key, value in calibration.metadata.items()))
    return (
        f"<table><tr><th>op alone, median</th>{head}</tr>{rows}</table>"
        f"<table><tr><th>link</th><th>latency</th><th>bandwidth</th></tr>{links}</table>"
        f"<p>A message is {bytes_text(calibration.message_bytes)}.</p><pre>{facts}</pre>"
    )


def _bandwidth_text(bytes_per_s: float) -> str:
    return "too fast to tell" if bytes_per_s >= UNSEEN else f"{bytes_text(bytes_per_s)}/s"

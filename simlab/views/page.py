"""What the page that simulates in the browser asks for, and what it gets: plain dictionaries.

The page runs this file under Pyodide, in a worker. A recorded answer, made by the same function when
the page is built, is shown until the worker is ready.
"""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

from simlab.analysis import bubble, peak_memory
from simlab.errors import InputError
from simlab.schedules import SCHEDULES, schedule_of
from simlab.studies.pipeline import PipelineCase
from simlab.trace import ACTIVATIONS, Trace
from simlab.units import MS
from simlab.views.language import refusal
from simlab.views.packing import panels

NUMBERS = {
    "stages": int,
    "microbatches": int,
    "chunks": int,
    "forward_ms": float,
    "backward_ms": float,
    "link_ms": float,
}
"""{what the page sends: the type of its value}; `chunks` is for schedules that take it."""


def schedules() -> list[dict[str, Any]]:
    """[{"name", "chunks": whether one chooses the number of chunks}] of every schedule."""
    return [{"name": name, "chunks": its.chunked} for name, its in SCHEDULES.items()]


def pipeline(request: Mapping[str, Any]) -> dict[str, Any]:
    """Simulate the schedules of `request`, a name each in "schedules", with the numbers `NUMBERS`.

    Returns {"panels": what the timeline paints, "figures": [{"name", "step_s", "idle_over_makespan",
    "peak"} of each schedule], "refused": [[schedule, {"en", "zh": why}] of those that cannot do it]}.
    `peak` is the most that a rank holds, in microbatches of its share of the model.

    Raises `InputError` where a number is missing or has another type.
    """
    values = {name: _number(request, name, kind) for name, kind in NUMBERS.items()}
    traces: list[Trace] = []
    refused = []
    for name in request["schedules"]:
        try:
            traces.append(_case(name, values).trace())
        except InputError as error:
            refused.append([name, refusal(error)._asdict()])
    packed = [panel._asdict() for panel in panels(traces)] if traces else []
    return {"panels": packed, "figures": [*map(_figures, traces)], "refused": refused}


def recorded(answer: Any) -> Any:
    """`answer`, an answer of `pipeline`, as JSON can hold it: bytes become {"base64": text}."""
    if isinstance(answer, bytes):
        return {"base64": b64encode(answer).decode()}
    if isinstance(answer, Mapping):
        return {name: recorded(value) for name, value in answer.items()}
    if isinstance(answer, Sequence) and not isinstance(answer, str):
        return [recorded(value) for value in answer]
    return answer


def _number(request: Mapping[str, Any], name: str, kind: type) -> Any:
    value = request.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, kind)):
        raise InputError(f"{name} = {value!r}: give {'a whole number' if kind is int else 'ms'}")
    return value


def _case(name: str, values: Mapping[str, Any]) -> PipelineCase:
    return PipelineCase(
        schedule=name,
        stages=values["stages"],
        microbatches=values["microbatches"],
        chunks=values["chunks"] if schedule_of(name).chunked else None,
        forward_s=values["forward_ms"] * MS,
        backward_s=values["backward_ms"] * MS,
        link_s=values["link_ms"] * MS,
    )


def _figures(trace: Trace) -> dict[str, Any]:
    return {
        "name": trace.metadata["name"],
        "step_s": trace.step_s,
        "idle_over_makespan": bubble(trace).idle_over_makespan,
        "peak": max(peak_memory(trace, ACTIVATIONS)),
    }

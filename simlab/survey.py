"""Every schedule on the same ranks, microbatches and times: what each takes, holds and sends."""

from dataclasses import dataclass
from math import isclose

from simlab.analysis import Bubble, bubble, busy_s, longest_span, peak_memory
from simlab.cost import FIELD_OF_KIND, OpMemory
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.program import WEIGHT_GRAD_MEMORY
from simlab.schedules import OPTIONS, SCHEDULES, generate
from simlab.schedules.closed_forms import closed_bubble_s
from simlab.trace import ACTIVATIONS, SHARE, Trace
from simlab.units import seconds_text


@dataclass(frozen=True, kw_only=True)
class Row:
    """One schedule. A rank's share is 1/p of the model; a microbatch's activations on it are the unit of memory."""

    schedule: str
    refused: str | None = None
    """Why the schedule cannot do it; then nothing else is known."""
    stages: int | None = None
    step_s: float | None = None
    bubble: Bubble | None = None
    bubble_s: float | None = None
    """Idle seconds of the rank with the longest span, inside it."""
    closed_form_s: float | None = None
    """The same by the paper's formula; None where it has none for these numbers, messages take time, or B is not I + W."""
    peak_activations: list[float] | None = None
    """per rank"""
    fits: bool | None = None
    """Whether no rank holds more than the cap, where there is one."""
    parameters: list[float] | None = None
    """per rank: 1 is its share; DualPipe holds 2"""
    messages: int | None = None
    trace: Trace | None = None


def survey(ranks, microbatches, times, *, link=None, weight_grad_memory=WEIGHT_GRAD_MEMORY, options=None):
    """[`Row` of each schedule].

    times:              `OpTimes` of a rank's whole share of the model, a number for each op kind (B is I + W unless given); stages
                        divide it equally. A schedule with an op kind whose time is not given is refused.
    link:               as for `simulate`.
    weight_grad_memory: M_W / M_B.
    options:            {option: value} for the schedules that take it, see `simlab.schedules.OPTIONS`. zb-auto has two rows,
                        with caps of p and 2p, unless `cap` is among them.

    Raises `InputError` if no schedule can do it.
    """
    for field in FIELD_OF_KIND.values():
        if isinstance(getattr(times, field), tuple):
            raise InputError(f"{field} = {getattr(times, field)}: give one number, of a rank's whole share; the stages divide it")
    options = {"cap": None} | (options or {})
    searched = search_options(times, link, weight_grad_memory)
    caps = (ranks, 2 * ranks) if options["cap"] is None else (options["cap"],)
    variants = [(name, name, options) for name in SCHEDULES if name != "zb-auto"]
    variants += [(f"zb-auto, cap {cap:g}", "zb-auto", options | searched | {"cap": cap}) for cap in caps]
    rows = [_row(*variant, ranks, microbatches, times, link, weight_grad_memory) for variant in variants]
    if all(row.refused for row in rows):  # no stages, say: it is not the schedules' fault
        raise InputError(rows[0].refused)
    return rows


def search_options(times, link, weight_grad_memory):
    """What zb-auto is told of `OpTimes` of a rank's share and a `Link`."""
    times = {field: getattr(times, field) for field in ("forward_s", "input_grad_s", "weight_grad_s")}
    return {**times, "p2p_s": link.latency_s if link else 0.0, "weight_grad_memory": weight_grad_memory}


def rank_shares(program, times, weight_grad_memory=WEIGHT_GRAD_MEMORY):
    """(`OpTimes`, `OpMemory`) of the stages of `program`, given those of a rank's whole share of the model."""
    part = len(program.ranks) / program.stages
    memory = OpMemory(activations=part, weight_grad=part * weight_grad_memory, unit=SHARE)
    return times.scaled(part), memory


def parameter_shares(program):
    """[per rank] how much of the model it holds, in equal shares: 1, or 2 where every stage stands on two ranks."""
    return [len(program.stages_of(rank)) * len(program.ranks) / program.stages for rank in range(len(program.ranks))]


HEAD = ("", "step", "bubble/ideal", "/makespan", "of longest", "bubble", "closed form", "activations", "parameters", "messages")


def survey_table(rows):
    """`rows` as text, one line per schedule."""
    lines = [HEAD, *(_cells(row) for row in rows if not row.refused)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    table = [f"{line[0]:<{widths[0]}}  " + "  ".join(map(str.rjust, line[1:], widths[1:])) for line in lines]
    return "\n".join(table + [f"{row.schedule}: not here: {row.refused}" for row in rows if row.refused])


def _cells(row):
    figures = [f"{value:.4f}" for value in row.bubble]
    closed = "-" if row.closed_form_s is None else seconds_text(row.closed_form_s)
    memory = [f"{max(row.peak_activations):.3g}{' > cap' * (row.fits is False)}", f"{max(row.parameters):g}"]
    return row.schedule, seconds_text(row.step_s), *figures, seconds_text(row.bubble_s), closed, *memory, str(row.messages)


def _row(label, name, options, ranks, microbatches, times, link, weight_grad_memory):
    try:
        if name == "zb-auto" and None in (times.input_grad_s, times.weight_grad_s):
            raise InputError("it is searched for given times of I and W, which are not given")
        program = generate(name, ranks, microbatches, **{key: value for key, value in options.items() if key in OPTIONS[name]})
        stage_times, memory = rank_shares(program, times, weight_grad_memory)
        trace = simulate(program, stage_times, link=link, memory=memory)
    except InputError as error:
        return Row(schedule=label, refused=str(error))
    trace.metadata["name"] = label
    rank, span_s = longest_span(trace)
    peaks, cap = peak_memory(trace, ACTIVATIONS), options["cap"]
    return Row(
        schedule=label,
        stages=program.stages,
        step_s=trace.step_s,
        bubble=bubble(trace),
        bubble_s=span_s - busy_s(trace)[rank],
        closed_form_s=_closed_form_s(program, times) if link is None and not times.jitter else None,
        peak_activations=peaks,
        fits=None if cap is None else max(peaks) <= cap * (1 + 1e-9),
        parameters=parameter_shares(program),
        messages=len(trace.messages()),
        trace=trace,
    )


def _closed_form_s(program, times):
    """The paper's bubble for `times` of a rank's share; None where it has none, or B is something else than I + W."""
    input_grad_s, weight_grad_s = times.input_grad_s, times.weight_grad_s
    if input_grad_s is None or weight_grad_s is None:  # then the parts of B do not matter
        input_grad_s, weight_grad_s = times.backward_s, 0.0
    if times.backward_s is not None and not isclose(times.backward_s, input_grad_s + weight_grad_s):
        return None
    return closed_bubble_s(program, times.forward_s, input_grad_s, weight_grad_s, times.pair_s)

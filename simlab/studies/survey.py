"""It simulates every schedule with the same ranks, microbatches and times, and makes a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from typing import Any

from simlab.analysis import Bubble, bubble, busy_s, longest_span, peak_memory
from simlab.cost import FIELD_OF_KIND, OpMemory, OpTimes
from simlab.engine import simulate
from simlab.errors import InputError
from simlab.program import WEIGHT_GRAD_MEMORY, Program
from simlab.schedules import SCHEDULES, closed_bubble_s, generate
from simlab.spec.hardware import Link
from simlab.trace import ACTIVATIONS, SHARE, Trace
from simlab.units import seconds_text


@dataclass(frozen=True, kw_only=True)
class Row:
    """What a survey found out about one schedule.

    A rank's share is 1/p of the model, where p is the number of ranks. The unit of memory is the
    activations of one microbatch on such a share.
    """

    schedule: str
    """The name of the schedule."""
    refused: str | None = None
    """Why the schedule cannot be made for these numbers; then the other fields are None."""
    stages: int | None = None
    """The number of stages, of which a rank can have several."""
    step_s: float | None = None
    """The makespan, in seconds."""
    bubble: Bubble | None = None
    """The three fractions of idle time."""
    bubble_s: float | None = None
    """The idle time of the rank with the longest span within that span, in seconds."""
    closed_form_s: float | None = None
    """The same by the paper's formula, in seconds; None if there is no formula for these numbers, if
    messages take time, or if B is not I + W."""
    peak_activations: list[float] | None = None
    """[per rank] the most activations that it holds."""
    fits: bool | None = None
    """Whether no rank holds more than the cap; None if there is no cap."""
    parameters: list[float] | None = None
    """[per rank] the parameters that it holds, where 1 is its share; DualPipe's ranks hold 2."""
    messages: int | None = None
    """The number of messages between ranks."""
    trace: Trace | None = None
    """The simulated trace."""


def survey(
    ranks: int,
    microbatches: int,
    times: OpTimes,
    *,
    link: Link | None = None,
    weight_grad_memory: float = WEIGHT_GRAD_MEMORY,
    options: Mapping[str, Any] | None = None,
) -> list[Row]:
    """The `Row` of each schedule.

    times:              the `OpTimes` of a rank's whole share of the model, one number for each op
                        kind, in seconds. B is I + W unless it is given. The stages of a rank divide
                        these times equally. A schedule is refused if the time of one of its op kinds
                        is not given.
    link:               the link between ranks, as for `simulate`.
    weight_grad_memory: M_W / M_B, the fraction of a microbatch's activations that is held from I to
                        W.
    options:            {option: value} for the schedules that have the option, see
                        `Schedule.options`. zb-auto has two rows, with caps of p and 2p,
                        unless `cap` is among the options.

    Raises `InputError` if no schedule can be made for these numbers.
    """
    for field in FIELD_OF_KIND.values():
        if isinstance(getattr(times, field), tuple):
            raise InputError(
                f"{field} = {getattr(times, field)}: give one number, of a rank's whole share; the stages divide it"
            )
    options = {"cap": None, **(options or {})}
    searched = search_options(times, link, weight_grad_memory)
    caps = (ranks, 2 * ranks) if options["cap"] is None else (options["cap"],)
    variants = [(name, name, options) for name, its in SCHEDULES.items() if not its.timed]
    variants += [
        (f"{name}, cap {cap:g}", name, {**options, **searched, "cap": cap})
        for name, its in SCHEDULES.items()
        if its.timed
        for cap in caps
    ]
    rows = [
        _row(*variant, ranks, microbatches, times, link, weight_grad_memory) for variant in variants
    ]
    if all(row.refused for row in rows):  # The numbers are wrong, such as 0 stages.
        raise InputError(rows[0].refused)
    return rows


def search_options(times: OpTimes, link: Link | None, weight_grad_memory: float) -> dict[str, Any]:
    """The options of zb-auto for the `OpTimes` of a rank's share and a `Link`."""
    fields = ("forward_s", "input_grad_s", "weight_grad_s")
    return {
        **{field: getattr(times, field) for field in fields},
        "p2p_s": link.latency_s if link else 0.0,
        "weight_grad_memory": weight_grad_memory,
    }


def rank_shares(
    program: Program, times: OpTimes, weight_grad_memory: float = WEIGHT_GRAD_MEMORY
) -> tuple[OpTimes, OpMemory]:
    """The `OpTimes` and the `OpMemory` of the stages of `program`, given the times of a rank's whole
    share of the model."""
    part = len(program.ranks) / program.stages
    memory = OpMemory(activations=part, weight_grad=part * weight_grad_memory, unit=SHARE)
    return times.scaled(part), memory


def parameter_shares(program: Program) -> list[float]:
    """[per rank] the parameters that it holds, in shares of 1/p of the model: 1, or 2 if every stage
    is on two ranks."""
    return [
        len(program.stages_of(rank)) * len(program.ranks) / program.stages
        for rank in range(len(program.ranks))
    ]


HEAD = (
    "schedule",
    "step",
    "/ideal",
    "/span",
    "longest",
    "bubble",
    "formula",
    "held",
    "par",
    "msgs",
)
"""The columns of `survey_table`. /ideal, /span and longest are the three figures of `Bubble`.

bubble is `Row.bubble_s`, and formula its closed form. held and par are the most activations and
parameters of a rank, in units of a rank's share. msgs is the number of messages.
"""


def survey_table(rows: Sequence[Row]) -> str:
    """`rows` as text of at most 80 columns, with one line per schedule; `HEAD` has the columns."""
    lines = [HEAD, *(_cells(row) for row in rows if not row.refused)]
    widths = [max(map(len, column)) for column in zip(*lines)]
    table = [
        " ".join([line[0].ljust(widths[0]), *map(str.rjust, line[1:], widths[1:])])
        for line in lines
    ]
    over = [
        f"{row.schedule}: holds {max(row.peak_activations or [0]):.3g} > cap"
        for row in rows
        if row.fits is False
    ]
    refused = [f"{row.schedule}: not here: {row.refused}" for row in rows if row.refused]
    return "\n".join([*table, *over, *refused])


def _cells(row: Row) -> tuple[str, ...]:
    assert row.bubble and row.peak_activations and row.parameters  # The row is not refused.
    assert row.step_s is not None and row.bubble_s is not None
    closed = "-" if row.closed_form_s is None else seconds_text(row.closed_form_s)
    return (
        row.schedule,
        seconds_text(row.step_s),
        *(f"{value:.4f}" for value in row.bubble),
        seconds_text(row.bubble_s),
        closed,
        f"{max(row.peak_activations):.3g}",
        f"{max(row.parameters):g}",
        str(row.messages),
    )


def _row(
    label: str,
    name: str,
    options: Mapping[str, Any],
    ranks: int,
    microbatches: int,
    times: OpTimes,
    link: Link | None,
    weight_grad_memory: float,
) -> Row:
    try:
        if SCHEDULES[name].timed and None in (times.input_grad_s, times.weight_grad_s):
            raise InputError("it is searched for given times of I and W, which are not given")
        program = generate(
            name,
            ranks,
            microbatches,
            **{key: value for key, value in options.items() if key in SCHEDULES[name].options},
        )
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


def _closed_form_s(program: Program, times: OpTimes) -> float | None:
    """The paper's bubble in seconds for the `times` of a rank's share; None if there is none, or if
    B is not I + W."""
    forward_s, backward_s = _one(times.forward_s), _one(times.backward_s)
    input_grad_s, weight_grad_s = _one(times.input_grad_s), _one(times.weight_grad_s)
    if input_grad_s is None or weight_grad_s is None:  # No schedule that splits B is simulated.
        input_grad_s, weight_grad_s = backward_s, 0.0
    if forward_s is None or input_grad_s is None:
        return None
    if backward_s is not None and not isclose(backward_s, input_grad_s + weight_grad_s):
        return None
    return closed_bubble_s(program, forward_s, input_grad_s, weight_grad_s, _one(times.pair_s))


def _one(seconds: float | tuple[float, ...] | None) -> float | None:
    """A time that is the same for all stages, which `survey` has checked."""
    assert not isinstance(seconds, tuple)
    return seconds

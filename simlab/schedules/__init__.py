"""It holds the record of each schedule, and makes its program: a pure function `(ranks, microbatches,
options) -> Program`.

The names are those of the command line.
"""

from typing import Any

from simlab.errors import InputError, did_you_mean, require_seconds, shortened, whole
from simlab.garbage import no_garbage_collection
from simlab.program import Program
from simlab.schedules.building_blocks import V_HALF, V_MIN
from simlab.schedules.dualpipe import DUALPIPE, DUALPIPE_V
from simlab.schedules.eager import EAGER_1F1B
from simlab.schedules.gpipe import GPIPE
from simlab.schedules.interleaved import INTERLEAVED_1F1B, LOOPED_BFS
from simlab.schedules.one_f_one_b import ONE_F_ONE_B, PIPEDREAM
from simlab.schedules.schedule import Case, Schedule
from simlab.schedules.zb_auto import ZB_AUTO
from simlab.schedules.zb_v import ZB_V
from simlab.schedules.zero_bubble import ZB_H1, ZB_H2

RECORDS = {
    each.name: each
    for each in (
        GPIPE,
        ONE_F_ONE_B,
        EAGER_1F1B,
        INTERLEAVED_1F1B,
        LOOPED_BFS,
        ZB_H1,
        ZB_H2,
        ZB_AUTO,
        ZB_V,
        V_HALF,
        V_MIN,
        DUALPIPE,
        DUALPIPE_V,
        PIPEDREAM,
    )
}
"""{name: `Schedule`} of all schedules."""
SCHEDULES = {name: each for name, each in RECORDS.items() if each.flush}
"""{name: `Schedule`} of those with a flush, which are all that a plan can have."""
ALIASES = {alias: each.name for each in RECORDS.values() for alias in each.aliases}
COUNTS = {"chunks": "chunks", "group": "microbatches in a group"}
"""{option that is a count: what it counts}."""
LARGEST = 1_000_000
"""The most stages times microbatches. A mistyped number above it would use up the memory of the
machine."""

__all__ = [
    "ALIASES",
    "RECORDS",
    "SCHEDULES",
    "Schedule",
    "closed_bubble_s",
    "generate",
    "schedule_of",
]


def schedule_of(name: str | Schedule) -> Schedule:
    """The `Schedule` of that name or alias, with a flush or not, or the one that is given. Raises
    `InputError` for another."""
    if isinstance(name, Schedule):
        return name
    if isinstance(name, str) and (found := RECORDS.get(ALIASES.get(name, name))):
        return found
    names = sorted([*RECORDS, *ALIASES])
    hint = did_you_mean(name, names) or ";"
    raise InputError(f"unknown schedule {name!r}{hint} there is {', '.join(names)}")


@no_garbage_collection()
def generate(name: str | Schedule, stages: int, microbatches: int, **options: Any) -> Program:
    """The program of the schedule `name`, or of a `Schedule` of one's own.

    stages:       the pipeline's degree p, which is the number of ranks. Some schedules put several
                  smaller stages on each rank.
    microbatches: the number of microbatches m.
    options:      the schedule's own options, see `Schedule.options`; None is the same as not given.
                  `chunks` is the number of stages per rank. `group` is the number of microbatches
                  that go through one chunk before the next chunk's turn. `forward_s`, `cap` and
                  others say what `zb_auto` searches for.

    Raises `InputError` for an unknown name or option, for a count below 1, and if the schedule
    cannot be made for these numbers.
    """
    schedule = schedule_of(name)
    options = {option: value for option, value in options.items() if value is not None}
    for option in options:
        if option not in schedule.options:
            those = [other for other, its in SCHEDULES.items() if option in its.options]
            others = f", or take one of {', '.join(those)}" if those else ""
            raise InputError(
                f"{option} = {options[option]!r}: {schedule.name} has no {option} to choose: leave it out{others}"
            )
    counts = [(stages, "pipeline stages (pp)"), (microbatches, "microbatches")]
    counts += [(options[option], what) for option, what in COUNTS.items() if option in options]
    for value, what in counts:
        if not whole(value):
            raise InputError(f"{shortened(value)} {what}: give a whole number of at least 1")
    chunks = options.get("chunks", 1)
    if stages * microbatches * chunks > LARGEST:
        of = f" of {chunks} chunks" * (chunks > 1)
        raise InputError(
            f"{stages} stages{of} x {microbatches} microbatches is more than {LARGEST:,}: give fewer"
        )
    return schedule.function(stages, microbatches, **options)


def closed_bubble_s(
    program: Program,
    forward_s: float,
    input_grad_s: float,
    weight_grad_s: float,
    pair_s: float | None = None,
) -> float | None:
    """The bubble of `program` in seconds, by the formula of the schedule that it is named after.

    forward_s, input_grad_s, weight_grad_s: the times F, I and W, in seconds: a rank's, for one
            microbatch, summed over its stages.
    pair_s: the time F&B of a forward and a backward side by side, from B to F + B, in seconds; None
            means F + B.

    The bubble is the idle time of the rank with the longest span, from its first op to its last.
    Messages, jitter and unequal stages are left out. None if there is no formula for the schedule, or
    if its condition does not hold; see `Schedule.bubble_s`, which stands beside each schedule's
    function in `simlab.schedules`.
    """
    for what, value in (
        ("forward_s", forward_s),
        ("input_grad_s", input_grad_s),
        ("weight_grad_s", weight_grad_s),
    ):
        require_seconds(what, value)
    p, m, v = len(program.ranks), program.microbatches, program.stages // max(1, len(program.ranks))
    backward_s = input_grad_s + weight_grad_s
    both_s = forward_s + backward_s if pair_s is None else pair_s
    case = Case(p, m, v, forward_s, input_grad_s, weight_grad_s, backward_s, both_s)
    return RECORDS[program.name].bubble_s(case) if program.name in RECORDS else None

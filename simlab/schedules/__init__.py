"""It maps the name of each schedule to a pure function `(ranks, microbatches, options) -> Program`.

The names are those of the command line.
"""

from inspect import signature
from typing import Any

from simlab.errors import InputError, did_you_mean, shortened, whole
from simlab.garbage import no_garbage_collection
from simlab.program import Program
from simlab.schedules.building_blocks import v_half, v_min
from simlab.schedules.dualpipe import dualpipe, dualpipe_v
from simlab.schedules.eager import eager_1f1b
from simlab.schedules.gpipe import gpipe
from simlab.schedules.interleaved import interleaved_1f1b, looped_bfs
from simlab.schedules.one_f_one_b import one_f_one_b
from simlab.schedules.pipedream import pipedream
from simlab.schedules.zb_auto import zb_auto
from simlab.schedules.zb_v import zb_v
from simlab.schedules.zero_bubble import zb_h1, zb_h2
from simlab.spec.schedule_names import ALIASES, CHUNKED, V_SHAPED

SCHEDULES = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_1f1b,
    "interleaved-1f1b": interleaved_1f1b,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-auto": zb_auto,
    "zb-v": zb_v,
    "v-half": v_half,
    "v-min": v_min,
    "dualpipe": dualpipe,
    "dualpipe-v": dualpipe_v,
}
WITHOUT_FLUSH = {"pipedream": pipedream}
"""The schedules that realrun refuses, because it trains with a flush."""
OPTIONS = {name: tuple(signature(function).parameters)[2:] for name, function in SCHEDULES.items()}
"""{schedule: the names of its own options}."""
COUNTS = {"chunks": "chunks", "group": "microbatches in a group"}
"""{option that is a count: what it counts}."""
LARGEST = 1_000_000
"""The most stages times microbatches. A mistyped number above it would use up the memory of the
machine."""

__all__ = ["ALIASES", "CHUNKED", "OPTIONS", "SCHEDULES", "V_SHAPED", "WITHOUT_FLUSH", "generate"]


@no_garbage_collection()
def generate(name: str, stages: int, microbatches: int, **options: Any) -> Program:
    """The program of the schedule `name`.

    stages:       the pipeline's degree p, which is the number of ranks. Some schedules put several
                  smaller stages on each rank.
    microbatches: the number of microbatches m.
    options:      the schedule's own options, see `OPTIONS`; None is the same as not given.
                  `chunks` is the number of stages per rank. `group` is the number of microbatches
                  that go through one chunk before the next chunk's turn. `forward_s`, `cap` and
                  others say what `zb_auto` searches for.

    Raises `InputError` for an unknown name or option, for a count below 1, and if the schedule
    cannot be made for these numbers.
    """
    name = ALIASES.get(name, name) if isinstance(name, str) else name
    functions = SCHEDULES | WITHOUT_FLUSH
    if not isinstance(name, str) or name not in functions:
        names = sorted([*functions, *ALIASES])
        hint = did_you_mean(name, names) or ";"
        raise InputError(f"unknown schedule {name!r}{hint} there is {', '.join(names)}")
    options = {option: value for option, value in options.items() if value is not None}
    for option in options:
        if option not in OPTIONS.get(name, ()):
            those = [other for other in SCHEDULES if option in OPTIONS[other]]
            others = f", or take one of {', '.join(those)}" if those else ""
            raise InputError(
                f"{option} = {options[option]!r}: {name} has no {option} to choose: leave it out{others}"
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
    return functions[name](stages, microbatches, **options)

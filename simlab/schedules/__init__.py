"""Schedules: pure functions `(ranks, microbatches, options) -> Program`, by the name used on the command line."""

from inspect import signature

from simlab.errors import InputError
from simlab.garbage import no_garbage_collection
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
WITHOUT_FLUSH = {"pipedream": pipedream}  # not for the executor, which trains with a flush
ALIASES = {"afab": "gpipe"}
OPTIONS = {name: tuple(signature(function).parameters)[2:] for name, function in SCHEDULES.items()}  # what else each can be told
CHUNKED = tuple(name for name in SCHEDULES if "chunks" in OPTIONS[name])  # `chunks` stages per rank, 2 unless asked for otherwise
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipe-v")  # two stages on each rank, down the ranks and up again
COUNTS = {"chunks": "chunks", "group": "microbatches in a group"}
LARGEST = 1_000_000  # stages x microbatches: beyond it a mistyped number would eat the machine's memory

__all__ = ["ALIASES", "CHUNKED", "OPTIONS", "SCHEDULES", "V_SHAPED", "WITHOUT_FLUSH", "generate"]


@no_garbage_collection()
def generate(name, stages, microbatches, **options):
    """The program of the schedule `name`.

    stages:       the pipeline's degree p, one rank each. (Some schedules then put several smaller stages on each rank.)
    microbatches: m.
    options:      what else the schedule can be told, see `OPTIONS`; None is as good as not given. `chunks`: stages per
                  rank. `group`: microbatches that go through one chunk before the next chunk's turn. `forward_s`,
                  `cap` and more: what zb-auto searches for.

    Raises `InputError` for an unknown name or option, a count below 1, and what the schedule cannot do.
    """
    name = ALIASES.get(name, name)
    functions = SCHEDULES | WITHOUT_FLUSH
    if name not in functions:
        raise InputError(f"unknown schedule {name!r}; there is {', '.join(sorted([*functions, *ALIASES]))}")
    options = {option: value for option, value in options.items() if value is not None}
    for option in options:
        if option not in OPTIONS.get(name, ()):
            those = [other for other in SCHEDULES if option in OPTIONS[other]]
            others = f", or take one of {', '.join(those)}" if those else ""
            raise InputError(f"{option} = {options[option]!r}: {name} has no {option} to choose: leave it out{others}")
    counts = [(stages, "pipeline stages (pp)"), (microbatches, "microbatches")]
    counts += [(options[option], what) for option, what in COUNTS.items() if option in options]
    for value, what in counts:
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{value!r} {what}: give a whole number of at least 1")
    chunks = options.get("chunks", 1)
    if stages * microbatches * chunks > LARGEST:
        of = f" of {chunks} chunks" * (chunks > 1)
        raise InputError(f"{stages} stages{of} x {microbatches} microbatches is more than {LARGEST:,}: give fewer")
    return functions[name](stages, microbatches, **options)

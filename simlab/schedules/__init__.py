"""Schedules: pure functions `(ranks, microbatches) -> Program`, by the name used on the command line."""

from simlab.errors import InputError
from simlab.schedules.eager import eager_1f1b
from simlab.schedules.gpipe import gpipe
from simlab.schedules.interleaved import interleaved_1f1b, looped_bfs
from simlab.schedules.one_f_one_b import one_f_one_b
from simlab.schedules.v_shaped import dualpipe_v, zb_v
from simlab.schedules.zero_bubble import zb_h1, zb_h2

SCHEDULES = {
    "gpipe": gpipe,
    "1f1b": one_f_one_b,
    "eager-1f1b": eager_1f1b,
    "interleaved-1f1b": interleaved_1f1b,
    "looped-bfs": looped_bfs,
    "zb-h1": zb_h1,
    "zb-h2": zb_h2,
    "zb-v": zb_v,
    "dualpipe-v": dualpipe_v,
}
ALIASES = {"afab": "gpipe"}
CHUNKED = ("interleaved-1f1b", "looped-bfs")  # `chunks` stages per rank, 2 unless asked for otherwise
LARGEST = 1_000_000  # stages x microbatches: beyond it a mistyped number would eat the machine's memory

__all__ = ["ALIASES", "CHUNKED", "SCHEDULES", "generate"]


def generate(name, stages, microbatches, *, chunks=None):
    """The program of the schedule `name`.

    stages:       the pipeline's degree p, one rank each. (The schedules in `CHUNKED` and the V-shaped ones then put
                  several smaller stages on each rank.)
    microbatches: m.
    chunks:       stages per rank, for the schedules in `CHUNKED` only.

    Raises `InputError` for an unknown name, a count below 1, and what the schedule cannot do.
    """
    name = ALIASES.get(name, name)
    if name not in SCHEDULES:
        raise InputError(f"unknown schedule {name!r}; there is {', '.join(sorted([*SCHEDULES, *ALIASES]))}")
    counts = [(stages, "pipeline stages (pp)"), (microbatches, "microbatches")]
    if chunks is not None:
        if name not in CHUNKED:
            raise InputError(f"{name} has no choice of chunks: leave them out, or take one of {', '.join(CHUNKED)}")
        counts.append((chunks, "chunks"))
    for value, what in counts:
        if not isinstance(value, int) or value < 1:
            raise InputError(f"{value!r} {what}: give a whole number of at least 1")
    if stages * microbatches * (chunks or 1) > LARGEST:
        raise InputError(f"{stages} stages x {microbatches} microbatches is more than {LARGEST:,}: give fewer of either")
    if chunks is not None:
        return SCHEDULES[name](stages, microbatches, chunks)
    return SCHEDULES[name](stages, microbatches)

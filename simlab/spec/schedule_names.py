"""The names of the schedules and what a plan has to know of each. `simlab.schedules` makes their
programs."""

NAMES = (
    "gpipe",
    "1f1b",
    "eager-1f1b",
    "interleaved-1f1b",
    "looped-bfs",
    "zb-h1",
    "zb-h2",
    "zb-auto",
    "zb-v",
    "v-half",
    "v-min",
    "dualpipe",
    "dualpipe-v",
)
ALIASES = {"afab": "gpipe"}
CHUNKED = ("interleaved-1f1b", "looped-bfs")
"""Schedules with a choice of how many stages each rank holds: 2 unless asked for otherwise."""
PAIRED = ("interleaved-1f1b", "eager-1f1b", "dualpipe", "dualpipe-v")
"""Schedules whose ranks have a forward and a backward of different microbatches at hand in each turn, so
that the two can go side by side without a wait. 1F1B has them on one rank only."""
V_SHAPED = ("zb-v", "v-half", "v-min", "dualpipe-v")
"""Schedules with two stages on each rank, down the ranks and up again."""
TWO_WAY = ("dualpipe",)
"""Schedules in which half of the microbatches go the other way, so that each stage is on two ranks, at the
same distance from either end of the pipeline."""
ENDS_TOGETHER = (*V_SHAPED, *TWO_WAY)
"""Schedules whose first rank has the first stage and the last one."""

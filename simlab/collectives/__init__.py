"""Collectives as rounds of transfers: pure functions (ranks, bytes) → [round], each round a list of
`Transfer`s.

A rank begins round k when it has received what round k - 1 sends it and its own sends of that round
are done: nobody else has to wait. `simlab.engine.network` executes the rounds on links, shared or
not; `closed_forms` says what they take on links of their own.
"""

from simlab.collectives.all_reduce import (
    ALL_REDUCE,
    all_reduce_rounds,
    halving_doubling_all_reduce,
    hierarchical_all_reduce,
    ring_all_reduce,
    star_all_reduce,
    tree_all_reduce,
)
from simlab.collectives.closed_forms import busbw_factor, closed_form_s
from simlab.collectives.data_parallel import Call, most_sent_by_calls, zero_calls
from simlab.collectives.others import all_to_all, broadcast, ring_all_gather, ring_reduce_scatter
from simlab.collectives.replay import RoundState, most_sent_bytes, replay
from simlab.collectives.transfer import Transfer

__all__ = [
    "ALL_REDUCE",
    "Call",
    "RoundState",
    "Transfer",
    "all_reduce_rounds",
    "all_to_all",
    "broadcast",
    "busbw_factor",
    "closed_form_s",
    "halving_doubling_all_reduce",
    "hierarchical_all_reduce",
    "most_sent_by_calls",
    "most_sent_bytes",
    "replay",
    "ring_all_gather",
    "ring_all_reduce",
    "ring_reduce_scatter",
    "star_all_reduce",
    "tree_all_reduce",
    "zero_calls",
]

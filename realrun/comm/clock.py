"""One clock for all ranks: each rank's offset from rank 0's clock is measured, not assumed."""

import time

import torch
import torch.distributed as dist

now = time.perf_counter
"""This rank's clock, s."""
ROUNDS = 30
"""How often rank 0 is asked for its time."""


def offset_from_rank_0(rank: int, world: int) -> tuple[float, float]:
    """(seconds to add to this rank's clock to get rank 0's, the uncertainty of that). All ranks
    call it together.

    Cristian's method, as NTP uses it: rank 0 is asked for its time `ROUNDS` times. In the exchange
    with the shortest round trip, its answer t belongs to the middle of that trip. So the offset is
    t - (sent + received) / 2, and it is wrong by at most half of the round trip. Leaves out: drift
    between the clocks after the measurement.
    """
    best = (float("inf"), 0.0)
    stamp = torch.zeros(1, dtype=torch.float64)
    for peer in range(1, world):
        for _ in range(ROUNDS):
            if rank == 0:
                dist.recv(stamp, peer)
                stamp[0] = now()
                dist.send(stamp, peer)
            elif rank == peer:
                sent_s = now()
                dist.send(stamp, 0)
                dist.recv(stamp, 0)
                received_s = now()
                best = min(best, (received_s - sent_s, stamp.item() - (sent_s + received_s) / 2))
    return (0.0, 0.0) if rank == 0 else (best[1], best[0] / 2)

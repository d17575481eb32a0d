"""Experiments on messages, collectives and groups of ranks."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import combinations, product
from typing import Any

import torch
import torch.distributed as dist

from realrun.comm.channels import Channels, Pace
from realrun.comm.mesh import Mesh
from realrun.comm.rounds import all_reduce, run_rounds
from realrun.measure.links import collective_s, message_s
from simlab.collectives import Transfer, all_reduce_rounds

BUDGET_S = 0.2
"""Seconds for a collective that is timed over and over."""


@contextmanager
def links(mesh: Mesh, pace: Pace | None = None) -> Iterator[Channels]:
    """`Channels` between all ranks, connected. pace: (seconds that a message takes before its first
    byte, bytes per second) or None."""
    groups = {direction: dist.new_group() for direction in (1, -1)}
    channels = Channels(mesh.rank, torch.device("cpu"), groups, pace=pace)
    channels.connect(list(combinations(range(dist.get_world_size()), 2)))
    yield channels
    for group in groups.values():
        dist.destroy_process_group(group)


def messages(
    mesh: Mesh,
    sizes: Sequence[int],
    pace: Pace | None = None,
    at_once: bool = False,
    tries: int = 5,
) -> list[float]:
    """The seconds of a message of each of `sizes` bytes from rank 0 to rank 1, or with at_once of
    one from each rank to the next."""
    taken: list[float] = []
    ring = [[Transfer(r, (r + 1) % mesh["dp"].size, 0, (0,)) for r in mesh["dp"].ranks]]
    with links(mesh, pace) as channels:
        for size in sizes:
            run = partial(run_rounds, ring, {0: torch.zeros(size // 4)}, channels)
            taken.append(
                collective_s(run, channels.device, BUDGET_S, tries)
                if at_once
                else message_s(channels, size, 4 * tries)
            )
    return taken


def all_reduces(
    mesh: Mesh,
    sizes: Sequence[int],
    algorithms: Sequence[str],
    pace: Pace | None = None,
    tries: int = 5,
) -> dict[str, Any]:
    """{"seconds": {algorithm: [seconds of an all-reduce of each of `sizes` bytes]}, "wrong": the
    largest relative difference of a result from gloo's}. The algorithm "gloo" is torch's own."""
    taken: dict[str, list[float]] = {name: [] for name in algorithms}
    wrong = 0.0
    with links(mesh, pace) as channels:
        for name, size in product(algorithms, sizes):
            rounds = None if name == "gloo" else all_reduce_rounds(name, mesh["dp"].ranks, size)
            run: Callable[..., Any] = dist.all_reduce
            if rounds is not None:
                run = partial(all_reduce, rounds=rounds, channels=channels)
            own = torch.randn(size // 4, generator=torch.Generator().manual_seed(mesh.rank))
            right = mesh["dp"].all_reduce(own.clone()).wait()
            run(own)
            wrong = max(wrong, ((own - right).norm() / right.norm()).item())
            taken[name].append(
                collective_s(partial(run, own.zero_()), channels.device, BUDGET_S, tries)
            )
    return {"seconds": taken, "wrong": wrong}


def reached(mesh: Mesh, groups: Mapping[str, Sequence[Sequence[int]]]) -> dict[str, list[int]]:
    """{dimension: the ranks that this rank's group really reaches}. Each rank puts a 1 at its own
    place, and the sum tells who took part."""
    found = {}
    for dimension, its in groups.items():
        for ranks in its:
            made = dist.new_group(ranks)  # by all ranks, also those that are not in it
            if mesh.rank in ranks:
                places = torch.zeros(dist.get_world_size())
                places[mesh.rank] = 1
                dist.all_reduce(places, group=made)
                found[dimension] = places.nonzero().flatten().tolist()
    return found

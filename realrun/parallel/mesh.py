"""Ranks as a cube: which ranks are a plan's data-, context-, tensor- and pipeline-parallel groups, in any order of the dimensions.

`Layout` is arithmetic on ranks and needs no processes; `Mesh` makes the process groups; `check_groups` asks them who they are.
"""

from itertools import product

import torch
import torch.distributed as dist

from realrun.parallel.collectives import RoundsGroup
from realrun.parallel.group import Group
from simlab.errors import InputError, SimlabError

DIMENSIONS = ("tp", "cp", "dp", "pp")
"""The order of `simlab.Plan.ranks` (Megatron-LM's): neighbouring ranks are a tensor-parallel group, pipeline stages are furthest apart."""


class GroupError(SimlabError):
    """A process group has other members than its plan says."""


class Layout:
    """Where each rank of `plan` stands. order: its dimensions, that of neighbouring ranks first."""

    def __init__(self, plan, order=DIMENSIONS):
        self.order = tuple(order.split(",") if isinstance(order, str) else order)
        if sorted(self.order) != sorted(DIMENSIONS):
            raise InputError(f"order {','.join(self.order)!r}: give each of {', '.join(DIMENSIONS)} once, that of neighbouring ranks first")
        self.sizes = {dimension: getattr(plan, dimension) for dimension in self.order}
        self.world = plan.gpus

    def coordinates(self, rank):
        """{dimension: index} of `rank`."""
        if not 0 <= rank < self.world:
            raise InputError(f"rank {rank}: there are ranks 0 to {self.world - 1}")
        where = {}
        for dimension, size in self.sizes.items():
            rank, where[dimension] = divmod(rank, size)
        return where

    def rank(self, **where):
        """The rank at the coordinates `where`; those left out are 0."""
        rank, stride = 0, 1
        for dimension, size in self.sizes.items():
            rank += where.get(dimension, 0) * stride
            stride *= size
        return rank

    def groups(self, *dimensions):
        """[[ranks that differ in `dimensions` only]], in rank order; several dimensions ("dp", "cp") are one group."""
        groups = {}
        for rank in range(self.world):
            where = self.coordinates(rank)
            groups.setdefault(tuple(where[d] for d in self.order if d not in dimensions), []).append(rank)
        return list(groups.values())

    def cube(self):
        """The ranks as text: the first dimension of more than one rank across, the second down, a slab for each of the others'."""
        across, down, *others = [*(d for d in self.order if self.sizes[d] > 1), *(d for d in self.order if self.sizes[d] == 1)]
        sizes = ", ".join(f"{d} {size}" for d, size in self.sizes.items())
        lines = [f"{self.world} ranks: {sizes} ({self.order[0]} varies fastest)"]
        for where in product(*(range(self.sizes[d]) for d in reversed(others))):
            slab = dict(zip(reversed(others), where))
            title = ", ".join(f"{d} {index}" for d, index in slab.items() if self.sizes[d] > 1)
            lines += ["", *([title] if title else []), *self._slab(across, down, slab)]
        return "\n".join(lines)

    def _slab(self, across, down, slab):
        width = max(len(f"{across} {self.sizes[across] - 1}"), len(str(self.world - 1)))
        side = [f"{down} {row}" if self.sizes[down] > 1 else "" for row in range(self.sizes[down])]
        heads = [f"{across} {column}".rjust(width) for column in range(self.sizes[across])]
        lines = ["  ".join(["".ljust(len(side[-1])), *heads]).rstrip()]
        for row, name in enumerate(side):
            ranks = [self.rank(**slab, **{across: column, down: row}) for column in range(self.sizes[across])]
            lines.append("  ".join([name.ljust(len(side[-1])), *(str(rank).rjust(width) for rank in ranks)]))
        return lines


class Mesh:
    """The process groups of a `Layout`, made by all ranks together: `mesh["tp"]` is this rank's `Group`.

    There is a group for each dimension and one for "dp-cp", over which gradients are reduced. All write to the same `traffic`.

    channels: {dimension: `Channels`}: only these groups are made, their collectives rounds of messages (`RoundsGroup`); None: torch's own.
    """

    def __init__(self, layout, rank, *, backend=None, channels=None):
        self.layout, self.rank, self.traffic = layout, rank, []
        if dist.get_world_size() != layout.world:
            raise InputError(f"the plan takes {layout.world} ranks, but there are {dist.get_world_size()} processes")
        self.groups = {}
        for name in (*DIMENSIONS, "dp-cp") if channels is None else channels:
            for ranks in layout.groups(*name.split("-")):
                process_group = dist.new_group(ranks, backend=backend) if len(ranks) > 1 and channels is None else None
                if rank in ranks:
                    self.groups[name] = (
                        Group(name, ranks, rank, process_group, self.traffic)
                        if channels is None
                        else RoundsGroup(name, ranks, rank, channels[name], self.traffic)
                    )

    def __getitem__(self, name):
        return self.groups[name]

    def close(self):
        """End the groups; by all ranks together."""
        for group in self.groups.values():
            group.close()
        self.groups = {}


def device_mesh(layout, device_type="cpu", backend=None):
    """torch's `DeviceMesh` of the same groups, for its own modules (parallelize_module, FSDP2); its outermost dimension first.

    backend: of its groups; None: the default process group's."""
    from torch.distributed.device_mesh import DeviceMesh

    names = layout.order[::-1]
    ranks = torch.arange(layout.world).view([layout.sizes[name] for name in names])
    options = {} if backend is None else {"backend_override": ((backend, None),) * len(names)}
    return DeviceMesh(device_type, ranks, mesh_dim_names=names, **options)


def check_groups(groups, rank, world):
    """`GroupError`, the same on all ranks, that names each of `groups`, {name: `Group`}, that is not who its `ranks` says.

    Every group all-reduces a vector with a 1 at each member's rank, so that the sum tells who took part. Called by all ranks, with
    groups of the same names in the same order. A member that never comes makes the all-reduce wait until its process group's timeout.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    seen, claimed = (torch.zeros(len(groups), world, world, dtype=torch.int64, device=device) for _ in range(2))
    for number, group in enumerate(groups.values()):
        seen[number, rank, rank] = 1
        claimed[number, rank, group.ranks] = 1
        if group.size > 1:
            group.all_reduce(seen[number, rank]).wait()
    dist.all_reduce(seen)
    dist.all_reduce(claimed)
    wrong = {}
    for number, name in enumerate(groups):
        for r in range(world):
            if not torch.equal(seen[number, r], claimed[number, r]):
                members, others = (_members(claimed[number, r]), _members(seen[number, r]))
                wrong.setdefault(f"the {name} group of ranks {members} reaches ranks {others}", []).append(r)
    if wrong:
        raise GroupError("; ".join(f"{text} (on rank {', '.join(map(str, ranks))})" for text, ranks in wrong.items()))


def _members(counts):
    """'0, 1' for the ranks with a count; a rank that is counted twice is there twice."""
    return ", ".join(str(rank) for rank, count in enumerate(counts.tolist()) for _ in range(count))

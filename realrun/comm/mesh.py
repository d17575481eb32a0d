"""The process groups of a plan.

`Mesh` makes them as the plan's `simlab.Layout` says; `device_mesh` makes torch's own form of them;
`check_groups` asks the processes who takes part in each.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from realrun.comm.channels import Channels
from realrun.comm.group import Group, Sent
from realrun.comm.rounds_group import RoundsGroup
from simlab.errors import InputError, SimlabError
from simlab.spec.layout import Layout

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

MESH_GROUPS = ("tp", "cp", "dp", "pp")
"""The groups of a `simlab.Layout` that every `Mesh` makes."""
EXPERT_GROUPS = ("ep", "edp")
"""Those that it makes besides, where ranks share experts."""


def groups_of(layout: Layout) -> tuple[str, ...]:
    """The groups that a `Mesh` of `layout` makes."""
    return MESH_GROUPS + EXPERT_GROUPS if layout.ep > 1 else MESH_GROUPS


class GroupError(SimlabError):
    """A process group has other members than its plan says."""


class Mesh:
    """The process groups of a `Layout`: `mesh["tp"]` is this rank's `Group` of the dimension tp.
    All ranks make them together. All groups write to the same `traffic`.

    Gradients are reduced over `mesh["dp"]`, whose ranks hold the same part of the model. Where
    ranks share experts, `mesh["ep"]` are those that do, and `mesh["edp"]` those that hold the same
    ones and reduce their gradients.

    backend: of torch's groups; None: the default's. channels: {dimension: `Channels`}: only these
    groups are made, and their collectives are rounds of messages (`RoundsGroup`); None: torch's own
    collectives. `InputError` where the number of processes is not the layout's.
    """

    def __init__(
        self,
        layout: Layout,
        rank: int,
        *,
        backend: str | None = None,
        channels: Mapping[str, Channels] | None = None,
    ) -> None:
        self.layout, self.rank = layout, rank
        self.traffic: list[Sent] = []
        if dist.get_world_size() != layout.world_size:
            raise InputError(
                f"the plan takes {layout.world_size} ranks, but there are {dist.get_world_size()} processes"
            )
        self.groups: dict[str, Group] = {}
        for name in groups_of(layout) if channels is None else channels:
            for ranks in map(list, layout.groups(name)):
                process_group = (
                    dist.new_group(ranks, backend=backend)
                    if len(ranks) > 1 and channels is None
                    else None
                )
                if rank in ranks:
                    self.groups[name] = (
                        Group(name, ranks, rank, process_group, self.traffic)
                        if channels is None
                        else RoundsGroup(name, ranks, rank, channels[name], self.traffic)
                    )

    @classmethod
    def of_one(cls) -> "Mesh":
        """The groups of this process alone, which other processes need not make with it."""
        mesh = cls.__new__(cls)
        mesh.layout, mesh.rank, mesh.traffic = Layout(), 0, []
        mesh.groups = {name: Group(name, [0], 0, None, mesh.traffic) for name in MESH_GROUPS}
        return mesh

    def __getitem__(self, name: str) -> Group:
        return self.groups[name]

    def get(self, name: str) -> Group | None:
        """The group, or None where this layout has none of that name: experts that are not shared
        out have neither "ep" nor "edp"."""
        return self.groups.get(name)

    def close(self) -> None:
        """End the groups. All ranks call it together."""
        for group in self.groups.values():
            group.close()
        self.groups = {}


def device_mesh(
    layout: Layout, device_type: str = "cpu", backend: str | None = None
) -> "DeviceMesh":
    """torch's `DeviceMesh` of the same groups, for its own modules (parallelize_module, FSDP2). Its
    outermost dimension comes first.

    backend: of its groups; None: the default process group's.
    """
    from torch.distributed.device_mesh import DeviceMesh

    names = layout.order[::-1]
    ranks = torch.arange(layout.world_size).view([layout.sizes[name] for name in names])
    override = None if backend is None else ((backend, None),) * len(names)
    return DeviceMesh(device_type, ranks, mesh_dim_names=names, backend_override=override)


def check_groups(groups: Mapping[str, Group], rank: int, world: int) -> None:
    """Raise a `GroupError`, the same on all ranks, that names each of `groups`, {name: `Group`},
    that reaches other ranks than its `ranks` says.

    Every group all-reduces a vector with a 1 at each member's rank, so that the sum tells who took
    part. All ranks call it, with groups of the same names in the same order. A member that never
    comes makes the all-reduce wait until its process group's timeout.
    """
    device = "cuda" if dist.get_backend() == "nccl" else "cpu"
    seen, claimed = (
        torch.zeros(len(groups), world, world, dtype=torch.int64, device=device) for _ in range(2)
    )
    for number, group in enumerate(groups.values()):
        seen[number, rank, rank] = 1
        claimed[number, rank, group.ranks] = 1
        if group.size > 1:
            group.all_reduce(seen[number, rank]).wait()
    dist.all_reduce(seen)
    dist.all_reduce(claimed)
    wrong: dict[str, list[int]] = {}
    for number, name in enumerate(groups):
        for r in range(world):
            if not torch.equal(seen[number, r], claimed[number, r]):
                members, others = (_members(claimed[number, r]), _members(seen[number, r]))
                wrong.setdefault(
                    f"the {name} group of ranks {members} reaches ranks {others}", []
                ).append(r)
    if wrong:
        raise GroupError(
            "; ".join(
                f"{text} (on rank {', '.join(map(str, ranks))})" for text, ranks in wrong.items()
            )
        )


def _members(counts: Tensor) -> str:
    """'0, 1' for the ranks that have a count. A rank that is counted twice is written twice."""
    return ", ".join(str(rank) for rank, count in enumerate(counts.tolist()) for _ in range(count))

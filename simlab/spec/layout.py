"""Which rank stands where in a plan: ranks, their coordinates and the groups that they form.

This is the only arithmetic that maps ranks to groups. The simulator prices the groups, the
executor makes a process group of each, and the pictures draw them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple, Protocol

from simlab.errors import (
    InputError,
    did_you_mean,
    near,
    require_index,
    require_whole,
    shortened,
    whole,
)

DIMENSIONS = ("tp", "cp", "dp", "pp")
"""The dimensions in the default order, that of Megatron-LM: tensor-parallel ranks are neighbours,
pipeline stages are furthest apart."""

GROUPS = {
    "tp": ("tp",),
    "cp": ("cp",),
    "dp": ("dp", "cp"),
    "pp": ("pp",),
    "shard": ("dp", "cp"),
    "replicas": ("dp", "cp"),
    "ep": ("dp", "cp"),
    "edp": ("dp", "cp"),
}
"""{group: the dimensions in which its members differ}. The ranks of a 'dp' group hold the same part
of the model and sum its gradients, so they differ in their context-parallel coordinate, too. ZeRO
spreads its states over a 'shard' group, which is a part of the 'dp' group under `Plan.hybrid`. The
members of a 'replicas' group hold the same shard. An 'ep' group, a part of the 'dp' group, shares
the experts of each layer, and the members of an 'edp' group hold the same ones. Where experts are not cut
(`Plan.etp`), the members of both differ in their tensor-parallel coordinate, too. Those of `MIRRORED` may also
be at two places of a pipeline."""
MIRRORED = ("dp", "shard", "edp")
"""The groups that reach to the other rank of a pipeline that holds the same stages, with `Layout.copies`."""


class Coordinates(NamedTuple):
    """The place of a rank in each dimension, counted from 0."""

    dp: int
    cp: int
    pp: int
    tp: int


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The ranks of a plan as a grid with one axis per dimension.

    Ranks are numbered along the axes in the order `order`: the first dimension varies fastest, so
    ranks that differ in it only are neighbours and share a node first.
    """

    dp: int = 1
    tp: int = 1
    pp: int = 1
    cp: int = 1
    order: tuple[str, ...] = DIMENSIONS
    shards: int | None = None
    """The number of ranks of a 'shard' group. None stands for all of the 'dp' group."""
    ep: int = 1
    """The number of ranks of an 'ep' group."""
    etp: int | None = None
    """The number of tensor-parallel ranks that cut each expert: all of them (None), or 1."""
    copies: int = 1
    """The number of ranks of a pipeline that hold each stage. With 2 they are the r-th and the r-th from
    the end (`Plan.copies`)."""

    def __post_init__(self) -> None:
        for name in DIMENSIONS:
            require_whole(name, getattr(self, name))
        check_order(self.order)
        if self.shards is not None:
            require_whole("shards", self.shards)
            if self.dp * self.cp % self.shards:
                raise InputError(
                    f"shards = {self.shards} does not divide dp x cp = {self.dp * self.cp}; "
                    f"{near(self.shards, self.dp * self.cp)}"
                )
        require_whole("ep", self.ep)
        check_expert_ranks(self)
        if self.copies not in (1, 2) or (self.copies == 2 and (self.pp % 2 or self.shards)):
            raise InputError(
                f"copies = {shortened(self.copies)} with pp = {self.pp} and shards = {self.shards}: give 1, or 2 "
                "with an even pp and without shards"
            )

    # ranks and coordinates
    # ------------------------------------------------------------------------------------------

    @cached_property
    def world_size(self) -> int:
        """The number of ranks."""
        return self.dp * self.tp * self.pp * self.cp

    @cached_property
    def sizes(self) -> dict[str, int]:
        """{dimension: its degree}, in `order`."""
        return {name: getattr(self, name) for name in self.order}

    @cached_property
    def strides(self) -> dict[str, int]:
        """{dimension: how far apart neighbours in it are numbered}, in `order`."""
        strides, stride = {}, 1
        for name, size in self.sizes.items():
            strides[name] = stride
            stride *= size
        return strides

    def coordinates(self, rank: int) -> Coordinates:
        """The coordinates of `rank`. Raises `InputError` if there is no such rank."""
        require_index("rank", rank, self.world_size)
        return Coordinates(
            *(rank // self.strides[name] % self.sizes[name] for name in Coordinates._fields)
        )

    def all_coordinates(self) -> list[Coordinates]:
        """[the coordinates of each rank]"""
        return [self.coordinates(rank) for rank in range(self.world_size)]

    def rank(self, *, dp: int = 0, cp: int = 0, pp: int = 0, tp: int = 0) -> int:
        """The rank at these coordinates. Raises `InputError` where one is outside the grid."""
        given = Coordinates(dp, cp, pp, tp)._asdict()
        for name, at in given.items():
            if not whole(at, 0) or at >= self.sizes[name]:
                raise InputError(
                    f"{name} {shortened(at)}: there are {name} 0 to {self.sizes[name] - 1}"
                )
        return sum(at * self.strides[name] for name, at in given.items())

    def peer(self, rank: int, pp: int) -> int:
        """The rank that differs from `rank` in its pipeline coordinate only, which is `pp`: the one
        that it exchanges activations and their gradients with."""
        return self.rank(**self.coordinates(rank)._replace(pp=pp)._asdict())

    def same_stages(self, pp: int) -> tuple[int, ...]:
        """The places in the pipeline, in ascending order, whose ranks hold the stages of the place `pp`:
        this one, and with `copies` the one as far from the end as this one is from the begin."""
        return (pp,) if self.copies == 1 else tuple(sorted((pp, self.pp - 1 - pp)))

    # groups
    # ------------------------------------------------------------------------------------------

    def group(self, name: str, rank: int) -> tuple[int, ...]:
        """The members of the group `name` that `rank` is in, itself included, in ascending order.
        name: a key of `GROUPS`."""
        its = self._group_in_place(name, rank)
        if self.copies == 2 and name in MIRRORED:
            return self._at_same_stages(its, self.coordinates(rank).pp)
        return its

    def _at_same_stages(self, ranks: tuple[int, ...], pp: int) -> tuple[int, ...]:
        """These ranks at the place `pp`, and those that hold the same stages at another one."""
        apart = [(place - pp) * self.strides["pp"] for place in self.same_stages(pp)]
        return tuple(sorted(rank + each for rank in ranks for each in apart))

    def _group_in_place(self, name: str, rank: int) -> tuple[int, ...]:
        """Its members at the place of `rank` in the pipeline; of a 'pp' group all of them."""
        first = rank - sum(
            at * self.strides[dimension]
            for dimension, at in self.coordinates(rank)._asdict().items()
            if dimension in self._dimensions(name)
        )
        part = next(part for part in self._parts[name] if rank - first in part)
        return tuple(first + offset for offset in part)

    def groups(self, name: str) -> list[tuple[int, ...]]:
        """All groups `name`, in the order of their first ranks."""
        others = [d for d in self.order if d not in self._dimensions(name)]
        found = sorted(
            tuple(first + offset for offset in part)
            for first in self._reached(others)
            for part in self._parts[name]
        )
        if self.copies == 1 or name not in MIRRORED:
            return found
        places = [self.coordinates(its[0]).pp for its in found]
        return sorted(
            self._at_same_stages(its, pp)
            for its, pp in zip(found, places)
            if pp == self.same_stages(pp)[0]
        )

    def offsets(self, name: str) -> tuple[int, ...]:
        """How far the members of the group `name` of rank 0 are numbered from it. Others' are as far from
        their first rank, but for those that reach to another place in the pipeline (`copies`), of which
        none reaches further."""
        return self.group(name, 0)

    def in_nodes(self, name: str, gpus_per_node: int) -> bool:
        """Whether no group `name` reaches from one node of `gpus_per_node` ranks into another.

        The dimensions of a group and those that vary faster make up blocks of ranks. Between any
        two neighbours in a block some group reaches from one side to the other, so a node must end
        where a block does.
        """
        require_whole("gpus_per_node", gpus_per_node)
        dimensions = self._dimensions(name)
        if len(self._parts[name]) > 1 or (self.copies == 2 and name in MIRRORED):
            groups = self.groups(name)
            return all(its[0] // gpus_per_node == its[-1] // gpus_per_node for its in groups)
        wide = (d for d in dimensions if self.sizes[d] > 1)
        block = max((self.strides[d] * self.sizes[d] for d in wide), default=1)
        return self.world_size <= gpus_per_node or gpus_per_node % block == 0

    @property
    def spreads_experts(self) -> bool:
        """See `spreads_experts`."""
        return spreads_experts(self)

    @cached_property
    def _parts(self) -> dict[str, list[tuple[int, ...]]]:
        """{group: [offsets of the members of each, from the first of the ranks that differ in its
        dimensions only]}"""
        parts = {name: [self._reached(self._dimensions(name))] for name in GROUPS}
        whole = parts["dp"][0]
        size = self.shards or len(whole)
        parts["shard"] = [whole[start : start + size] for start in range(0, len(whole), size)]
        parts["replicas"] = [whole[start::size] for start in range(size)]
        experts = parts["ep"][0]
        ends = range(0, len(experts), self.ep)
        parts["ep"] = [experts[start : start + self.ep] for start in ends]
        parts["edp"] = [experts[start :: self.ep] for start in range(self.ep)]
        return parts

    def _reached(self, dimensions: Iterable[str]) -> tuple[int, ...]:
        """The ranks that differ from rank 0 in `dimensions` only."""
        steps = (range(0, self.sizes[d] * self.strides[d], self.strides[d]) for d in dimensions)
        return tuple(sorted(sum(at) for at in product(*steps)))

    def _dimensions(self, name: str) -> tuple[str, ...]:
        if not isinstance(name, str) or name not in GROUPS:
            hint = did_you_mean(name, GROUPS) or ";"
            raise InputError(f"group {shortened(name)}{hint} there is {', '.join(GROUPS)}")
        with_tp = name in ("ep", "edp") and self.spreads_experts
        return ("tp", *GROUPS[name]) if with_tp else GROUPS[name]

    # as text
    # ------------------------------------------------------------------------------------------

    def cube(self) -> str:
        """The ranks as text: the first dimension of more than one rank across, the second down, a
        slab for each of the others'."""
        across, down, *others = [
            *(d for d in self.order if self.sizes[d] > 1),
            *(d for d in self.order if self.sizes[d] == 1),
        ]
        sizes = ", ".join(f"{d} {size}" for d, size in self.sizes.items())
        lines = [f"{self.world_size} ranks: {sizes} ({self.order[0]} varies fastest)"]
        for where in product(*(range(self.sizes[d]) for d in reversed(others))):
            slab = dict(zip(reversed(others), where))
            title = ", ".join(f"{d} {index}" for d, index in slab.items() if self.sizes[d] > 1)
            lines += ["", *([title] if title else []), *self._slab(across, down, slab)]
        return "\n".join(lines)

    def _slab(self, across: str, down: str, slab: dict[str, int]) -> list[str]:
        width = max(len(f"{across} {self.sizes[across] - 1}"), len(str(self.world_size - 1)))
        side = [f"{down} {row}" if self.sizes[down] > 1 else "" for row in range(self.sizes[down])]
        heads = [f"{across} {column}".rjust(width) for column in range(self.sizes[across])]
        lines = ["  ".join(["".ljust(len(side[-1])), *heads]).rstrip()]
        for row, name in enumerate(side):
            ranks = [
                self.rank(**slab, **{across: column, down: row})
                for column in range(self.sizes[across])
            ]
            lines.append(
                "  ".join([name.ljust(len(side[-1])), *(str(rank).rjust(width) for rank in ranks)])
            )
        return lines


class Degrees(Protocol):
    """The degrees of a `Layout` or of a `Plan` that decide who shares experts."""

    @property
    def dp(self) -> int: ...
    @property
    def tp(self) -> int: ...
    @property
    def cp(self) -> int: ...
    @property
    def ep(self) -> int: ...
    @property
    def etp(self) -> int | None: ...


def spreads_experts(degrees: Degrees) -> bool:
    """Whether tensor-parallel ranks have experts of their own, and do not cut each of them."""
    return degrees.etp == 1 < degrees.tp


def check_expert_ranks(degrees: Degrees) -> None:
    """Raise `InputError` unless the experts of a layer can be shared by so many ranks."""
    ep, tp = degrees.ep, degrees.tp
    ranks = degrees.dp * degrees.cp
    if degrees.etp not in (None, 1, tp):
        raise InputError(
            f"etp = {shortened(degrees.etp)} with tp = {tp}: each expert is cut by all tensor-parallel ranks or by "
            f"none, so give etp = {tp}{' or 1' if tp > 1 else ', or another tp'}"
        )
    if not spreads_experts(degrees):
        if ranks % ep:
            raise InputError(f"ep = {ep} does not divide dp x cp = {ranks}; {near(ep, ranks)}")
        return
    if tp * ranks % ep:
        raise InputError(
            f"ep = {ep} with etp = 1 does not divide tp x dp x cp = {tp * ranks}; "
            f"{tp} does, and so may other multiples of tp"
        )
    if ep % tp:
        raise InputError(
            f"ep = {ep} with etp = 1 is no multiple of tp = {tp}, so tensor-parallel ranks would hold the same "
            f"experts; give a multiple, or etp = {tp}"
        )


def check_order(order: tuple[str, ...]) -> None:
    """Raise `InputError` unless `order` names each dimension once."""
    if sorted(order) != sorted(DIMENSIONS):
        raise InputError(
            f"order = {shortened('-'.join(order))}: give {', '.join(DIMENSIONS[:-1])} and {DIMENSIONS[-1]} "
            "once each, joined by '-', the fastest first"
        )

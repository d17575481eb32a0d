"""The gradients of a rank: what of them makes the global norm, and how far they are from the right
ones."""

from collections.abc import Container, Mapping
from itertools import chain

import torch

from realrun.comm.mesh import Mesh
from realrun.parallel.clipping import Parts
from realrun.parallel.stage import ParallelStage, Unit
from realrun.parallel.units import StageUnits


def norm_parts(
    units: StageUnits,
    stages: Mapping[int, ParallelStage],
    mesh: Mesh,
    zero: int,
    counted_elsewhere: Container[int] = (),
) -> tuple[Parts, list[torch.Tensor | None]]:
    """([(gradients, the groups whose ranks have different ones)], the other gradients), as
    `clipping.clip` takes them: first the gradients that tensor-parallel ranks have parts of, then
    those that they all have whole, then those of experts that ranks share. The others are those of
    stages that are `counted_elsewhere`, on another rank that has a copy of them."""
    spread = [mesh["dp"]] if zero else []
    shared = {
        id(parameter)
        for stage in stages.values()
        for module in stage.units.values()
        for parameter in module.own_experts()
    }
    replicated = {
        id(parameter)
        for stage in stages.values()
        for module in stage.units.values()
        for parameter in module.whole_on_tp()
    }
    cut: list[torch.Tensor | None] = []
    whole: list[torch.Tensor | None] = []
    experts: list[torch.Tensor | None] = []
    copies: list[torch.Tensor | None] = []
    for stage, its in units.of_stage.items():
        for parameter, _, gradient in (
            piece for parts in its.values() for part in parts for piece in part.pieces()
        ):
            counted = whole if id(parameter) in replicated else cut
            # sharded or not, all ranks of the dp group have other parts of experts under ZeRO
            if not zero and mesh.get("ep") and id(parameter) in shared:
                counted = experts
            (copies if stage in counted_elsewhere else counted).append(gradient)
    parts = [(cut, [mesh["tp"], mesh["pp"], *spread]), (whole, [mesh["pp"], *spread])]
    if not zero and (ep := mesh.get("ep")):
        parts.append((experts, [mesh["pp"], ep]))  # if it has tp ranks, each with its own experts
    return parts, copies


def units_error(units: StageUnits, stage: int, wanted: Mapping[str, Unit]) -> float:
    """The largest relative error of the gradients of the units of `stage`: ‖gradient - right‖ /
    ‖right‖. It is infinite where a gradient is missing or not finite.

    wanted: {name: module} of the same units, with the right gradients in place of weights.
    """
    worst = 0.0
    for name, parts in units.of_stage[stage].items():
        theirs = units.parts_of(wanted[name], name)
        ours = chain.from_iterable(part.pieces() for part in parts)
        right_ones = chain.from_iterable(part.pieces() for part in theirs)
        for (_, _, gradient), (_, right, _) in zip(ours, right_ones, strict=True):
            if gradient is None or not gradient.isfinite().all():
                return float("inf")
            norm = right.norm().item()
            difference = (gradient - right).norm().item()
            worst = max(worst, difference / norm if norm else difference)
    return worst

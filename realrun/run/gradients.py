"""The gradients of a rank: what of them makes the global norm, and how far they are from the right
ones."""

from collections.abc import Container, Mapping

import torch

from realrun.comm.mesh import Mesh
from realrun.parallel.clipping import Parts
from realrun.parallel.stage import ParallelStage, Unit
from realrun.parallel.units import Parameters, StageUnits
from simlab.spec.plan import Plan


def norm_parts(
    units: StageUnits,
    stages: Mapping[int, ParallelStage],
    mesh: Mesh,
    zero: int,
    counted_elsewhere: Container[int] = (),
) -> tuple[Parts, list[torch.Tensor | None]]:
    """([(gradients, the groups whose ranks have different ones)], the other gradients), as
    `clipping.clip` takes them: first the gradients that tensor-parallel ranks have parts of, then
    those that they all have whole. The others are those of stages that are `counted_elsewhere`, on
    another rank that has a copy of them."""
    spread = [mesh["dp"]] if zero else []
    replicated = {
        id(parameter)
        for stage in stages.values()
        for module in stage.units.values()
        for parameter in module.whole_on_tp()
    }
    cut: list[torch.Tensor | None] = []
    whole: list[torch.Tensor | None] = []
    copies: list[torch.Tensor | None] = []
    for stage, its in units.of_stage.items():
        for parameter, _, gradient in (piece for unit in its.values() for piece in unit.pieces()):
            counted = whole if id(parameter) in replicated else cut
            (copies if stage in counted_elsewhere else counted).append(gradient)
    return [(cut, [mesh["tp"], mesh["pp"], *spread]), (whole, [mesh["pp"], *spread])], copies


def units_error(
    units: Mapping[str, Parameters],
    wanted: Mapping[str, Unit],
    plan: Plan,
    gradient_type: torch.dtype,
) -> float:
    """The largest relative error of the gradients of a stage's `units`: ‖gradient - right‖ /
    ‖right‖. It is infinite where a gradient is missing or not finite.

    wanted: {name: module} of the same units, with the right gradients in place of weights.
    """
    worst = 0.0
    for name, unit in units.items():
        theirs = StageUnits.unit_of(wanted[name], name, unit.group, plan, gradient_type)
        for (_, _, gradient), (_, right, _) in zip(unit.pieces(), theirs.pieces()):
            if gradient is None or not gradient.isfinite().all():
                return float("inf")
            norm = right.norm().item()
            difference = (gradient - right).norm().item()
            worst = max(worst, difference / norm if norm else difference)
    return worst

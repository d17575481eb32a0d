"""Faults that are put into a plan's run on purpose, to see that each is found and named: what
breaks trainings, on one rank, at one step.

hang       the rank stops in an op: everybody waits, nobody fails
skip       the rank leaves out a communication: a mismatched collective
resize     the rank sends half of what the others expect: another one
nan        the rank's activations become NaN
leak       the rank keeps a graph that should have gone with its backward
slow       the rank computes each op for longer
kill       the rank is killed, as the system kills when memory is out (kill -9)
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from simlab.errors import InputError, SimlabError, did_you_mean, shortened
from simlab.program import Op
from simlab.spec.plan import Plan

if TYPE_CHECKING:  # so that a plan can be read without torch
    from torch import Tensor

    from realrun.comm.group import Group, Observer
    from realrun.comm.mesh import Mesh
    from realrun.record.activations import SavedActivations

KINDS = ("hang", "skip", "resize", "nan", "leak", "slow", "kill")
FOREVER_S = 3600.0
SLOWER_S = 0.03
LEAST_SCALE = 2.0**-24
"""Of the loss in fp16, whose smallest number this is."""


class FaultFound(SimlabError):
    """A rank saw that something is wrong with what it computes or holds."""


@dataclass(frozen=True)
class Fault:
    """One of `KINDS`, on `rank`, from `step` on (slow) or at it, in its `op`th op: the first or,
    where that need not be a forward, the second."""

    kind: str
    rank: int
    step: int = 1
    op: int = 1

    @classmethod
    def of(cls, text: str, ranks: int) -> Fault:
        """Of 'kind@rank' or 'kind@rank:step'."""
        kind, _, place = str(text).partition("@")
        rank, _, step = place.partition(":")
        if kind not in KINDS:
            raise InputError(
                f"fault {text!r}{did_you_mean(kind, KINDS) or ';'} there is {', '.join(KINDS)}, as in 'hang@3:2'"
            )
        if not re.fullmatch("[0-9]{1,9}", rank) or not re.fullmatch("[0-9]{1,9}", step or "1"):
            raise InputError(f"fault {shortened(text)}: say kind@rank:step, such as '{kind}@0:1'")
        if int(rank) >= ranks:
            raise InputError(f"fault {text!r}: there are ranks 0 to {ranks - 1}")
        return cls(kind, int(rank), int(step or 1), op=0 if kind in ("nan", "leak") else 1)


class Injector:
    """Does the fault at its place in one rank's `executor`; without a fault for this rank it does
    nothing."""

    def __init__(self, fault: Fault | None, rank: int) -> None:
        self.fault = fault if fault is not None and fault.rank == rank else None
        self.kept: dict[
            tuple[int, int], Tensor
        ] = {}  # (stage, microbatch): what should have gone with its backward

    def here(self, kind: str, step: int, op_number: int) -> bool:
        """Whether the fault is of `kind` and belongs in this op of this step."""
        fault = self.fault
        if fault is None or fault.kind != kind:
            return False
        return step >= fault.step if kind == "slow" else (step, op_number) == (fault.step, fault.op)

    def tampered(self, mesh: Mesh) -> Mesh:
        """`mesh`, one group of it tampered with: the tensor-parallel one, or that of replicas where
        there is none."""
        if self.fault is not None and self.fault.kind in ("skip", "resize"):
            name = "tp" if mesh["tp"].size > 1 else "dp"
            self.group = Tampered(mesh[name], self.fault.kind)
            mesh.groups[name] = self.group  # type: ignore[assignment]
        return mesh

    def before(self, step: int, op_number: int) -> None:
        """Ahead of an op's computing."""
        for kind in ("skip", "resize"):
            if self.here(kind, step, op_number):
                self.group.armed = True
        if self.here("hang", step, op_number):
            time.sleep(FOREVER_S)
        if self.here("slow", step, op_number):
            time.sleep(SLOWER_S)
        if self.here("kill", step, op_number):
            os.kill(os.getpid(), signal.SIGKILL)

    def made(self, step: int, op_number: int, key: tuple[int, int], y: Tensor) -> Tensor:
        """What a forward of `key` = (stage, microbatch) made: `y`, or something worse."""
        if self.here("leak", step, op_number):
            self.kept[key] = y
        return y * float("nan") if self.here("nan", step, op_number) else y


class Tampered:
    """A `Group` whose next collective, once `armed`, is left out ('skip') or sent by half
    ('resize')."""

    def __init__(self, group: Group, kind: str) -> None:
        self._group, self._kind, self.armed = group, kind, False

    @property
    def observer(self) -> Observer:
        """The group's."""
        return self._group.observer

    @observer.setter
    def observer(self, observer: Observer) -> None:
        self._group.observer = observer

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._group, name)
        if not self.armed or name not in (
            "all_reduce",
            "all_gather",
            "reduce_scatter",
            "all_to_all",
            "shift",
        ):
            return method
        self.armed = False
        if self._kind == "skip":
            # here, so that a plan can be read without torch
            from realrun.comm.group import nothing_to_do

            return lambda tensor, *_, **__: nothing_to_do(tensor)
        return lambda tensor, *_, **__: method(tensor.flatten()[::2].contiguous())


def check_finite(result: Tensor | None, rank: int, op: Op | str) -> None:
    """`FaultFound` unless what `op` hands on is finite."""
    if result is not None and not result.isfinite().all():
        raise FaultFound(f"rank {rank}: {op} made numbers that are not finite (NaN or infinite)")


def check_scale(scale: float, rank: int, step: int) -> None:
    """`FaultFound` if the loss's scale has shrunk so far that it cannot be what makes gradients
    infinite."""
    if scale < LEAST_SCALE:
        raise FaultFound(
            f"rank {rank}: gradients of step {step} are not finite at any loss scale down to {scale:g}: some rank makes NaN"
        )


def check_released(activations: SavedActivations, rank: int, step: int) -> None:
    """`FaultFound` if something is still held for a backward when a step has ended."""
    if activations.live:
        (stage, microbatch), count = next(iter(activations.held.items()))
        raise FaultFound(
            f"rank {rank}: a memory leak: after step {step}, {activations.bytes} bytes are still held for backwards that are over, first "
            f"{count} tensors of stage {stage}, microbatch {microbatch}"
        )


def stragglers(
    busy_s: Sequence[float], plan: Plan, slower: float = 1.25
) -> list[tuple[int, float]]:
    """[(rank, its compute seconds over the median of the ranks that compute the same)] of those
    that take `slower` times as long.

    busy_s: [of each rank, seconds of computing in a step]. Step times do not tell: in synchronous
    training all wait for the slowest.
    """
    places: dict[tuple[int, ...], list[int]] = {}
    for rank, place in enumerate(plan.layout.all_coordinates()):
        places.setdefault(plan.layout.same_stages(place.pp), []).append(rank)
    found: list[tuple[int, float]] = []
    for ranks in places.values():
        middle_s = sorted(busy_s[rank] for rank in ranks)[(len(ranks) - 1) // 2]
        found += [
            (rank, busy_s[rank] / middle_s)
            for rank in ranks
            if busy_s[rank] > slower * middle_s > 0
        ]
    return sorted(found, key=lambda pair: -pair[1])

"""A loss curve with something in it, made: what a monitor shows of forty steps around it."""

from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import NamedTuple

from simlab.lessons.drill.artefacts.artefact import Artefact
from simlab.lessons.prediction import Choice, Number

FAULTS = ("batch", "rate", "overflow", "moments")
"""A bad batch; a learning rate that is too high; fp16 that overflows; a restart without the optimizer's
moments."""
STEPS = 40


class Shown(NamedTuple):
    """What a monitor has of a step. scale: the loss scale of fp16; is_restart: whether a process was started
    before it."""

    step: int
    loss: float
    norm: float
    scale: float
    is_restart: bool = False


def loss_curve(random: Random) -> Artefact:
    """A loss curve to read."""
    fault, at = random.choice(FAULTS), random.randrange(14, 24)
    shown = curve(random, fault, at)
    cause, begun = diagnosis(shown)
    return Artefact(
        rows=_rows(shown),
        fields={"cause": Choice(*FAULTS), "step": Number()},
        answer={"cause": cause, "step": float(begun)},
        faults=(cause,),
        given={"step": begun},
    )


def diagnosis(curve: Sequence[Shown]) -> tuple[str, int]:
    """What has happened, and at which step it began.

    A scale that falls is overflow. A loss that jumps at a restart has lost what was not restored. A norm
    that has grown for steps before the loss does is a learning rate; one that jumps with the loss and is
    as before in the next steps is a batch.
    """
    usual = sum(one.norm for one in curve[:8]) / 8
    scales = [one.step for before, one in pairwise(curve) if one.scale < before.scale]
    if scales:
        return "overflow", scales[0]
    high = [one for one in curve if one.norm > 1.6 * usual]
    restart = next((one for one in curve if one.is_restart), None)
    if restart is not None:
        return "moments", restart.step
    return ("batch" if len(high) < 4 else "rate"), high[0].step


def curve(random: Random, fault: str, at: int) -> list[Shown]:
    """Forty steps with a fault that begins in the one numbered `at`, from 0."""
    first = random.randrange(20, 400) * 100
    found = []
    for number in range(STEPS):
        since = number - at
        loss = 2.4 - 0.004 * number + random.uniform(-0.02, 0.02)
        norm, scale = random.uniform(0.45, 0.55), 65536.0
        if fault == "batch" and since == 0:
            loss, norm = loss + 2.5, norm * 12
        if fault == "batch" and since in (1, 2):
            loss += 0.6 / since
        if fault == "rate" and since >= 0:
            norm *= 2.2 * 1.12**since
            loss += 0.03 * max(0, since - 5) ** 1.6
        if fault == "overflow" and since >= 0:
            scale = 65536.0 / 2 ** (1 + since // 2)
            loss = 2.4 - 0.004 * at + random.uniform(-0.01, 0.01)
        if fault == "moments" and since >= 0:
            loss += 0.9 * 0.85**since
            norm *= 1 + 0.5 * 0.85**since
        found.append(Shown(first + number, loss, norm, scale, fault == "moments" and since == 0))
    return found


def _rows(curve: Sequence[Shown]) -> list[list[str]]:
    rows = [["step", "loss", "gradient norm", "loss scale", ""]]
    for one in curve:
        started = "restarted" if one.is_restart else ""
        rows.append(
            [str(one.step), f"{one.loss:.3f}", f"{one.norm:.2f}", f"{one.scale:.0f}", started]
        )
    return rows

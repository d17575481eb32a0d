"""How far something else on the machine disturbed a calibration: times far from what was set, and times
that scatter."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median, quantiles
from typing import Any, NamedTuple

from simlab.units import seconds_text

ALLOWED, LEAST_S = 0.25, 1e-3
"""How much later than set, and how far apart, times may be, as a part of the shortest op, and which
difference is never one."""


class Disturbance(NamedTuple):
    """How large the worst difference is, in those that are allowed, and what it is, in English."""

    times: float
    text: str

    @property
    def tells(self) -> bool:
        """Whether the calibration should not be believed."""
        return self.times > 1.0


def disturbance(
    everyone: Sequence[Mapping[str, Any]],
    asked_s: Mapping[int, Mapping[str, float]],
    asked_link_s: float,
) -> Disturbance:
    """The worst of what all ranks measured.

    everyone:     [{"ops": {number of stages: {stage: {op kind: [seconds of each round]}}}, "links":
                  [[a, b, [`Ping`s]]], "gaps": [seconds between two ops]}] of each rank.
    asked_s:      {number of stages: {op kind: what an op was set to take}}, with no kinds where ops
                  take what they take.
    asked_link_s: what a message of one number was set to take.
    """
    shortest_s = min(median(seconds) for *_, seconds in _ops(everyone))
    allowed_s = max(LEAST_S, ALLOWED * shortest_s)
    found = [Disturbance(0.0, "")]
    for stages, stage, kind, seconds in _ops(everyone):
        name, asked = f"{kind} of stage {stage}", asked_s[stages]
        found.append(_scatter(name, seconds, allowed_s))
        if kind in asked:
            found.append(_late(name, seconds, asked[kind], allowed_s))
    for part in everyone:
        for a, b, pings in part["links"]:
            name, (_, seconds, _) = f"a message between ranks {a} and {b}", pings[0]
            found.append(_scatter(name, seconds, allowed_s))
            found.append(_late(name, seconds, asked_link_s, allowed_s))
        if part["gaps"]:
            found.append(_late("what lies between two ops", part["gaps"], 0.0, allowed_s))
    return max(found)


def _ops(
    everyone: Sequence[Mapping[str, Any]],
) -> Iterator[tuple[int, str, str, Sequence[float]]]:
    """(number of stages, stage, op kind, seconds of each round)"""
    for part in everyone:
        for stages, of_stages in part["ops"].items():
            for stage, kinds in of_stages.items():
                for kind, seconds in kinds.items():
                    yield int(stages), stage, kind, seconds


def _scatter(name: str, seconds: Sequence[float], allowed_s: float) -> Disturbance:
    """How far apart the middle half is."""
    low_s, _, high_s = quantiles(seconds, n=4)
    text = f"{name} took from {seconds_text(low_s)} to {seconds_text(high_s)}"
    return Disturbance((high_s - low_s) / allowed_s, text)


def _late(name: str, seconds: Sequence[float], set_s: float, allowed_s: float) -> Disturbance:
    took_s = median(seconds)
    text = f"{name} took {seconds_text(took_s)}, where {seconds_text(set_s)} was set"
    return Disturbance((took_s - set_s) / allowed_s, text)

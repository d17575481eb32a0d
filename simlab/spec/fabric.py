"""Fabrics: what joins the GPUs of a node, or the nodes."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from simlab.errors import (
    InputError,
    number,
    require_positive,
    require_seconds,
    require_source,
    whole,
)
from simlab.spec.fields import documented, short_repr, with_field_docs

FABRIC_KINDS = ("nvlink", "pcie", "network", "loopback")
PROTOCOLS = ("Simple", "LL128", "LL")


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Fabric:
    """The links that join the GPUs of a node, or the nodes: ports of one speed, and the time that a
    message takes besides its bytes."""

    kind: str = documented(
        "The kind of link, which decides which of NCCL's latency constants apply.",
        choices=FABRIC_KINDS,
    )
    bandwidth_bytes_per_s: float = documented(
        """The bandwidth of one port in one direction, as the data sheet has it: all NVLinks of a GPU
        (half of the total that is advertised), or one NIC. With `rings` it is that of one ring."""
    )
    efficiency: float = documented(
        """The fraction of the bandwidth that large messages of a ring get, after packet headers,
        flow control and the kernel that copies.""",
        default=1.0,
    )
    message_efficiency: float = documented(
        """The same fraction for sends and receives (point-to-point, all-to-all). None stands for
        `efficiency`.""",
        default=None,
    )
    base_s: float = documented(
        """The seconds that a collective takes at any size and number of ranks, for the launch of its
        kernel and synchronisation.""",
        default=0.0,
    )
    hop_s: float = documented(
        """The seconds between a rank's receiving a chunk and the next rank's receiving it, besides
        its bytes, in NCCL's protocol Simple.""",
        default=0.0,
    )
    message_s: float = documented(
        """The seconds that each message adds when a rank sends to many at once (all-to-all). None
        stands for `hop_s`.""",
        default=None,
    )
    copy_bytes_per_s: float = documented(
        """The rate at which a rank copies its buffer in and out once per collective, beside what its
        port carries. Infinity stands for a copy that the transfer hides.""",
        default=float("inf"),
    )
    rings: dict[int, int] = documented(
        """{ranks: rings} of a fabric without a switch, whose wiring gives a number of ranks only so
        many rings beside each other.""",
        default_factory=dict,
        hash=False,
    )
    islands: int = documented(
        """The number of GPUs behind one root complex (PCIe). A group of more ranks crosses from one
        to another. 0 stands for no such border.""",
        default=0,
    )
    island_bandwidth_bytes_per_s: float = documented(
        "The bandwidth of a ring that crosses that border.", default=float("inf")
    )
    multicast_efficiency: float = documented(
        """The fraction of the port's bandwidth that reduction inside the switch (NVLS) gets. 0
        stands for a switch that cannot add.""",
        default=0.0,
    )
    oversubscription: float = documented(
        """How many times the bandwidth of the ports above a switch those below it carry (fat tree).
        1 is non-blocking.""",
        default=1.0,
    )
    protocols: tuple[str, ...] = documented(
        "The protocols of NCCL that are enabled.", default=PROTOCOLS
    )
    source: str = documented(
        "Where the figures are from: a data sheet, or the measurement that they are fitted to."
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if self.kind not in FABRIC_KINDS:
            raise InputError(f"fabric kind {self.kind!r}: give one of {', '.join(FABRIC_KINDS)}")
        for name in ("bandwidth_bytes_per_s", "copy_bytes_per_s", "island_bandwidth_bytes_per_s"):
            require_positive(f"{self.kind} fabric: {name}", getattr(self, name))
        if self.message_efficiency is None:
            object.__setattr__(self, "message_efficiency", self.efficiency)
        if self.message_s is None:
            object.__setattr__(self, "message_s", self.hop_s)
        for name in ("base_s", "hop_s", "message_s"):
            require_seconds(f"{self.kind} fabric: {name}", getattr(self, name))
        self._check_values()
        # JSON's keys are texts
        object.__setattr__(
            self, "rings", {int(ranks): count for ranks, count in self.rings.items()}
        )
        object.__setattr__(self, "protocols", tuple(self.protocols))
        require_source(f"{self.kind} fabric", self.source)

    def _check_values(self) -> None:
        """Raise `InputError` if a field has no value that a fabric can have."""
        for name, fits, valid in (
            (
                "efficiency",
                _fraction(self.efficiency) and self.efficiency > 0,
                "a fraction above 0, up to 1",
            ),
            (
                "message_efficiency",
                _fraction(self.message_efficiency) and self.message_efficiency > 0,
                "a fraction above 0, up to 1",
            ),
            ("multicast_efficiency", _fraction(self.multicast_efficiency), "a fraction, 0 to 1"),
            (
                "oversubscription",
                number(self.oversubscription) and 1 <= self.oversubscription < float("inf"),
                "1 (none) or more",
            ),
            ("islands", whole(self.islands, 0), "a whole number of GPUs, 0 for no border"),
            ("protocols", _some(self.protocols, PROTOCOLS), f"some of {', '.join(PROTOCOLS)}"),
            (
                "rings",
                _ring_counts(self.rings),
                'an object such as {"8": 6}: a number of ranks, and how many rings, at least 1, it has',
            ),
        ):
            if not fits:
                raise InputError(
                    f"{self.kind} fabric: {name} = {getattr(self, name)!r}: give {valid}"
                )

    def ring_bandwidth_bytes_per_s(self, ranks: int) -> float:
        """What a rank of a ring (or of all rings together) of `ranks` ranks sends per second, with
        large messages."""
        rings = 1
        if self.rings:
            rings = self.rings[
                max((count for count in self.rings if count <= ranks), default=min(self.rings))
            ]
        bandwidth = self.bandwidth_bytes_per_s * self.efficiency * rings
        return (
            min(bandwidth, self.island_bandwidth_bytes_per_s)
            if self.islands and ranks > self.islands
            else bandwidth
        )


def _fraction(value: Any) -> bool:
    return number(value) and 0 <= value <= 1


def _some(values: Any, known: Iterable[str]) -> bool:
    return (
        isinstance(values, (list, tuple))
        and bool(values)
        and all(value in known for value in values)
    )


def _ring_counts(rings: Any) -> bool:
    """Whether `rings` is {ranks, as numbers or texts: rings}."""
    return isinstance(rings, dict) and all(
        re.fullmatch("[1-9][0-9]*", str(ranks)) and whole(count, 1)
        for ranks, count in rings.items()
    )

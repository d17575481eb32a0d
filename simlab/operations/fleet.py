"""The nodes that a training has: those it runs on, spare ones, and those in repair."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import simpy

from simlab.errors import InputError, require_seconds, require_whole, shortened
from simlab.spec.fields import documented, with_field_docs

SHORT_OF_NODES = ("wait", "shrink")


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Fleet:
    """The nodes of a training, its spares, and how it starts again after a failure, in seconds."""

    nodes: int = documented("The nodes that the training runs on.", default=2048)
    spares: int = documented(
        "Further nodes that stand ready. With many of them a training never waits for a repair.",
        default=16,
    )
    repair_s: float = documented(
        "From the failure of a node until it is a spare again.", default=86_400.0
    )
    detect_s: float = documented(
        "From a failure until it is noticed: at most the time limit of collectives.", default=60.0
    )
    replace_s: float = documented("Bringing in spare nodes for those that failed.", default=0.0)
    start_s: float = documented(
        "Starting all processes and their groups, and the first slow steps.", default=300.0
    )
    short_of_nodes: str = documented(
        """What happens when no spare is left: the training waits for a repair, or goes on with
        fewer data-parallel replicas and the same global batch.""",
        default="wait",
        choices=SHORT_OF_NODES,
    )
    replica_nodes: int = documented(
        "The nodes of one data-parallel replica: a smaller training is a whole number of them.",
        default=1,
    )
    resize_s: float = documented(
        "Re-sharding to more nodes at a checkpoint, when repaired ones are back.", default=120.0
    )

    def __post_init__(self) -> None:
        require_whole("nodes", self.nodes)
        require_whole("spares", self.spares, 0)
        require_whole("replica_nodes", self.replica_nodes)
        for name in ("repair_s", "detect_s", "replace_s", "start_s", "resize_s"):
            require_seconds(name, getattr(self, name))
        if self.short_of_nodes not in SHORT_OF_NODES:
            there_is = " or ".join(map(repr, SHORT_OF_NODES))
            raise InputError(f"short_of_nodes = {shortened(self.short_of_nodes)}: give {there_is}")
        if self.nodes % self.replica_nodes:
            raise InputError(
                f"replica_nodes = {self.replica_nodes}: give a divisor of nodes = {self.nodes}"
            )

    @property
    def fewest_nodes(self) -> int:
        """The fewest nodes on which the training goes on."""
        return self.replica_nodes if self.short_of_nodes == "shrink" else self.nodes


class Nodes:
    """The nodes of a `Fleet` at a moment of a simulation."""

    def __init__(self, env: simpy.Environment, fleet: Fleet) -> None:
        self.env, self.fleet = env, fleet
        self.held, self.spares = fleet.nodes, fleet.spares
        self.repaired = env.event()
        """It happens when the next node is repaired."""

    @property
    def speed(self) -> float:
        """The speed of the training, as a part of that on all its nodes. Data-parallel replicas
        share a batch evenly; nodes that make no whole replica are idle."""
        whole = self.held - self.held % self.fleet.replica_nodes
        return whole / self.fleet.nodes

    @property
    def grown_speed(self) -> float:
        """The speed with all spares brought in."""
        held = min(self.fleet.nodes, self.held + self.spares)
        return (held - held % self.fleet.replica_nodes) / self.fleet.nodes

    @property
    def enough(self) -> bool:
        """Whether the training could go on if all spares were brought in."""
        return self.held + self.spares >= self.fleet.fewest_nodes

    def lose(self) -> None:
        """A node fails, and is a spare again when it is repaired."""
        self.held -= 1
        self.env.process(self._repair())

    def take_spares(self) -> int:
        """Bring in as many spares as are needed, or as there are; returns how many."""
        taken = min(self.fleet.nodes - self.held, self.spares)
        self.held += taken
        self.spares -= taken
        return taken

    def _repair(self) -> Generator[simpy.Event, Any, None]:
        yield self.env.timeout(self.fleet.repair_s)
        self.spares += 1
        happened, self.repaired = self.repaired, self.env.event()
        happened.succeed()

"""The shape of a group of ranks: how many there are, and how many of them share a node."""

from dataclasses import dataclass

from simlab.errors import InputError, require_whole
from simlab.spec.cluster import Cluster


@dataclass(frozen=True)
class GroupShape:
    """The ranks of a communicator. All GPUs of a node are in such groups at the same time, each
    with its share of the NICs."""

    size: int
    """n"""
    per_node: int
    """k, how many of them sit in one node."""

    def __post_init__(self) -> None:
        for name in ("size", "per_node"):
            require_whole(f"group: {name}", getattr(self, name))
        if self.size % self.per_node:
            raise InputError(
                f"group of {self.size} ranks, {self.per_node} per node: give a divisor of {self.size} per node"
            )

    @property
    def nodes(self) -> int:
        """N"""
        return self.size // self.per_node

    @classmethod
    def of(cls, size: int, stride: int, cluster: Cluster) -> "GroupShape":
        """`size` ranks that are `stride` apart (1: neighbours), on nodes filled one after the
        other.

        Where they do not fill their nodes evenly: as many in each as a divisor of `size` allows.
        """
        require_whole("group: stride", stride)
        per_node = max(1, min(size, cluster.gpus_per_node // stride))
        while size % per_node:
            per_node -= 1
        return cls(size, per_node)

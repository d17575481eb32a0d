"""What checkpoints cost a training: written while it waits, beside it, or to memory and to disk."""

from dataclasses import dataclass

from simlab.errors import InputError, require_amount, require_positive, require_seconds
from simlab.spec.fields import documented, with_field_docs

WITH_BF16 = 14
"""Bytes of a checkpoint per parameter: fp32 weights, two fp32 moments of Adam, and the bf16 weights, which
are 2 of them. Published sizes: 12.9 to 13.6 for four of five models of NVIDIA's DGX Cloud
benchmarking recipes, 10.6 for one that is an outlier as printed."""


def checkpoint_bytes(parameters: float, bytes_per_parameter: float = WITH_BF16) -> float:
    """The size of a checkpoint of weights and optimizer. It leaves out the state of the data loader
    and of random generators, which are small."""
    require_positive("parameters", parameters)
    require_positive("bytes_per_parameter", bytes_per_parameter)
    return parameters * bytes_per_parameter


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Checkpoints:
    """When checkpoints are written, and what each costs, in seconds.

    A checkpoint counts when it is complete: training that follows one which is still being written
    is lost with it. A checkpoint that is due while the one before is still being written waits for
    it, and the training waits, too.
    """

    interval_s: float = documented("Training between two checkpoints on disk.", default=3600.0)
    stall_s: float = documented(
        """How long training stands still at each: the whole writing of a synchronous checkpoint, the
        copy to the host's memory of an asynchronous one.""",
        default=60.0,
    )
    write_s: float = documented(
        "How long the writing goes on beside the training, until the checkpoint is complete.",
        default=0.0,
    )
    load_s: float = documented(
        "Reading a checkpoint from disk when training starts again.", default=0.0
    )
    memory_interval_s: float | None = documented(
        "Training between two copies in the memory of other nodes. None makes no such copies.",
        default=None,
    )
    memory_stall_s: float = documented("How long training stands still at each copy.", default=0.0)
    memory_load_s: float = documented("Loading from such a copy.", default=0.0)
    memory_survives: float = documented(
        """The part of failures after which the copies in memory are still whole: not those that end
        the processes that hold them, or take a node and its partner together.""",
        default=1.0,
    )

    def __post_init__(self) -> None:
        require_positive("interval_s", self.interval_s)
        for name in ("stall_s", "write_s", "load_s", "memory_stall_s", "memory_load_s"):
            require_seconds(name, getattr(self, name))
        if self.memory_interval_s is not None:
            require_positive("memory_interval_s", self.memory_interval_s)
            if self.memory_interval_s > self.interval_s:
                raise InputError(
                    f"memory_interval_s = {self.memory_interval_s:g}: copies in memory are made "
                    f"between those on disk, so give at most interval_s = {self.interval_s:g}"
                )
        require_amount("memory_survives", self.memory_survives)
        if self.memory_survives > 1:
            raise InputError(f"memory_survives = {self.memory_survives:g}: give a part, 0 to 1")


def synchronous(
    size_bytes: float,
    *,
    interval_s: float,
    write_bytes_per_s: float,
    read_bytes_per_s: float | None = None,
) -> Checkpoints:
    """Checkpoints for which the training waits until they are on disk.

    write_bytes_per_s: what all ranks together write, read_bytes_per_s: what they read (as fast).
    """
    read = _read_s(size_bytes, write_bytes_per_s, read_bytes_per_s)
    return Checkpoints(interval_s=interval_s, stall_s=size_bytes / write_bytes_per_s, load_s=read)


def asynchronous(
    size_bytes: float,
    *,
    interval_s: float,
    copy_bytes_per_s: float,
    write_bytes_per_s: float,
    read_bytes_per_s: float | None = None,
) -> Checkpoints:
    """Checkpoints that are copied to the hosts' memory while the training waits, and written from
    there beside it. copy_bytes_per_s: what all GPUs together copy to their hosts.

    That the writing slows the training (it shares NICs and PCIe) is left out.
    """
    require_positive("copy_bytes_per_s", copy_bytes_per_s)
    read = _read_s(size_bytes, write_bytes_per_s, read_bytes_per_s)
    return Checkpoints(
        interval_s=interval_s,
        stall_s=size_bytes / copy_bytes_per_s,
        write_s=size_bytes / write_bytes_per_s,
        load_s=read,
    )


def _read_s(size_bytes: float, write_bytes_per_s: float, read_bytes_per_s: float | None) -> float:
    require_positive("size_bytes", size_bytes)
    require_positive("write_bytes_per_s", write_bytes_per_s)
    read = write_bytes_per_s if read_bytes_per_s is None else read_bytes_per_s
    require_positive("read_bytes_per_s", read)
    return size_bytes / read

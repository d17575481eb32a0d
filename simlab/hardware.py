"""What moves and computes: links for now (GPUs, nodes and fabrics join them here)."""

from dataclasses import dataclass

from simlab.errors import InputError

SHARING = ("serial", "fair")


@dataclass(frozen=True, kw_only=True)
class Link:
    """One directed link between two ranks. A message of S bytes takes `S / bandwidth + latency` on an idle link.

    The alpha-beta (Hockney) model, with the processor overhead o of LogP (Culler et al. 1993) on the sending side.
    Leaves out: protocol switches by size, and what the receiver's processor spends.
    """

    latency_s: float = 0.0
    """Seconds from the last bit leaving to the message being usable: the alpha. Does not occupy the link."""

    bandwidth_bytes_per_s: float = float("inf")
    """Bytes per second while a message has the link to itself: 1 / beta."""

    overhead_s: float = 0.0
    """Seconds that a send keeps the sender from its next op: LogP's o. It runs beside the latency, not before it."""

    sharing: str = "serial"
    """'serial': one message's bits at a time, in the order sent. 'fair': messages at once, each an equal share."""

    def __post_init__(self):
        if not 0 <= self.latency_s < float("inf"):
            raise InputError(f"link latency {self.latency_s!r} s: give a finite number of seconds, 0 or more")
        if not 0 <= self.overhead_s < float("inf"):
            raise InputError(f"link overhead {self.overhead_s!r} s: give a finite number of seconds, 0 or more")
        if not self.bandwidth_bytes_per_s > 0:
            raise InputError(f"link bandwidth {self.bandwidth_bytes_per_s!r} bytes/s: give a number above 0")
        if self.sharing not in SHARING:
            raise InputError(f"link sharing {self.sharing!r}: give one of {', '.join(SHARING)}")

    def seconds(self, size_bytes):
        """How long `size_bytes` takes on this link when it is idle, s."""
        return size_bytes / self.bandwidth_bytes_per_s + self.latency_s

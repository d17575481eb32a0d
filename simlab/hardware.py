"""What computes and what moves: GPUs, links between two ranks, fabrics that join many."""

import re
from dataclasses import dataclass, field

from simlab.errors import InputError, number, require_positive, require_seconds, require_source, require_whole, whole

SHARING = ("serial", "fair")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
FABRIC_KINDS = ("nvlink", "pcie", "network", "loopback")
PROTOCOLS = ("Simple", "LL128", "LL")


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


@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """What a GPU's kernels reach: of data/kernels.json, or of a file that was measured (`python -m realrun measure`)."""

    matmul: dict
    """{'forward', 'input', 'weight': part of the peak that a large product reaches}: gradients read their operands transposed."""
    tiles: tuple
    """(rows, columns, part of `matmul`) of the output tiles that the library has kernels for."""
    kernel_s: float
    """From one kernel's end to the next one's full speed, s."""
    attention: dict
    """{generation: [forward, backward] part of the peak of fused attention, counting only the unmasked half}; 'flash': the card's best."""
    attention_tail: dict
    """How many times its share of the peak's time the longest block of 128 queries takes, alone on its multiprocessor."""
    memory: float
    """Part of the memory's bandwidth that streaming kernels reach."""
    source: str

    def __post_init__(self):
        for name, keys in (
            ("matmul", ("forward", "input", "weight")),
            ("attention", ("flash",)),
            ("attention_tail", ("forward", "backward")),
        ):
            given = getattr(self, name)
            if not isinstance(given, dict) or not set(keys) <= set(given):
                raise InputError(f"efficiency: {name} = {given!r}: give an object with {', '.join(keys)}")
        for role, part in self.matmul.items():
            require_positive(f"efficiency: matmul of {role}", part)
        for generation, parts in self.attention.items():
            if not isinstance(parts, (list, tuple)) or len(parts) != 2:
                raise InputError(f"efficiency: attention of {generation} = {parts!r}: give two numbers, forward and backward")
            for part in parts:
                require_positive(f"efficiency: attention of {generation}", part)
        tiles = self.tiles if isinstance(self.tiles, (list, tuple)) else ()
        if not tiles or not all(isinstance(tile, (list, tuple)) and len(tile) == 3 for tile in tiles):
            raise InputError(f"efficiency: tiles = {self.tiles!r}: give some of [rows, columns, part]")
        for value in (value for tile in tiles for value in tile):
            require_positive("efficiency: a tile's rows, columns or part", value)
        require_positive("efficiency: memory", self.memory)
        for what, value in (
            ("kernel_s", self.kernel_s),
            *((f"attention_tail of {way}", tail) for way, tail in self.attention_tail.items()),
        ):
            if not number(value) or not 0 <= value < float("inf"):
                raise InputError(f"efficiency: {what} = {value!r}: give a finite number, 0 or more")
        require_source("efficiency", self.source)


@dataclass(frozen=True, kw_only=True)
class Gpu:
    """An accelerator (or a CPU process that stands for one), as its data sheet describes it."""

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    """{precision: floating-point operations per second}, dense: without the factor 2 of structured sparsity. From fp16 on with tensor
    cores; fp32 without them. A precision that the chip does not have is not there."""
    memory_bytes: float
    """What a program can allocate of the memory (GiB as the driver reports it, not the GB of the name)."""
    memory_bandwidth_bytes_per_s: float
    sms: int
    """Streaming multiprocessors: the blocks of a kernel run in waves of so many."""
    efficiency: Efficiency | None = field(default=None, hash=False)
    """What its kernels reach of those; None: what data/kernels.json has under its name."""
    source: str
    """Where the figures are from."""

    def __post_init__(self):
        if not isinstance(self.name, str):
            raise InputError(f"a Gpu's name = {self.name!r}: give a text")
        if not isinstance(self.peak_flops, dict) or not self.peak_flops or not set(self.peak_flops) <= set(PRECISIONS):
            named = isinstance(self.peak_flops, dict) and ", ".join(map(str, self.peak_flops))
            raise InputError(
                f"{self.name}: peak_flops of {named or repr(self.peak_flops)}: give numbers of some of {', '.join(PRECISIONS)}"
            )
        for precision, flops in self.peak_flops.items():
            require_positive(f"{self.name}: peak_flops of {precision}", flops)
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            require_positive(f"{self.name}: {name}", getattr(self, name))
        require_whole(f"{self.name}: sms", self.sms)
        require_source(self.name, self.source)

    def peak(self, precision):
        """Operations per second in `precision`; `InputError` where the chip does not have it."""
        if precision not in self.peak_flops:
            raise InputError(f"{self.name} has no {precision}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[precision]


@dataclass(frozen=True, kw_only=True)
class Fabric:
    """What joins the GPUs of a node, or the nodes: ports of one speed, and what a message spends besides its bytes."""

    kind: str
    """nvlink, pcie, network (InfiniBand or Ethernet) or loopback: which of NCCL's latency constants apply."""
    bandwidth_bytes_per_s: float
    """Of one port, one direction, as the data sheet has it: a GPU's NVLinks together (half of the "total" that is advertised), one NIC.
    Where `rings` is given: of one ring."""
    efficiency: float = 1.0
    """What large messages of a ring get of that, as a fraction: packet headers, flow control, the kernel that copies."""
    message_efficiency: float | None = None
    """The same of sends and receives (point-to-point, all-to-all); None: as `efficiency`."""
    base_s: float = 0.0
    """Seconds that a collective takes whatever its size and number of ranks: kernel launch, synchronisation."""
    hop_s: float = 0.0
    """Seconds between a rank's getting a chunk and the next rank's getting it, besides its bytes, in the protocol Simple."""
    message_s: float | None = None
    """Seconds that each message adds when a rank sends to many (all-to-all), which overlap but for this; None: as `hop_s`."""
    copy_bytes_per_s: float = float("inf")
    """At what rate a rank copies its buffer in and out once per collective, beside what its port carries; inf: hidden behind that."""
    rings: dict[int, int] = field(default_factory=dict, hash=False)
    """{ranks: rings} where there is no switch, and the wiring gives a number of ranks only so many rings beside each other."""
    islands: int = 0
    """GPUs behind one root complex (PCIe): more ranks than that cross from one to the other. 0: no such border."""
    island_bandwidth_bytes_per_s: float = float("inf")
    """What a ring gets that crosses it."""
    multicast_efficiency: float = 0.0
    """What in-switch reduction (NVLS) gets of the port's bandwidth; 0: the switch cannot add."""
    oversubscription: float = 1.0
    """How much more the ports below a switch carry than those above (fat tree): 1 is non-blocking."""
    protocols: tuple[str, ...] = PROTOCOLS
    """Those of NCCL's protocols that are enabled."""
    source: str
    """Where the figures are from: data sheet, or the measurement they are fitted to."""

    def __post_init__(self):
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
        for name, fits, valid in (
            ("efficiency", _fraction(self.efficiency) and self.efficiency > 0, "a fraction above 0, up to 1"),
            ("message_efficiency", _fraction(self.message_efficiency) and self.message_efficiency > 0, "a fraction above 0, up to 1"),
            ("multicast_efficiency", _fraction(self.multicast_efficiency), "a fraction, 0 to 1"),
            ("oversubscription", number(self.oversubscription) and 1 <= self.oversubscription < float("inf"), "1 (none) or more"),
            ("islands", whole(self.islands, 0), "a whole number of GPUs, 0 for no border"),
            ("protocols", _some(self.protocols, PROTOCOLS), f"some of {', '.join(PROTOCOLS)}"),
            ("rings", _ring_counts(self.rings), 'an object such as {"8": 6}: a number of ranks, and how many rings, at least 1, it has'),
        ):
            if not fits:
                raise InputError(f"{self.kind} fabric: {name} = {getattr(self, name)!r}: give {valid}")
        object.__setattr__(self, "rings", {int(ranks): count for ranks, count in self.rings.items()})  # JSON's keys are texts
        object.__setattr__(self, "protocols", tuple(self.protocols))
        require_source(f"{self.kind} fabric", self.source)

    def ring_bandwidth_bytes_per_s(self, ranks):
        """What a rank of a ring (or of all rings together) of `ranks` ranks sends per second, with large messages."""
        rings = 1
        if self.rings:
            rings = self.rings[max((count for count in self.rings if count <= ranks), default=min(self.rings))]
        bandwidth = self.bandwidth_bytes_per_s * self.efficiency * rings
        return min(bandwidth, self.island_bandwidth_bytes_per_s) if self.islands and ranks > self.islands else bandwidth


def _fraction(value):
    return number(value) and 0 <= value <= 1


def _some(values, known):
    return isinstance(values, (list, tuple)) and bool(values) and all(value in known for value in values)


def _ring_counts(rings):
    """Whether `rings` is {ranks, as numbers or texts: rings}."""
    return isinstance(rings, dict) and all(re.fullmatch("[1-9][0-9]*", str(ranks)) and whole(count, 1) for ranks, count in rings.items())

"""GPUs and what their kernels reach, and links between two ranks."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from simlab.errors import (
    InputError,
    did_you_mean,
    number,
    require_positive,
    require_source,
    require_whole,
    shortened,
)
from simlab.spec.fields import documented, short_repr, with_field_docs
from simlab.units import bytes_text

SHARING = ("serial", "fair")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8", "fp4")


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Link:
    """One directed link between two ranks. A message of S bytes takes `S / bandwidth + latency` on
    an idle link.

    This is the alpha-beta (Hockney) model, with the processor overhead o of LogP (Culler et al.
    1993) on the sending side. It leaves out protocol switches by size and the time that the
    receiver's processor spends.
    """

    latency_s: float = documented(
        """The seconds from the last bit's leaving until the message can be used: alpha. It does not
        occupy the link.""",
        default=0.0,
    )
    bandwidth_bytes_per_s: float = documented(
        "The bytes per second while a message has the link to itself: 1 / beta.",
        default=float("inf"),
    )
    overhead_s: float = documented(
        """The seconds that a send keeps the sender from its next op: LogP's o. It runs beside the
        latency, not before it.""",
        default=0.0,
    )
    sharing: str = documented(
        """How messages share the link. 'serial' sends one at a time, in order. 'fair' gives messages
        that are sent at the same time an equal share each.""",
        default="serial",
        choices=SHARING,
    )

    __repr__ = short_repr

    def __post_init__(self) -> None:
        if not number(self.latency_s) or not 0 <= self.latency_s < float("inf"):
            raise InputError(
                f"link latency {self.latency_s!r} s: give a finite number of seconds, 0 or more"
            )
        if not number(self.overhead_s) or not 0 <= self.overhead_s < float("inf"):
            raise InputError(
                f"link overhead {self.overhead_s!r} s: give a finite number of seconds, 0 or more"
            )
        if not number(self.bandwidth_bytes_per_s) or not self.bandwidth_bytes_per_s > 0:
            raise InputError(
                f"link bandwidth {self.bandwidth_bytes_per_s!r} bytes/s: give a number above 0"
            )
        if self.sharing not in SHARING:
            raise InputError(f"link sharing {self.sharing!r}: give one of {', '.join(SHARING)}")

    def seconds(self, size_bytes: float) -> float:
        """How long `size_bytes` takes on this link when it is idle, s."""
        return size_bytes / self.bandwidth_bytes_per_s + self.latency_s


@with_field_docs
@dataclass(frozen=True, kw_only=True)
class Efficiency:
    """The fractions of its peaks that a GPU's kernels reach. They are in data/kernels.json, or in a
    file that `python -m realrun measure` wrote."""

    matmul: dict[str, float] = documented(
        """{'forward', 'input', 'weight': the fraction of the peak that a large matrix product
        reaches}. Gradients read their operands transposed. 'forward in 8 bits' and the like say
        what products in fp8 reach where it is another one, 'input in 8 bits, split' and the like what
        they do where their sums are split (`simlab.cost.roofline.FAST_SUMS`), and 'input in 8 bits, in
        blocks' and the like what those in MXFP8 do, with a scale for every 32 numbers."""
    )
    tiles: tuple[tuple[float, ...], ...] = documented(
        """(rows, columns, fraction of `matmul`) of each output tile that the library has kernels
        for."""
    )
    kernel_s: float = documented(
        "The seconds from one kernel's end until the next one runs at full speed."
    )
    attention: dict[str, list[float]] = documented(
        """{generation: [forward, backward]}: the fraction of the peak that fused attention reaches,
        of which only the unmasked half is counted. 'flash' is the best that the GPU has, 'flash-fp8' the
        best in 8 bits, of the peak in 8. 'flash, heads of 64' and 'flash, heads of 192' are what is
        reached with such heads where it is another fraction than with heads of 128."""
    )
    attention_tail: dict[str, float] = documented(
        """{'forward', 'backward'}: how many times its share of the peak's time the longest block of
        128 queries takes, alone on its multiprocessor."""
    )
    memory: float = documented(
        "The fraction of the memory's bandwidth that streaming kernels reach."
    )
    source: str = documented("Where the figures are from.")
    shares_rounds: bool = documented(
        """Whether products that are launched one by one on several streams, as those of experts, fill
        each other's last rounds. Otherwise each takes what it takes alone.""",
        default=True,
    )
    attention_block_s: dict[str, float] = documented(
        """{'forward', 'backward'}: the seconds that a multiprocessor needs once for a block of 128 queries
        whose keys are those of a window, beside its tiles. Without it these are hidden.""",
        default_factory=dict,
    )

    def __post_init__(self) -> None:
        for name, keys in (
            ("matmul", ("forward", "input", "weight")),
            ("attention", ("flash",)),
            ("attention_tail", ("forward", "backward")),
        ):
            given = getattr(self, name)
            if not isinstance(given, dict) or not set(keys) <= set(given):
                raise InputError(
                    f"efficiency: {name} = {given!r}: give an object with {', '.join(keys)}"
                )
        if not isinstance(self.attention_block_s, dict):
            raise InputError(
                f"efficiency: attention_block_s = {self.attention_block_s!r}: give an object with"
                " forward, backward"
            )
        for role, part in self.matmul.items():
            require_positive(f"efficiency: matmul of {role}", part)
        for generation, parts in self.attention.items():
            if not isinstance(parts, (list, tuple)) or len(parts) != 2:
                raise InputError(
                    f"efficiency: attention of {generation} = {parts!r}: give two numbers, forward and backward"
                )
            for part in parts:
                require_positive(f"efficiency: attention of {generation}", part)
        tiles = self.tiles if isinstance(self.tiles, (list, tuple)) else ()
        if not tiles or not all(
            isinstance(tile, (list, tuple)) and len(tile) == 3 for tile in tiles
        ):
            raise InputError(
                f"efficiency: tiles = {self.tiles!r}: give some of [rows, columns, part]"
            )
        for value in (value for tile in tiles for value in tile):
            require_positive("efficiency: a tile's rows, columns or part", value)
        require_positive("efficiency: memory", self.memory)
        if not isinstance(self.shares_rounds, bool):
            raise InputError(
                f"efficiency: shares_rounds = {self.shares_rounds!r}: give True or False"
            )
        for what, value in (
            ("kernel_s", self.kernel_s),
            *((f"attention_tail of {way}", tail) for way, tail in self.attention_tail.items()),
            *(
                (f"attention_block_s of {way}", each)
                for way, each in self.attention_block_s.items()
            ),
        ):
            if not number(value) or not 0 <= value < float("inf"):
                raise InputError(f"efficiency: {what} = {value!r}: give a finite number, 0 or more")
        require_source("efficiency", self.source)


@cache
def efficiencies() -> dict[str, Efficiency]:
    """{name of a GPU or of an architecture: `Efficiency`}, of data/kernels.json."""
    data = json.loads((files("simlab.spec") / "data" / "kernels.json").read_text(encoding="utf-8"))
    return {
        name: Efficiency(**{k: v for k, v in entry.items() if k != "gpus"})
        for entry in data
        for name in entry["gpus"]
    }


@with_field_docs
@dataclass(frozen=True, kw_only=True, repr=False)
class Gpu:
    """An accelerator as its data sheet describes it, or a CPU process that stands for one."""

    name: str = documented("The name under which the GPU is shown.")
    peak_flops: dict[str, float] = documented(
        """{precision: floating-point operations per second}, without the factor 2 of structured
        sparsity. Precisions from fp16 on use tensor cores, fp32 does not. A precision that the chip
        lacks is absent.""",
        hash=False,
    )
    memory_bytes: float = documented(
        """The memory that a program can allocate: the GiB that the driver reports, not the GB in the
        name."""
    )
    memory_bandwidth_bytes_per_s: float = documented("The bandwidth of that memory.")
    sms: int = documented(
        """The number of streaming multiprocessors. The blocks of a kernel run in waves of so
        many."""
    )
    efficiency: Efficiency | str | None = documented(
        """The fractions of these peaks that kernels reach, or the name of a GPU or an architecture of
        data/kernels.json that has them. None stands for those under its own name there, and without
        them for those of the nearest GPU (`simlab.cost.roofline.nearest`), which a prediction says.""",
        default=None,
        hash=False,
    )
    source: str = documented("Where the figures are from.")

    def __repr__(self) -> str:
        return f"Gpu({self.name!r}, {bytes_text(self.memory_bytes)}, {self.sms} SMs)"

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise InputError(f"a Gpu's name = {self.name!r}: give a text")
        if (
            not isinstance(self.peak_flops, dict)
            or not self.peak_flops
            or not set(self.peak_flops) <= set(PRECISIONS)
        ):
            named = isinstance(self.peak_flops, dict) and ", ".join(map(str, self.peak_flops))
            raise InputError(
                f"{self.name}: peak_flops of {named or repr(self.peak_flops)}: give numbers of some of {', '.join(PRECISIONS)}"
            )
        for precision, flops in self.peak_flops.items():
            require_positive(f"{self.name}: peak_flops of {precision}", flops)
        for name in ("memory_bytes", "memory_bandwidth_bytes_per_s"):
            require_positive(f"{self.name}: {name}", getattr(self, name))
        require_whole(f"{self.name}: sms", self.sms)
        known = isinstance(self.efficiency, str) and self.efficiency in efficiencies()
        if not known and not isinstance(self.efficiency, (Efficiency, type(None))):
            hint = did_you_mean(self.efficiency, efficiencies()) or ";"
            raise InputError(
                f"{self.name}: efficiency = {shortened(self.efficiency)}{hint} "
                f"there is {', '.join(efficiencies())}, or give an object with its figures"
            )
        require_source(self.name, self.source)

    @property
    def is_core(self) -> bool:
        """Whether it is a core of the host itself, which dispatches an op and then computes it."""
        return self.sms == 1

    def peak(self, precision: str) -> float:
        """Operations per second in `precision`; `InputError` where the chip does not have it."""
        if precision not in self.peak_flops:
            raise InputError(f"{self.name} has no {precision}; it has {', '.join(self.peak_flops)}")
        return self.peak_flops[precision]


# figures of a cluster's file that no machine has: mostly of another unit
# --------------------------------------------------------------------------------------------

UNSEEN = 1e15
"""Bytes per second, in a measured file, of what larger sizes took no longer for, as far as was seen: a
file has no infinity."""
PER_S = "bytes per second (450 GB/s are 450e9, 400 Gb/s are 50e9)"
BYTES = "bytes (80 GB are 80e9)"
SECONDS = "seconds (20 µs are 20e-6)"
PLAUSIBLE = {
    "memory_bytes": (1e8, 1e13, BYTES),
    "host_memory_bytes": (1e8, 1e15, BYTES),
    "memory_bandwidth_bytes_per_s": (1e8, 1e14, PER_S),
    "bandwidth_bytes_per_s": (1e5, UNSEEN, PER_S),
    "pcie_bytes_per_s": (1e6, 1e13, PER_S),
    "nvme_bytes_per_s": (1e5, 1e13, PER_S),
    "base_s": (0, 1, SECONDS),
    "hop_s": (0, 1, SECONDS),
    "message_s": (0, 1, SECONDS),
    "peak_flops": (1e8, 1e17, "operations per second (989 TFLOP/s are 989e12)"),
}
"""{figure: the least and the most that a machine has, and its unit}. 0 stands for what is not known."""


def require_plausible(facts: Mapping[str, Any]) -> None:
    """`InputError` for the first figure of a cluster's file that is off by orders of magnitude, with the
    unit that is meant."""
    for where, name, value in _figures(facts):
        least, most, unit = PLAUSIBLE[name]
        if number(value) and value > 0 and not least <= value <= most:
            raise InputError(f"{where} = {shortened(value)}: no machine has that; give {unit}")


def _figures(facts: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str, Any]]:
    """(where it stands, its name, its value) of each figure of `PLAUSIBLE` in a file."""
    for name, value in facts.items():
        if isinstance(value, dict) and name == "peak_flops":
            yield from ((f"{within}{name} of {its}", name, flops) for its, flops in value.items())
        elif isinstance(value, dict) and name in ("gpu", "intra", "inter"):
            yield from _figures(value, f"{name}: ")
        elif name in PLAUSIBLE:
            yield f"{within}{name}", name, value

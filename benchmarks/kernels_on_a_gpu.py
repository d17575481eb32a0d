"""What `benchmarks/bench_gpu.py` measured on a GPU, beside what the cost model predicts for it.

`python -m benchmarks.kernels_on_a_gpu [FILE.json]` prints two tables, of which docs/validation.md has
those of assets/measurements/kernels_on_an_h100.json. It needs no GPU.
"""

import json
import sys
from pathlib import Path
from statistics import mean, median, quantiles
from typing import Any, NamedTuple

from simlab.cost.roofline import kernel_s
from simlab.lowering.kernels import Attention, GroupedMatmul, Matmul, Memory
from simlab.spec.cluster import gpus
from simlab.units import MIB

MEASURED = Path(__file__).parent.parent / "assets" / "measurements" / "kernels_on_an_h100.json"
GPU = gpus()["h100-sxm-80gb"]
KINDS = {kind.__name__: kind for kind in (Matmul, GroupedMatmul, Attention, Memory)}
AT_LIMIT_W = 690
"""What an H100 draws at its power limit of 700 W, at least."""
CACHED_BYTES = 100 * MIB
"""Below it, what a kernel moves over and over comes from the cache (50 MB on an H100)."""


class Measured(NamedTuple):
    """A kernel that ran on the GPU."""

    name: str
    kernel: Matmul | Attention | Memory
    seconds: float
    alone_s: float | None
    """What it took alone, if `seconds` is beside another one."""
    beside: str
    """The multiprocessors that the other one occupied, and what it moved."""
    moved: float
    """The same, bytes/s."""

    @property
    def ratio(self) -> float:
        """Predicted over measured seconds."""
        return predicted_s(self.kernel) / self.seconds

    @property
    def slowdown(self) -> float:
        """How many times as long it took beside the other one."""
        return self.seconds / (self.alone_s or self.seconds)

    @property
    def predicted_slowdown(self) -> float:
        """The same as predicted, which counts `CHANNELS` multiprocessors whatever ran."""
        return kernel_s(self.kernel, GPU, beside_bytes_per_s=self.moved) / kernel_s(
            self.kernel, GPU
        )


def predicted_s(kernel: Matmul | Attention | Memory) -> float:
    """Seconds of `kernel` alone; of one called "fp8" without casts, for its operands are in 8 bits."""
    in_eight_bits = isinstance(kernel, Matmul) and kernel.name == "fp8"
    return kernel_s(kernel, GPU, "fp8" if in_eight_bits else "bf16")


def parts_of(path: Path | str = MEASURED) -> dict[str, list[dict[str, Any]]]:
    """{part: rows} of a file."""
    found = json.loads(Path(path).read_text(encoding="utf-8"))["parts"]
    return {name: part["rows"] for name, part in found.items()}


def kernels(rows: list[dict[str, Any]]) -> list[Measured]:
    """The rows that are of one kernel."""
    moved = {row["beside"]: row["bytes_per_s"] for row in rows if "bytes_per_s" in row}
    made = []
    for row in rows:
        if row.get("kind") in KINDS:
            given = {k: tuple(v) if isinstance(v, list) else v for k, v in row["kernel"].items()}
            beside = row.get("beside", "")
            kernel = KINDS[row["kind"]](**given)
            alone_s, its = row.get("alone_s"), moved.get(beside, 0.0)
            made.append(Measured(row["name"], kernel, row["seconds"], alone_s, beside, its))
    return made


def alone(parts: dict[str, list[dict[str, Any]]]) -> dict[str, list[Measured]]:
    """{what: the kernels that ran alone}, of the kinds of the first table."""
    each = {name: kernels(rows) for name, rows in parts.items()}
    large = [its for its in each["memory"] if its.kernel.size_bytes >= CACHED_BYTES]

    warm = [row for row in parts["sustained"] if row["watts"] > AT_LIMIT_W]

    def of(part: str, *names: str) -> list[Measured]:
        return [its for its in each[part] if its.kernel.name in names]

    return {
        "matrix products, forward and input gradient": of("products", "forward", "input"),
        "weight gradients, written in 16 bits": of("products", "weight"),
        "weight gradients, added in fp32 to a copy": each["weights"],
        "the same product of 8,192 x 8,192 x 8,192 for ten seconds": kernels(warm),
        "products in fp8, a scale for a tensor": [i for i in each["fp8"] if "by tensor" in i.name],
        "products in fp8, a scale for a row": [i for i in each["fp8"] if "by row" in i.name],
        "products of experts, one kernel": each["grouped"],
        "FlashAttention-2, forward": of("attentions", "forward"),
        "FlashAttention-2, backward": of("attentions", "backward"),
        "copies, additions, activation functions": [i for i in large if "norm" not in i.name],
        "norms": [its for its in large if "norm" in its.name],
        "cross-entropy and its gradient, op by op": of("rest", "loss"),
        "AdamW and clipping": of("rest", "fused", "lists", "clipping"),
    }


def met(parts: dict[str, list[dict[str, Any]]]) -> dict[tuple[str, str], list[Measured]]:
    """{(what ran, beside what): kernels} of the second table."""
    found: dict[tuple[str, str], list[Measured]] = {}
    for its in kernels(parts["beside"]):
        what = {Matmul: "products", Attention: "attention", Memory: "additions"}[type(its.kernel)]
        found.setdefault((what, its.beside), []).append(its)
    return found


def tables(path: Path | str = MEASURED) -> str:
    """Both tables, in Markdown."""
    parts = parts_of(path)
    rows = [["kernels", "number", "predicted over measured time, median", "middle half"]]
    for what, each in alone(parts).items():
        ratios = [its.ratio for its in each]
        low, _, high = quantiles(ratios, n=4, method="inclusive")
        rows.append([what, f"{len(each)}", f"{median(ratios):.2f}", f"{low:.2f} to {high:.2f}"])
    beside = [["kernels", "multiprocessors occupied, what moves", "times as long", "predicted", "mean error"]]  # fmt: skip
    for (what, other), each in met(parts).items():
        took, said = [its.slowdown for its in each], [its.predicted_slowdown for its in each]
        error = mean(abs(b / a - 1) for a, b in zip(took, said))
        span = f"{mean(took):.2f} ({min(took):.2f} to {max(took):.2f})"
        beside.append([what, other, span, f"{mean(said):.2f}", f"{error:.0%}"])
    return f"{table(rows)}\n{table(beside)}"


def table(rows: list[list[str]]) -> str:
    """A table in Markdown, whose first row is its head."""
    head, *rest = rows
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    print(tables(*sys.argv[1:2]), end="")

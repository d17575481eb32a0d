"""What of the differences between the machines of ranks breaks a training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from simlab.operations.doctor.findings import FINE, LOUD, SILENT, Finding
from simlab.operations.doctor.interfaces import LOOPBACK, VARIABLES, chosen
from simlab.operations.doctor.machine import Machine

MOST_SKEW_S = 0.5
SPREAD = 1.5
"""A rank that is this many times slower than the median is named."""


class _Same(NamedTuple):
    """Something that should be the same on all ranks."""

    subject: str
    level: str
    of: Callable[[Machine], Any]
    why: str


def _of_torch(name: str) -> Callable[[Machine], Any]:
    return lambda machine: machine.torch.get(name)


def _variables(*prefixes: str) -> Callable[[Machine], Any]:
    def some(machine: Machine) -> dict[str, str]:
        own = ("CUDA_VISIBLE_DEVICES",)  # a launcher may give each rank a device of its own
        return {
            variable: text
            for variable, text in machine.environment.items()
            if variable.startswith(prefixes) and variable not in own
        }

    return some


SAME = (
    _Same("torch", LOUD, lambda m: m.versions.get("torch"), "collectives may hang or fail"),
    _Same("NCCL", LOUD, _of_torch("nccl"), "communicators of unlike versions do not form"),
    _Same("CUDA", LOUD, _of_torch("cuda"), "ranks on a CPU and on a GPU do not find each other"),
    _Same("Python", LOUD, lambda m: m.python.rsplit(".", 1)[0], "packages and pickles differ"),
    _Same("GPU", SILENT, lambda m: sorted(set(m.gpus)), "the slowest kind sets the pace of all"),
    _Same("driver", SILENT, lambda m: m.driver, "kernels and clocks may differ"),
    _Same("cores", SILENT, lambda m: m.cores, "data loading and dispatch are slower on some"),
    _Same("TF32", SILENT, _of_torch("tf32"), "replicas round differently, and drift apart"),
    _Same("determinism", SILENT, _of_torch("deterministic"), "runs cannot be repeated"),
    _Same("numpy", SILENT, lambda m: m.versions.get("numpy"), "random data may differ"),
    _Same(
        "NCCL_ and GLOO_ variables", LOUD, _variables("NCCL_", "TORCH_NCCL_", "GLOO_"),
        "ranks choose unlike algorithms, transports or time limits, and hang",
    ),
    _Same(
        "OMP_, CUDA_ and PYTORCH_ variables", SILENT,
        _variables("OMP_", "CUDA_", "PYTORCH_", "CUBLAS_", "NVIDIA_TF32"), "speed or rounding differs",
    ),
    _Same("open files", LOUD, lambda m: m.open_files, "the rank with fewest fails first, late"),
)  # fmt: skip


def differences(
    machines: Sequence[Machine],
    *,
    skews_s: Sequence[float] = (),
    bytes_per_s: Sequence[float] = (),
) -> list[Finding]:
    """What differs between the ranks that should not.

    machines: of each rank. skews_s: what the wall clock of each is ahead of rank 0's. bytes_per_s:
    what each rank reaches in the same collective or towards its neighbour.
    """
    found = [_difference(one, [one.of(machine) for machine in machines]) for one in SAME]
    found += _interfaces(machines)
    clocks = [rank for rank, skew in enumerate(skews_s) if abs(skew) > MOST_SKEW_S]
    if skews_s:
        worst = max(abs(skew) for skew in skews_s)
        to_do = "logs and traces do not line up, and tokens expire early: start chrony or ntpd"
        text = f"at most {worst * 1e3:.1f} ms apart"
        found.append(
            Finding(SILENT, "clocks", f"{text}: {_ranks(clocks)}", to_do)
            if clocks
            else Finding(FINE, "clocks", text)
        )
    found += _slow("links", list(bytes_per_s), "the slowest link sets the pace of collectives")
    disks = [machine.disk_bytes_per_s or 0.0 for machine in machines]
    return found + _slow("disks", disks, "a checkpoint waits for the slowest disk")


def _difference(one: _Same, values: Sequence[Any]) -> Finding:
    texts = [_text(value) for value in values]
    if len(set(texts)) <= 1:
        return Finding(FINE, one.subject, f"the same: {texts[0] if texts else '-'}")
    usual = max(sorted(set(texts)), key=texts.count)
    others = {
        text: [r for r, its in enumerate(texts) if its == text] for text in sorted(set(texts))
    }
    odd = "; ".join(f"{_ranks(ranks)} {text}" for text, ranks in others.items() if text != usual)
    found = f"{odd}; the others {usual}"
    return Finding(one.level, one.subject, found, f"{one.why}: make them the same")


def _interfaces(machines: Sequence[Machine]) -> list[Finding]:
    """For each variable that a rank has: the ranks on which nothing is left of it, or the loopback only
    although there are ranks on another machine."""
    found = []
    alone = len({machine.host for machine in machines}) == 1
    for variable in VARIABLES:
        texts = [machine.environment.get(variable) for machine in machines]
        left = [
            None if text is None else chosen(variable, text, machine.interfaces)
            for text, machine in zip(texts, machines)
        ]
        without = [
            rank
            for rank, its in enumerate(left)
            if its is not None
            and (not its.left or (variable.startswith("GLOO") and its.missing)
                 or (its.left == (LOOPBACK,) and machines[rank].interfaces and not alone))
        ]  # fmt: skip
        if without:
            names = ", ".join(sorted({str(texts[rank]) for rank in without}))
            others = sorted(
                {one for its in left if its and its.left for one in its.left} - {LOOPBACK}
            )
            text = f"{_ranks(without)} without an interface of {names}; the others: {', '.join(others) or 'none'}"
            to_do = (
                "these ranks end, or wait for the others: name interfaces that are on every machine"
            )
            found.append(Finding(LOUD, variable, text, to_do))
    return found


def _slow(subject: str, speeds: Sequence[float], why: str) -> list[Finding]:
    if not any(speeds):
        return []
    usual = sorted(speeds)[len(speeds) // 2]
    slow = [rank for rank, speed in enumerate(speeds) if speed * SPREAD < usual]
    found = f"{min(speeds) / 1e6:,.0f} to {max(speeds) / 1e6:,.0f} MB/s"
    if slow:
        return [Finding(SILENT, subject, f"{found}: {_ranks(slow)}", why)]
    return [Finding(FINE, subject, found)]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return " ".join(f"{name}={text}" for name, text in sorted(value.items())) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return "none" if value is None else str(value)


def _ranks(ranks: Sequence[int]) -> str:
    """'rank 3' or 'ranks 0, 3'; no more than eight of them."""
    shown = ", ".join(map(str, ranks[:8])) + ", ..." * (len(ranks) > 8)
    return f"rank{'s' * (len(ranks) > 1)} {shown}"

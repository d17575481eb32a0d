"""What of a machine, or of the differences between the machines of ranks, breaks a training."""

from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, NamedTuple

from simlab.errors import shortened
from simlab.operations.doctor.machine import Machine
from simlab.units import GIB, bytes_text

FINE, SILENT, LOUD = "fine", "silent", "loud"
"""Fine; it costs speed or changes results without an error; the training ends with an error."""
LEAST_SHARED = 1 * GIB
LEAST_FILES, FILES_PER_RANK = 512, 8
"""Open files and sockets of a process: Python's, torch's, data's; and those for each other rank."""
SLOW_DISK = 200e6
LEAST_FREE = 5 * GIB
MOST_SKEW_S = 0.5
SPREAD = 1.5
"""A rank that is this many times slower than the median is named."""


class Finding(NamedTuple):
    """One thing that was looked at."""

    level: Annotated[str, (FINE, SILENT, LOUD)]
    subject: str
    found: str
    to_do: str = ""
    """What to do, where it is not fine."""


def findings(machine: Machine, *, ranks: int = 1) -> list[Finding]:
    """What was found on one machine, on which `ranks` ranks would run."""
    return [
        _cores(machine, ranks),
        _memory(machine),
        _shared_memory(machine),
        _open_files(machine, ranks),
        _gpus(machine, ranks),
        _torch(machine),
        _network(machine),
        _port(machine),
        _disk(machine),
        _notebook(machine),
        _font(machine),
    ]


def _cores(machine: Machine, ranks: int) -> Finding:
    found = f"{machine.cores} for {ranks} rank{'s' * (ranks > 1)}"
    threads = machine.environment.get("OMP_NUM_THREADS", "")
    if machine.cores < ranks:
        return Finding(
            SILENT, "cores", found, "ranks take turns: times mean little; use fewer ranks"
        )
    # a number of more digits is no int, but more than there are cores
    if threads.isdecimal() and (len(threads) > 9 or int(threads) * ranks > machine.cores):
        more = f"{found}, OMP_NUM_THREADS {threads if len(threads) <= 9 else shortened(threads)}"
        return Finding(SILENT, "cores", more, f"set OMP_NUM_THREADS to {machine.cores // ranks}")
    return Finding(FINE, "cores", found)


def _memory(machine: Machine) -> Finding:
    if machine.free_memory_bytes is None or machine.memory_bytes is None:
        return Finding(FINE, "memory", "not said by this system")
    free = min(machine.free_memory_bytes, machine.memory_bytes)
    found = f"{bytes_text(free)} free of {bytes_text(machine.memory_bytes)}"
    if free < 1 * GIB:
        return Finding(LOUD, "memory", found, "a process may be killed without a word; free some")
    return Finding(FINE, "memory", found)


def _shared_memory(machine: Machine) -> Finding:
    if machine.shared_memory_bytes is None:
        return Finding(FINE, "shared memory", "no /dev/shm on this system")
    found = f"{bytes_text(machine.shared_memory_bytes)} free in /dev/shm"
    if machine.shared_memory_bytes < LEAST_SHARED:
        to_do = "a data loader or NCCL ends with a bus error; in a container give --shm-size or --ipc=host"
        return Finding(LOUD, "shared memory", found, to_do)
    return Finding(FINE, "shared memory", found)


def _open_files(machine: Machine, ranks: int) -> Finding:
    least = LEAST_FILES + FILES_PER_RANK * ranks
    found = "not said" if machine.open_files is None else f"at most {machine.open_files:,}"
    if machine.open_files is not None and 0 <= machine.open_files < least:
        to_do = "'too many open files' comes at scale, late; ulimit -n 65536"
        return Finding(LOUD, "open files", found, to_do)
    return Finding(FINE, "open files", found)


def _gpus(machine: Machine, ranks: int) -> Finding:
    if not machine.gpus:
        return Finding(FINE, "GPUs", "none; ranks run on the CPU with gloo")
    kinds = sorted(set(machine.gpus))
    found = f"{len(machine.gpus)} x {', '.join(kinds)}, driver {machine.driver}"
    if machine.torch and not machine.torch.get("cuda"):
        to_do = "torch sees no GPU: it is a CPU build, or its CUDA is newer than the driver"
        return Finding(SILENT, "GPUs", found, to_do)
    if len(kinds) > 1:
        return Finding(SILENT, "GPUs", found, "the slowest kind sets the pace of all")
    if len(machine.gpus) < ranks:
        to_do = f"{ranks} ranks need {ranks} GPUs, or --device cpu"
        return Finding(LOUD, "GPUs", found, to_do)
    return Finding(FINE, "GPUs", found)


def _torch(machine: Machine) -> Finding:
    if "torch" not in machine.versions:
        return Finding(FINE, "torch", "not installed: simlab runs, realrun does not")
    found = machine.versions["torch"]
    if machine.torch:
        backends = [name for name in ("gloo", "nccl") if machine.torch.get(name)]
        found += f", with {' and '.join(backends) or 'no back-end of torch.distributed'}"
        if machine.gpus and not machine.torch.get("nccl"):
            return Finding(LOUD, "torch", found, "GPUs need NCCL: install a CUDA build of torch")
    return Finding(FINE, "torch", found)


def _network(machine: Machine) -> Finding:
    found = ", ".join(machine.interfaces) or "loopback only"
    chosen = {machine.environment.get(f"{one}_SOCKET_IFNAME") for one in ("GLOO", "NCCL")} - {None}
    unknown = sorted(
        str(name) for name in chosen if str(name).strip("^=") not in (*machine.interfaces, "lo")
        and "," not in str(name) and not any(i.startswith(str(name).strip("^=")) for i in machine.interfaces)
    )  # fmt: skip
    if unknown:
        to_do = f"SOCKET_IFNAME names {', '.join(unknown)}, which is not here: unset or change it"
        return Finding(LOUD, "network", found, to_do)
    if not machine.resolves:
        to_do = f"the name {machine.host!r} has no address; put it into /etc/hosts"
        return Finding(LOUD, "network", found, to_do)
    if len(machine.interfaces) > 1 and not chosen:
        to_do = "libraries choose one; for several nodes name it: NCCL_SOCKET_IFNAME, GLOO_SOCKET_IFNAME"
        return Finding(SILENT, "network", found, to_do)
    return Finding(FINE, "network", found)


def _port(machine: Machine) -> Finding:
    if machine.port_free:
        return Finding(FINE, "port", f"{machine.port} is free")
    to_do = "a second torchrun cannot start; give another --master-port, or end the first"
    return Finding(LOUD, "port", f"{machine.port} is in use", to_do)


def _disk(machine: Machine) -> Finding:
    speed, free = machine.disk_bytes_per_s, machine.disk_free_bytes
    if speed is None:
        return Finding(LOUD, "disk", "cannot be written", "give a folder that can be: --folder")
    found = f"{speed / 1e6:,.0f} MB/s by one process, {bytes_text(free or 0)} free"
    if free is not None and free < LEAST_FREE:
        return Finding(
            LOUD, "disk", found, "checkpoints will fill it; free some, keep fewer (--keep)"
        )
    if speed < SLOW_DISK:
        to_do = f"1e9 parameters (14 GB) take {14e9 / speed:,.0f} s a checkpoint: write beside the training"
        return Finding(SILENT, "disk", found, to_do)
    return Finding(FINE, "disk", found)


def _notebook(machine: Machine) -> Finding:
    needed = ("jupyterlab", "ipywidgets", "anywidget")
    missing = [name for name in needed if name not in machine.versions]
    if missing:
        to_do = "lessons do not open; pip install 'simlab-realrun[notebooks]'"
        return Finding(SILENT, "notebooks", f"without {', '.join(missing)}", to_do)
    found = ", ".join(f"{name} {machine.versions[name]}" for name in needed)
    return Finding(FINE, "notebooks", found)


def _font(machine: Machine) -> Finding:
    if machine.chinese_font:
        return Finding(FINE, "fonts", "Chinese is there")
    to_do = "Chinese words in pictures are boxes; install fonts-noto-cjk"
    return Finding(SILENT, "fonts", "no Chinese one", to_do)


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

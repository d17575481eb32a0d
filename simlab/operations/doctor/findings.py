"""What of a machine breaks a training."""

from typing import Annotated, NamedTuple

from simlab.errors import shortened
from simlab.operations.doctor.interfaces import LOOPBACK, VARIABLES, chosen
from simlab.operations.doctor.machine import NOTEBOOK, Machine
from simlab.units import GIB, bytes_text

FINE, SILENT, LOUD = "fine", "silent", "loud"
"""Fine; it costs speed or changes results without an error; the training ends with an error."""
LEAST_SHARED = 1 * GIB
LEAST_FILES, FILES_PER_RANK = 512, 8
"""Open files and sockets of a process: Python's, torch's, data's; and those for each other rank."""
SLOW_DISK = 200e6
LEAST_FREE = 5 * GIB


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
        found = "not installed: simlab runs, realrun does not (pip install torch), lessons show recorded runs"
        return Finding(FINE, "torch", found)
    found = machine.versions["torch"]
    if machine.torch:
        backends = [name for name in ("gloo", "nccl") if machine.torch.get(name)]
        found += f", with {' and '.join(backends) or 'no back-end of torch.distributed'}"
        if machine.gpus and not machine.torch.get("nccl"):
            return Finding(LOUD, "torch", found, "GPUs need NCCL: install a CUDA build of torch")
    return Finding(FINE, "torch", found)


def _network(machine: Machine) -> Finding:
    found = ", ".join(machine.interfaces) or "loopback only"
    given = {one: machine.environment[one] for one in VARIABLES if one in machine.environment}
    for variable, text in given.items():
        left, missing = chosen(variable, text, machine.interfaces)
        said = f"{variable} = {shortened(text)}"
        if not left or (missing and not variable.startswith("NCCL")):
            exact = ", which takes whole names," if variable.startswith("GLOO") else ""
            what = (
                f"names {', '.join(missing)}{exact} not here" if missing else "leaves no interface"
            )
            return Finding(LOUD, "network", found, f"{said} {what}: unset or change it")
        if left == (LOOPBACK,) and machine.interfaces:
            to_do = f"{said} leaves the loopback only: other machines are not reached; name one of {found}"
            return Finding(LOUD, "network", found, to_do)
        if missing:
            to_do = f"{said} names {', '.join(missing)}, not here: {', '.join(left)} is used alone"
            return Finding(SILENT, "network", found, to_do)
    if not machine.resolves:
        to_do = f"the name {machine.host!r} has no address; put it into /etc/hosts"
        return Finding(LOUD, "network", found, to_do)
    if len(machine.interfaces) > 1 and not given:
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
    missing = [name for name in NOTEBOOK if name not in machine.versions]
    if missing:
        to_do = f"lessons do not open; pip install {' '.join(missing)}"
        return Finding(SILENT, "notebooks", f"without {', '.join(missing)}", to_do)
    found = ", ".join(f"{name} {machine.versions[name]}" for name in NOTEBOOK[:3])
    return Finding(FINE, "notebooks", found)


def _font(machine: Machine) -> Finding:
    if machine.chinese_font:
        return Finding(FINE, "fonts", "Chinese is there")
    to_do = "Chinese words in pictures are boxes; install a font such as Noto Sans CJK (Debian: apt-get install fonts-noto-cjk)"
    return Finding(SILENT, "fonts", "no Chinese one", to_do)

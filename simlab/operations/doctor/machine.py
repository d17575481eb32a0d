"""What a machine has that a training needs: read from the system, without torch."""

import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from simlab.errors import InputError
from simlab.units import MIB

NOTEBOOK = ("jupyterlab", "ipywidgets", "anywidget", "markdown-it-py", "matplotlib", "pillow")
"""What lessons need, by the names that pip finds."""
PACKAGES = ("torch", "numpy", "simpy", *NOTEBOOK)
PREFIXES = ("NCCL_", "TORCH_NCCL_", "GLOO_", "OMP_", "CUDA_", "PYTORCH_", "CUBLAS_", "NVIDIA_TF32")
"""Variables of the environment that change a training."""
CJK = ("NotoSansCJK", "NotoSansSC", "NotoSerifCJK", "wqy", "SourceHanSans", "DroidSansFallback")
"""Beginnings of the names of font files that have Chinese characters."""
FONT_FOLDERS = ("/usr/share/fonts", "/usr/local/share/fonts", "~/.fonts", "~/.local/share/fonts",
                "/System/Library/Fonts", "C:/Windows/Fonts")  # fmt: skip
WRITTEN_BYTES = 32 * MIB
PORT = 29_500
"""torchrun's port, where none is given."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """What was found; None stands for what the system does not say."""

    host: str
    system: str
    python: str
    cores: int
    """Processors that this process may use."""
    memory_bytes: float | None = None
    """Memory that it may have: the machine's, or the limit of its container."""
    free_memory_bytes: float | None = None
    shared_memory_bytes: float | None = None
    """What is free in /dev/shm, which data loaders and NCCL use."""
    open_files: int | None = None
    """How many files and sockets it may have open."""
    gpus: tuple[str, ...] = ()
    driver: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    """{package: version} of those that are installed."""
    interfaces: tuple[str, ...] = ()
    """Network interfaces, without the loopback."""
    resolves: bool = True
    """Whether the name of the host leads to an address."""
    port_free: bool = True
    """Whether the rendezvous port can be had."""
    port: int = PORT
    environment: Mapping[str, str] = field(default_factory=dict)
    disk_bytes_per_s: float | None = None
    """What one process writes to the folder of checkpoints, down to the disk."""
    disk_free_bytes: float | None = None
    chinese_font: bool = False
    torch: Mapping[str, Any] = field(default_factory=dict)
    """What only torch knows; empty where it was not asked."""

    @staticmethod
    def of(facts: Mapping[str, Any]) -> "Machine":
        """A machine from plain values, as another rank sent them."""
        names = {one.name for one in fields(Machine)}
        given = {name: value for name, value in facts.items() if name in names}
        for name in ("gpus", "interfaces"):
            given[name] = tuple(given.get(name, ()))
        return Machine(**given)


def examined(folder: str | Path = ".", *, port: int = PORT, write: bool = True) -> Machine:
    """This machine. folder: where checkpoints would be written; `write` times a file of 32 MiB there
    and removes it. Raises `InputError` if the folder is none, or the port cannot be."""
    check_place(folder, port)
    folder = Path(folder)
    gpus, driver = _gpus()
    return Machine(
        host=socket.gethostname(),
        system=f"{platform.system()} {platform.release()}",
        python=platform.python_version(),
        cores=_cores(),
        memory_bytes=_memory_bytes(),
        free_memory_bytes=_meminfo("MemAvailable"),
        shared_memory_bytes=_free_bytes("/dev/shm"),
        open_files=_open_files(),
        gpus=gpus,
        driver=driver,
        versions=_versions(),
        interfaces=_interfaces(),
        resolves=_resolves(),
        port_free=_port_free(port),
        port=port,
        environment={
            variable: os.environ[variable]
            for variable in sorted(os.environ)
            if variable.startswith(PREFIXES)
        },
        disk_bytes_per_s=_disk_bytes_per_s(folder) if write else None,
        disk_free_bytes=_free_bytes(folder),
        chinese_font=_chinese_font(),
    )


def check_place(folder: str | Path, port: int) -> None:
    """`InputError` unless there is such a folder, and such a port can be."""
    if not Path(folder).is_dir():
        raise InputError(f"folder {str(folder)!r}: there is no such folder")
    if not 1 <= port <= 65_535:
        raise InputError(f"port {port}: give 1 to 65535")


def _cores() -> int:
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS, Windows
        return os.cpu_count() or 1


def _meminfo(name: str) -> float | None:
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024.0 for line in lines if line.startswith(name)), None)


def _memory_bytes() -> float | None:
    """The machine's memory, or the limit of the container if that is less."""
    found = [_meminfo("MemTotal")]
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            found.append(float(Path(path).read_text(encoding="utf-8")))
        except (OSError, ValueError):  # no container, or 'max'
            pass
    known = [each for each in found if each]
    return min(known) if known else None


def _free_bytes(folder: str | Path) -> float | None:
    try:
        return float(shutil.disk_usage(folder).free)
    except OSError:
        return None


def _open_files() -> int | None:
    try:
        import resource
    except ImportError:  # Windows
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _gpus() -> tuple[tuple[str, ...], str | None]:
    """(names of GPUs, version of the driver), as nvidia-smi tells them."""
    command = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError):
        return (), None
    rows = [line.rsplit(",", 1) for line in done.stdout.splitlines() if "," in line]
    if done.returncode or not rows:
        return (), None
    return tuple(name.strip() for name, _ in rows), rows[0][1].strip()


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            pass
    return found


def _interfaces() -> tuple[str, ...]:
    try:
        return tuple(sorted(name for _, name in socket.if_nameindex() if name != "lo"))
    except (OSError, AttributeError):
        return ()


def _resolves() -> bool:
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return False
    return True


def _port_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _disk_bytes_per_s(folder: Path) -> float | None:
    """Bytes per second of one file that is written and flushed to the disk; None if it cannot be."""
    block = os.urandom(MIB)
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            begin_s = time.perf_counter()
            for _ in range(WRITTEN_BYTES // MIB):
                file.write(block)
            file.flush()
            os.fsync(file.fileno())
            return WRITTEN_BYTES / (time.perf_counter() - begin_s)
    except OSError:
        return None


def _chinese_font() -> bool:
    if sys.platform in ("darwin", "win32"):
        return True  # both come with one
    found = (
        path.name
        for folder in FONT_FOLDERS
        for path in Path(folder).expanduser().rglob("*.[to]t[fc]")
    )
    return any(font.startswith(CJK) for font in found)

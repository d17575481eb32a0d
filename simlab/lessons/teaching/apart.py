"""It calls a learner's function in a process of its own, with limits, for it is other people's code.

The process ends with its time, may take so much memory, and has an empty folder, no input and no output. An
audit hook refuses what no exercise asks for: processes, signals, connections, and changes to files. That
stops what goes wrong and what is tried; it is no prison for somebody who breaks out of Python itself.
What the function answers comes back as plain values, and is judged here. Who reads simlab, or looks at the
process, finds the right answers there.
"""

import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from numbers import Integral, Real
from typing import Any, NamedTuple

from simlab.errors import InputError
from simlab.lessons.exercise import Outcome
from simlab.spec.plan import Plan

MOST_ANSWER_BYTES = 2_000_000
"""What a function may answer, in all."""
CALM_S = 0.2
"""What a process may take beyond its time, to say in which line it was."""
REFUSED = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.", "pty.",
    "os.kill", "signal.", "socket.", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod",
    "os.chown", "os.link", "os.symlink", "os.mkdir", "os.utime", "shutil.", "ctypes.", "resource.",
    "urllib.", "ftplib.", "smtplib.", "telnetlib.", "webbrowser.", "mmap.",
)  # fmt: skip
"""How the names of audit events begin that a judged function may not cause."""
PIPE = 3
"""The file descriptor through which the process answers."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Limits(NamedTuple):
    """What a function may take on all its sets of parameters."""

    seconds: float
    memory_bytes: float


class Ended(NamedTuple):
    """How a process ended that said nothing: after its time, or by itself, `how`."""

    late: bool
    how: str = ""


def outcomes_apart(
    answers: Callable[[], Sequence[Outcome]], limits: Limits
) -> list[Outcome] | Ended:
    """What `answers`, which calls learners' code, gives in a process of its own. `InputError` on a system
    that has no `fork`."""
    if not hasattr(os, "fork"):
        raise InputError("this system cannot limit a process: grade on Linux or macOS, or in WSL")
    here, there = os.pipe()
    with tempfile.TemporaryDirectory(prefix="simlab-grade-") as folder:
        if not (child := os.fork()):
            _in_child(answers, limits, there, folder)
        os.close(there)
        try:
            said, late = _read(here, time.monotonic() + limits.seconds + CALM_S)
        finally:
            os.close(here)
            status = _end(child)
    try:
        return [Outcome(_value(each[0]), *_told(each)) for each in json.loads(said)]
    except (InputError, ValueError, TypeError, KeyError, IndexError, RecursionError):
        return Ended(late, _how(status, len(said)))


def _told(each: Any) -> tuple[str, int, bool]:
    _, error, line, ended = each
    if not (isinstance(error, str) and isinstance(line, int) and isinstance(ended, bool)):
        raise ValueError("no outcome")
    return error, line, ended


def _read(pipe: int, end_s: float) -> tuple[bytes, bool]:
    """(what the process says, whether its time was over)."""
    parts, size = [], 0
    while size <= MOST_ANSWER_BYTES:
        if (left := end_s - time.monotonic()) <= 0 or not select.select([pipe], [], [], left)[0]:
            return b"", True
        if not (part := os.read(pipe, 2**16)):
            break
        parts.append(part)
        size += len(part)
    return (b"".join(parts) if size <= MOST_ANSWER_BYTES else b""), False


def _end(child: int) -> int:
    """End the process and what it has started; returns how it ended."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has not made its group yet, or is gone
        os.kill(child, signal.SIGKILL)
    return os.waitpid(child, 0)[1]


def _how(status: int, size: int) -> str:
    if size:
        return "what it said is no answer"
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number and number != signal.SIGKILL:
        return signal.Signals(number).name
    return f"exit status {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else "it said nothing"


# in the process of its own
# ---------------------------------------------------------------------------------------------


def _in_child(
    answers: Callable[[], Sequence[Outcome]], limits: Limits, pipe: int, folder: str
) -> None:
    """Answer through `pipe` and end this process, whatever happens."""
    try:
        os.dup2(pipe, PIPE)
        _confine(limits, folder)
        _say([(_plain(each.answer), *each[1:]) for each in answers()])
    except BaseException as error:  # also what a function raises to leave
        _say([(None, f"{type(error).__name__}: {error}"[:2000], 0, True)])
    finally:
        os._exit(0)


def _say(told: Sequence[Any]) -> None:
    content = json.dumps(told).encode("utf-8", "replace")
    while content:
        content = content[os.write(PIPE, content) :]


def _confine(limits: Limits, folder: str) -> None:
    import resource  # which Windows has not

    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(nothing, stream)
    os.closerange(PIPE + 1, 4096)
    os.chdir(folder)
    os.environ.clear()
    os.environ |= {
        "HOME": folder,
        "TMPDIR": folder,
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    most = int(limits.seconds) + 2
    for what, value in (
        (resource.RLIMIT_CPU, most),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NPROC, 0),
        (resource.RLIMIT_AS, _taken_bytes() + int(limits.memory_bytes)),
    ):
        resource.setrlimit(what, (value, value))
    sys.dont_write_bytecode = True
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115
    sys.addaudithook(_refuse)


def _taken_bytes() -> int:
    """The address space that this process has already."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**33  # no Linux


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open":
        _, mode, flags = arguments
        written = isinstance(mode, str) and {*"wax+"} & {*mode}
        if not written and not (isinstance(flags, int) and flags & WRITES):
            return
    elif not event.startswith(REFUSED) or (event == "ctypes.dlopen" and arguments[0] is None):
        return  # the import of ctypes opens this program itself
    raise PermissionError(f"{event}: a function that is judged may not do this")


# plain values, there and back
# ---------------------------------------------------------------------------------------------


def _plain(value: Any) -> Any:
    """`value` as JSON has it; something that no exercise asks for as its text."""
    if value is ...:
        return None
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, Mapping):
        return {"table": [[_plain(key), _plain(its)] for key, its in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [*map(_plain, value)]}
    if isinstance(value, Set):
        return {"set": [*map(_plain, value)]}
    if isinstance(value, Plan):
        return {"plan": value.to_dict()}
    return {"other": f"{type(value).__name__}: {value!r}"[:500]}


def _value(plain: Any) -> Any:
    if not isinstance(plain, dict):
        if isinstance(plain, list):
            raise ValueError("no value")
        return plain
    ((kind, its),) = plain.items()
    if kind == "table":
        return {_value(key): _value(value) for key, value in its}
    if kind == "other":
        return str(its)
    if kind == "plan":
        return Plan(**its)
    return {"list": list, "tuple": tuple, "set": set}[kind](map(_value, its))

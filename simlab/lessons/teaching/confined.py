"""It calls learners' functions in a process that holds no answers: it was given the sets of parameters, and
gives back what a function answers to them.

`serve` runs in an interpreter of its own, which `apart` starts, and forks a process for each function. That one
ends with its time, may take so much memory, and has an empty folder, no input and no output. An audit hook
refuses what no exercise asks for: processes, signals, connections, changes to files, and to read any file but
those of Python's own folders and of simlab without its exercises, words and notebooks. That stops what goes
wrong and what is tried; it is no prison for somebody who breaks out of Python itself.
"""

import json
import marshal
import os
import pickle
import select
import signal
import site
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence, Set
from inspect import signature
from math import ceil
from numbers import Integral, Real
from pathlib import Path
from typing import Any, NamedTuple

from simlab.lessons.exercise import Outcome, outcomes
from simlab.spec.plan import Plan

MOST_ANSWER_BYTES = 2_000_000
"""What a function may answer, in all."""
CALM_S = 0.2
"""What a process may take beyond its time, to say in which line it was."""
WALL = 10
"""How many times its seconds of the processor a process may take by the clock: it may wait, or the machine be busy."""
OTHER = "OtherArguments"
"""What is said of a function that takes other arguments."""
NOT_ALLOWED = "a function that is judged may not do this"
"""What is said of something `REFUSED`; the words have it as `form.not_allowed`."""
REFUSED = (
    "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system", "subprocess.", "pty.",
    "os.kill", "signal.", "socket.", "os.remove", "os.rename", "os.rmdir", "os.truncate", "os.chmod",
    "os.chown", "os.link", "os.symlink", "os.mkdir", "os.utime", "os.chdir", "os.fchdir", "shutil.", "ctypes.",
    "resource.", "urllib.", "ftplib.", "smtplib.", "telnetlib.", "webbrowser.", "mmap.", "sqlite3.", "gc.get_",
    "sys._current_",
)  # fmt: skip
"""How the names of audit events begin that a judged function may not cause."""
READS = ("open", "os.listdir", "os.scandir")
"""Audit events of something that is read, or written."""
UNHEARD = (
    "_posixsubprocess", "_testcapi", "_testinternalcapi", "_xxsubinterpreters", "_interpreters", "readline",
    "_dbm", "_gdbm",
)  # fmt: skip
"""Modules whose functions do things of which no hook hears."""
ANSWERS = ("lessons/subjects", "lessons/words", "lessons/notebooks", "lessons/recorded")
"""Folders of simlab that say what is right."""
PIPE = 3
"""The file descriptor through which the process answers."""
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


class Request(NamedTuple):
    """A function to call with each of `cases`: the code that makes it, once that of `needs` has run.

    limit_s: what it may compute on one of them; seconds, memory_bytes: what it may take on all, by the processor.
    """

    needs: Sequence[bytes]
    code: bytes
    cases: Sequence[Mapping[str, Any]]
    limit_s: float
    seconds: float
    memory_bytes: float


def serve() -> None:
    """Answer requests, pickles in stdin, until there are no more: each with a line of JSON on stdout,
    [what the function's process said, which limit was over: "too_long", "too_late" or "", how it ended]."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # its process is ended, too
    while True:
        try:
            request: Request = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        print(json.dumps(_answered(request)), flush=True)


def _answered(request: Request) -> tuple[str, str, str]:
    here, there = os.pipe()
    with tempfile.TemporaryDirectory(prefix="simlab-grade-") as folder:
        if not (child := os.fork()):
            _in_child(request, there, folder)
        os.close(there)
        try:
            said, late = _read(here, time.monotonic() + WALL * request.seconds)
        finally:
            os.close(here)
            status, computed_s = _end(child)
    over = "too_long" if computed_s >= request.seconds else "too_late" if late else ""
    return said.decode("utf-8", "replace"), over, _how(status, len(said))


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


def _end(child: int) -> tuple[int, float]:
    """End the process and what it has started; returns how it ended, and the seconds that it has computed."""
    try:
        os.killpg(child, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):  # it has not made its group yet, or is gone
        os.kill(child, signal.SIGKILL)
    _, status, used = os.wait4(child, 0)
    return status, used.ru_utime + used.ru_stime


def _how(status: int, size: int) -> str:
    if size:
        return "what it said is no answer"
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
    if number and number != signal.SIGKILL:
        return signal.Signals(number).name
    return f"exit status {os.WEXITSTATUS(status)}" if os.WIFEXITED(status) else "it said nothing"


# in the function's process
# ---------------------------------------------------------------------------------------------


def _in_child(request: Request, pipe: int, folder: str) -> None:
    """Answer through `pipe` and end this process, whatever happens."""
    try:
        os.dup2(pipe, PIPE)
        _limit(request, folder)
        confine(request.memory_bytes)
        _say([(plain(each.answer), *each[1:]) for each in _outcomes(request)])
    except BaseException as error:  # also what a function raises to leave
        _say([(None, f"{type(error).__name__}: {error}"[:2000], 0, True)])
    finally:
        os._exit(0)


def _outcomes(request: Request) -> Sequence[Outcome]:
    names: dict[str, Any] = {"__name__": "handed_in"}
    for code in request.needs:
        exec(marshal.loads(code), names)
    function = eval(marshal.loads(request.code), names)
    try:
        signature(function).bind(**dict.fromkeys(request.cases[0]))
    except TypeError:
        return [Outcome(error=OTHER)]
    return outcomes(function, request.cases, request.limit_s)


def _say(told: Sequence[Any]) -> None:
    content = json.dumps(told).encode("utf-8", "replace")
    while content:
        content = content[os.write(PIPE, content) :]


def _limit(request: Request, folder: str) -> None:
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
    most = ceil(request.seconds + CALM_S)
    resource.setrlimit(resource.RLIMIT_CPU, (most, most))
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    sys.stdin = sys.stdout = sys.stderr = open(os.devnull, "r+", encoding="utf-8")  # noqa: SIM115


def _taken_bytes() -> int:
    """The address space that this process has already."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 2**33  # no Linux


def confine(memory_bytes: float) -> None:
    """Refuse from here on, in all of this process, what a judged function may not do, and give it no more than
    so much memory."""
    import resource  # which Windows has not

    for what, value in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_AS, _taken_bytes() + int(memory_bytes)),
    ):
        resource.setrlimit(what, (value, value))
    sys.dont_write_bytecode = True
    _start_nothing()
    package = Path(__file__).parents[2]
    paths = sysconfig.get_paths()
    own = [Path(paths[name]) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    readable = [*own, *map(Path, site.getsitepackages()), package, package.with_name("realrun")]
    hidden = [*(package / name for name in ANSWERS), package.with_name("realrun") / "lessons"]
    sys.addaudithook(_refusing(_inside(readable), _inside(hidden)))


def _inside(folders: Sequence[Path]) -> tuple[str, ...]:
    """How the paths begin of what is in `folders`, as they are named and without links."""
    return tuple(f"{each}{os.sep}" for its in folders for each in (its, its.resolve()))


def _start_nothing() -> None:
    """Take away what starts a process unheard, whose module libraries import, and what signals one."""
    import _posixsubprocess

    def refused(*_: Any) -> None:
        raise PermissionError(f"processes: {NOT_ALLOWED}")

    started_by = sys.modules.get("subprocess", _posixsubprocess)
    vars(_posixsubprocess)["fork_exec"] = vars(started_by)["_fork_exec"] = refused
    for module in (os, sys.modules[os.name]):
        vars(module)["pidfd_open"] = refused


def _refusing(readable: tuple[str, ...], hidden: tuple[str, ...]) -> Callable[[str, Any], None]:
    """The hook. What it uses is its own, for a function may change every module."""
    refused, reads, modules, writes = REFUSED, READS, UNHEARD, WRITES
    kind, text, whole, error, up = type, str, int, PermissionError, f"{os.sep}..{os.sep}"
    said = NOT_ALLOWED

    def may_read(path: Any) -> bool:
        if kind(path) is whole:
            return True  # a file that is open
        if kind(path) is bytes:
            path = path.decode("utf-8", "surrogateescape")
        if kind(path) is not text or up in path:
            return False
        named = path + "/"
        return named.startswith(readable) and not named.startswith(hidden)

    def refuse(event: str, arguments: Any) -> None:
        if event in reads:
            written = event == "open" and (
                (kind(arguments[1]) is text and {*"wax+"} & {*arguments[1]})
                or (kind(arguments[2]) is whole and arguments[2] & writes)
            )
            if not written and may_read(arguments[0]):
                return
        elif event == "import":
            if arguments[0] not in modules:
                return
        elif not event.startswith(refused) or (event == "ctypes.dlopen" and arguments[0] is None):
            return  # the import of ctypes opens this program itself
        raise error(f"{event}: {said}")

    return refuse


# plain values
# ---------------------------------------------------------------------------------------------


def plain(value: Any) -> Any:
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
        return {"table": [[plain(key), plain(its)] for key, its in value.items()]}
    if isinstance(value, list | tuple):
        return {"tuple" if isinstance(value, tuple) else "list": [*map(plain, value)]}
    if isinstance(value, Set):
        return {"set": [*map(plain, value)]}
    if isinstance(value, Plan):
        return {"plan": value.to_dict()}
    return {"other": f"{type(value).__name__}: {value!r}"[:500]}

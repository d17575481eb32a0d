"""How local processes are started: a fork server that has torch, and a port for their rendezvous."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from realrun.launch.guard import Guard
from realrun.launch.worker import SILENCE_S
from realrun.run.life import OwnTime
from simlab.errors import InputError


def process_context() -> Any:
    """The `multiprocessing` context of ranks: forkserver where there is one: torch is imported once and then forked. spawn elsewhere
    (Windows)."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    # here, since a Python that starts no processes (a browser's) has neither, but reads recordings
    from multiprocessing import resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["realrun.launch.forked"])
    resource_tracker.ensure_running()  # here, since it unblocks SIGINT when it starts
    try:
        # ^C is the launcher's to handle; its processes end when its pipes do
        _in_a_lasting_thread(_start_fork_server)
    except OSError as error:  # its socket is a file whose path may have about 100 characters
        raise InputError(
            f"cannot start processes: {error}; TMPDIR is {tempfile.gettempdir()!r}: try a short one, such as /tmp"
        ) from error
    return context


def _in_a_lasting_thread(start: Callable[[], None]) -> None:
    """Call `start`, which starts a process that ends with the thread that started it, in a thread that
    lasts as long as this process."""
    if threading.current_thread() is threading.main_thread():
        start()
        return
    failed: list[BaseException] = []
    called = threading.Event()

    def call() -> None:
        try:
            start()
        except BaseException as error:
            failed.append(error)
        called.set()
        if not failed:
            threading.Event().wait()

    threading.Thread(target=call, daemon=True).start()
    called.wait()
    if failed:
        raise failed[0]


def _start_fork_server() -> None:
    from multiprocessing import forkserver

    with _interrupts_blocked():
        forkserver.ensure_running()


@contextmanager
def fork_server_answers(limit_s: float) -> Iterator[threading.Event]:
    """Inside, the fork server starts a process or tells of one's end, for which multiprocessing waits
    without a limit. It is killed if that takes `limit_s`, or `SILENCE_S` and it is stopped (SIGSTOP):
    then that waiting ends, and the event is set."""
    killed, own = threading.Event(), OwnTime()
    begun_s = own.now_s()

    def end() -> None:
        pid = _fork_server_pid()
        late = own.now_s() - begun_s > limit_s
        if pid and not killed.is_set() and (late or _is_stopped(pid)):
            killed.set()
            os.kill(pid, signal.SIGKILL)

    guard = Guard(own, min(SILENCE_S, limit_s), end)
    try:
        with guard.asking():
            yield killed
    finally:
        guard.stop()


def fork_server_text() -> str:
    """What it is called where people read of it."""
    return f"the fork server (process {_fork_server_pid()}), which starts all ranks,"


def _fork_server_pid() -> int | None:
    """None: there is none."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return None
    from multiprocessing import forkserver

    # it tells nobody else
    pid: int | None = getattr(forkserver._forkserver, "_forkserver_pid", None)
    return pid


def _is_stopped(pid: int) -> bool:
    """Whether a signal stopped the process `pid`; only Linux tells."""
    try:
        return (
            Path(f"/proc/{pid}/stat")
            .read_text(encoding="utf-8", errors="replace")
            .rpartition(")")[2]
            .split()[0]
            == "T"
        )
    except OSError:
        return False


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Processes started inside never see SIGINT."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def listening(port: int) -> socket.socket:
    """A socket that listens on 127.0.0.1 only; `InputError` if the port cannot be had."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(("127.0.0.1", port))
        listener.listen(4096)
    except (OSError, OverflowError) as error:
        listener.close()
        reason = error.strerror if isinstance(error, OSError) else "there are ports 0 to 65535"
        raise InputError(
            f"port {port} on 127.0.0.1: {reason}; give another one, or 0 for a free one"
        ) from error
    return listener

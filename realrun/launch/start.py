"""How local processes are started: a fork server that has torch, and a port for their rendezvous."""

from __future__ import annotations

import multiprocessing
import signal
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from simlab.errors import InputError


def process_context() -> Any:
    """The `multiprocessing` context of ranks: forkserver where there is one: torch is imported once and then forked. spawn elsewhere
    (Windows)."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    # here, since a Python that starts no processes (a browser's) has neither, but reads recordings
    from multiprocessing import forkserver, resource_tracker

    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["realrun.launch.forked"])
    resource_tracker.ensure_running()  # here, since it unblocks SIGINT when it starts
    try:
        # ^C is the launcher's to handle; its processes end when its pipes do
        with _interrupts_blocked():
            forkserver.ensure_running()
    except OSError as error:  # its socket is a file whose path may have about 100 characters
        raise InputError(
            f"cannot start processes: {error}; TMPDIR is {tempfile.gettempdir()!r}: try a short one, such as /tmp"
        ) from error
    return context


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

"""It starts the command line: `realrun`, or `python -m realrun`."""

import os
import signal
import socket
import sys
import threading
from typing import Any, NoReturn

from realrun.cli.main import main
from simlab import interrupts


def interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise ^C anew, a moment later, where it arrived while Python was cleaning up an object, for
    there it is lost; every other such error is printed as usual. A signal does it, which also ends
    what the main thread waits for; `_thread.interrupt_main` would let that go on to its end."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        main_thread = threading.main_thread().ident
        threading.Timer(0.02, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    else:
        sys.__unraisablehook__(lost)


def end(number: int, _: Any) -> None:
    """Say that a signal ends this run, and clean up."""
    try:
        # not print, which may be what was interrupted
        os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
    except OSError:
        pass  # the terminal has gone
    sys.exit(128 + number)


def end_soon(number: int, _: Any) -> None:
    """A rank of torchrun's may wait for another one in code that knows no Python, where no handler
    runs; a thread ends it."""


def end_of_a_rank(woken: socket.socket, rank: int) -> None:
    """End this rank at once at a signal that `end_soon` handles; rank 0 says so."""
    while number := woken.recv(1)[0]:
        if signal.getsignal(number) is end_soon:
            if rank == 0:
                os.write(2, f"ended by {signal.Signals(number).name}\n".encode())
            os._exit(128 + number)


def ends_at_once(rank: int) -> None:
    """As `ends_with_a_word`, for a rank that torchrun started, while nobody else in it listens."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.detach(), warn_on_full_buffer=False)
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end_soon)
    threading.Thread(target=end_of_a_rank, args=(woken, rank), daemon=True).start()


def ends_with_a_word() -> None:
    """Signals that end a process end this one with a line, and after it has cleaned up; what is
    ignored (nohup) stays so."""
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


def command() -> NoReturn:
    """Run the command line, and end this process."""
    os.umask(os.umask(0o077) | 0o002)  # nothing that it writes is everybody's to write
    if "RANK" not in os.environ:
        ends_with_a_word()
    elif os.name != "nt":  # where the system ends it at once
        ends_at_once(0 if os.environ["RANK"] == "0" else 1)
    sys.unraisablehook = interrupt_again
    interrupts.imported()
    status = main()
    # all is over: one more ^C would only interrupt Python's own exit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if "RANK" in os.environ:  # it has left; taking torch's modules apart takes most of a second
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


if __name__ == "__main__":
    command()

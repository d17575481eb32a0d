"""`python -m realrun`."""

import _thread
import os
import signal
import sys
import threading
from io import TextIOWrapper
from typing import Any

from realrun.cli.main import main


def interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise ^C anew, a moment later, where it arrived while Python was cleaning up an object, for
    there it is lost; every other such error is printed as usual."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.02, _thread.interrupt_main).start()
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


def ends_with_a_word() -> None:
    """Signals that end a process end this one with a line, and after it has cleaned up; what is
    ignored (nohup) stays so."""
    for name in ("SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGQUIT"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, end)


if __name__ == "__main__":
    os.umask(os.umask(0o077) | 0o002)  # nothing that it writes is everybody's to write
    # torchrun's ranks end at a signal at once; ours end with us
    if "RANK" not in os.environ:
        ends_with_a_word()
    sys.unraisablehook = interrupt_again
    # a terminal that cannot say µs shall not cost the report
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    status = main()
    # all is over: one more ^C would only interrupt Python's own exit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)

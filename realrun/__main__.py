"""`python -m realrun`."""

import _thread
import os
import signal
import sys
import threading
from io import TextIOWrapper

from realrun.cli.main import main


def interrupt_again(lost: "sys.UnraisableHookArgs") -> None:
    """Raise ^C anew, a moment later, where it arrived while Python was cleaning up an object, for
    there it is lost; every other such error is printed as usual."""
    if issubclass(lost.exc_type, KeyboardInterrupt):
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(lost)


if __name__ == "__main__":
    # torchrun's ranks end at SIGTERM at once; ours end with us, and clean up
    if "RANK" not in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    sys.unraisablehook = interrupt_again
    # a terminal that cannot say µs shall not cost the report
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    status = main()
    # all is over: one more ^C would only interrupt Python's own exit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)

"""`python -m realrun`."""

import os
import signal
import sys
from io import TextIOWrapper

from realrun.cli.main import main

if __name__ == "__main__":
    # torchrun's ranks end at SIGTERM at once; ours end with us, and clean up
    if "RANK" not in os.environ:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    # a terminal that cannot say µs shall not cost the report
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    status = main()
    # all is over: one more ^C would only interrupt Python's own exit
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)

"""It starts the command line for `python -m simlab`."""

import os
import sys
from io import TextIOWrapper

from simlab.cli.main import main

if __name__ == "__main__":
    os.umask(os.umask(0o077) | 0o002)  # nothing that it writes is everybody's to write
    # a terminal that cannot say µs shall not cost the answer
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    sys.exit(main())

"""It starts the command line: `simlab`, or `python -m simlab`."""

import os
import sys
from typing import NoReturn

from simlab import interrupts
from simlab.cli.main import main


def command() -> NoReturn:
    """Run the command line, and end this process."""
    os.umask(os.umask(0o077) | 0o002)  # nothing that it writes is everybody's to write
    interrupts.imported()
    sys.exit(main())


if __name__ == "__main__":
    command()

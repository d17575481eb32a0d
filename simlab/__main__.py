"""It starts the command line for `python -m simlab`."""

import sys

from simlab.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

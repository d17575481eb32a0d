"""^C while a command still imports: its process ends with one word, for there is nothing to clean up.

`simlab` imports this module before all else. In any other program it changes nothing.
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

COMMANDS = ("simlab", "realrun")


def is_a_command() -> bool:
    """Whether this process was started as `simlab` or `python -m simlab`, or so of realrun."""
    words = iter(sys.orig_argv[1:])
    for word in words:
        if word in ("-W", "-X"):  # they have a value
            next(words, None)
        elif word == "-m":
            return next(words, "") in COMMANDS
        elif word == "-c" or not word.startswith("-"):
            return Path(word).name in COMMANDS
    return False


def _end(number: int, _: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(1)


def imported() -> None:
    """From now on ^C is an error again, which cleans up."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)


if is_a_command() and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, _end)

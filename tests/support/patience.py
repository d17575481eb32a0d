"""How long the tests wait for what must come. Each waits for something that it sees, so a test takes no
longer for it; the limit is met by what never comes."""

import time

PATIENCE_S = 1200.0
"""Of anything: ten times what the longest takes on two quiet cores, and more."""


def eventually(condition, within_s=PATIENCE_S):
    """Whether `condition()` comes true within so many seconds."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.05)
    return True

"""Ports of 127.0.0.1 for the tests, of which several run at once."""

import os
import socket
from itertools import count

FIRST, EACH, PLACES = 10_000, 100, 200
"""All are below those that the system itself gives to connections, from 32768 on."""
_numbers = count()


def free_port() -> int:
    """A port on which nobody listens. No other process of the tests is likely to be given it, nor is any
    connection."""
    first = FIRST + EACH * (os.getpid() % PLACES)
    while True:
        port = first + next(_numbers) % EACH
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port

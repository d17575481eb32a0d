"""Which network interfaces NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME leave, as the libraries read them.

NCCL (src/misc/socket.cc, ncclFindInterfaces and findInterfaces; src/misc/utils.cc, matchIfList): names with
commas between them are beginnings of names; = before the first one makes them whole names, and ^ before
that excludes what they name. What is asked for may be the loopback. gloo, as torch creates it
(torch/distributed/c10d, ProcessGroupGloo: createDeviceForInterface for each part between commas): whole
names, and no other sign.
"""

from collections.abc import Sequence
from typing import NamedTuple

LOOPBACK = "lo"
VARIABLES = ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


class Chosen(NamedTuple):
    """What a variable leaves of a machine's interfaces."""

    left: tuple[str, ...]
    """Interfaces that are used, the loopback among them where it is not excluded."""
    missing: tuple[str, ...]
    """Names in the variable that no interface has."""


def chosen(variable: str, text: str, interfaces: Sequence[str]) -> Chosen:
    """What `variable` = `text` leaves of `interfaces` and the loopback."""
    there = (*interfaces, LOOPBACK)
    if not variable.startswith("NCCL"):
        whole = text.split(",")
        absent = tuple(name for name in whole if name not in there)
        return Chosen(tuple(name for name in there if name in whole), absent)
    excluded = text.startswith("^")
    rest = text[excluded:]
    exact = rest.startswith("=")
    names = [word.partition(":")[0] for word in rest[exact:].split(",") if word]

    def fits(interface: str, word: str) -> bool:
        return interface == word if exact else interface.startswith(word)

    def named(interface: str) -> bool:
        return any(fits(interface, name) for name in names) or not names

    left = tuple(one for one in there if named(one) != (excluded and bool(names)))
    missing = [name for name in names if not any(fits(one, name) for one in there)]
    return Chosen(left, () if excluded else tuple(missing))

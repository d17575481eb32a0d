"""What each library does that a plan can run with: a record of facts for each.

Nothing else compares a library's name, but for what reads the files of libraries and of published
runs.
"""

from simlab.libraries.library import Library
from simlab.libraries.megatron import MEGATRON
from simlab.libraries.nanotron import NANOTRON
from simlab.libraries.torch import FSDP1, TORCH

LIBRARIES = {its.name: its for its in (MEGATRON, NANOTRON, TORCH, FSDP1)}
"""{name: `Library`}"""


def names_of(fact: str) -> tuple[str, ...]:
    """The names of the libraries of which a fact, a field of `Library`, holds."""
    return tuple(name for name, its in LIBRARIES.items() if getattr(its, fact))


__all__ = ["LIBRARIES", "Library", "names_of"]

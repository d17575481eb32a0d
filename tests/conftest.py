"""The order in which several workers take the files."""

from itertools import zip_longest
from pathlib import Path

WAIT = ("attack", "realrun")
"""Folders whose tests mostly wait for processes."""


def pytest_collection_modifyitems(items):
    """A file whose tests wait beside one whose tests compute: so neither stand idle nor starve."""
    files = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    here = Path(__file__).parent
    waiting = [
        path
        for path in files
        if path.is_relative_to(here) and path.relative_to(here).parts[0] in WAIT
    ]
    others = [path for path in files if path not in waiting]
    pairs = zip_longest(waiting, others)
    items[:] = [item for pair in pairs for path in pair if path for item in files[path]]

"""It pauses Python's garbage collector while simlab makes many objects and no garbage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Pause the garbage collector in a `with` block or in a decorated function.

    A run makes a few long-lived objects per op and no garbage, and looking for garbage would take a
    third of its time. At the end the objects are frozen and unfrozen, which moves them to the
    collector's oldest generation without a search. Without this, the first collection after the
    run would do all the work that was saved.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()

"""Python's garbage collector, told to wait while we make many objects and no garbage."""

import gc
from contextlib import contextmanager


@contextmanager
def no_garbage_collection():
    """A run makes a few long-lived objects per op and no garbage; looking for some would take a third of its time.

    Freezing and unfreezing at the end moves what was made to the collector's oldest generation unsearched: else the
    first collection after the run would do all that was saved.
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

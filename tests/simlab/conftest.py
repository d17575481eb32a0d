"""Hypothesis for this folder: no deadline, for a slow machine is no failure; nothing written into
the checkout. In CI the examples are the same at every run, so that a change is judged by what it
changes; anywhere else they are new ones each time. Where QUICK is set, as `make check` does, there
are half as many."""

import os

from hypothesis import settings

settings.register_profile(
    "simlab",
    deadline=None,
    max_examples=40 if "QUICK" in os.environ else 75,
    database=None,
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("simlab")

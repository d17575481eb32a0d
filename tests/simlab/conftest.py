"""Hypothesis for this folder: no deadline, for a slow machine is no failure; nothing written into
the checkout. `make test` tries 25 examples of a kind, and `make attack` as many as EXAMPLES says. In
CI they are the same at every run, so that a change is judged by what it changes; anywhere else they
are new ones each time."""

import os

from hypothesis import settings

settings.register_profile(
    "simlab",
    deadline=None,
    max_examples=int(os.environ.get("EXAMPLES", 25)),
    database=None,
    print_blob=True,
    derandomize="CI" in os.environ,
)
settings.load_profile("simlab")

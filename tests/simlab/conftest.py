"""Hypothesis for this folder: no deadline, for a slow machine is no failure; nothing written into the checkout."""

from hypothesis import settings

settings.register_profile("simlab", deadline=None, max_examples=150, database=None, print_blob=True)
settings.load_profile("simlab")

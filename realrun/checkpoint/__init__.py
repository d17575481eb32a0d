"""Checkpoints of a training: what is saved, when, in which files, and how another plan reads
them."""

"""The only SimPy code: `simulate` turns a program and its costs into a trace; `network` moves transfers over shared links."""

from simlab.engine.simulation import simulate

__all__ = ["simulate"]

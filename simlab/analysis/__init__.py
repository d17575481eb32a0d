"""Quantities read off a trace, whichever machine made it."""

from simlab.analysis.bubble import Bubble, bubble, busy_s, idle_s, longest_span
from simlab.analysis.memory import Breach, breaches, memory_curve, peak_memory
from simlab.analysis.staleness import Staleness, staleness

__all__ = [
    "Breach", "Bubble", "Staleness", "breaches", "bubble", "busy_s", "idle_s", "longest_span", "memory_curve", "peak_memory", "staleness",
]  # fmt: skip

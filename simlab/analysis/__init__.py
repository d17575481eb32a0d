"""Quantities read off a trace, whichever machine made it."""

from simlab.analysis.bubble import Bubble, bubble, busy_s, idle_s
from simlab.analysis.explain import Gap, critical_path, gaps
from simlab.analysis.memory import memory_curve, peak_memory

__all__ = ["Bubble", "Gap", "bubble", "busy_s", "critical_path", "gaps", "idle_s", "memory_curve", "peak_memory"]

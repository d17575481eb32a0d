"""It computes figures from a trace, whether it was simulated or measured."""

from simlab.analysis.bubble import (
    Bubble,
    BubbleParts,
    bubble,
    bubble_parts,
    busy_s,
    idle_s,
    longest_span,
    steady_idle,
    warm_up_form,
)
from simlab.analysis.explain import Gap, critical_path, gaps
from simlab.analysis.memory import Breach, breaches, memory_curve, memory_curves, peak_memory
from simlab.analysis.stack import Stack, memory_stack, walk_stack
from simlab.analysis.staleness import Staleness, staleness

__all__ = [
    "Breach",
    "Bubble",
    "BubbleParts",
    "Gap",
    "Stack",
    "Staleness",
    "breaches",
    "bubble",
    "bubble_parts",
    "busy_s",
    "critical_path",
    "gaps",
    "idle_s",
    "longest_span",
    "memory_curve",
    "memory_curves",
    "memory_stack",
    "peak_memory",
    "staleness",
    "steady_idle",
    "walk_stack",
    "warm_up_form",
]

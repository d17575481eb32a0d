"""simlab: simulate how large models are trained on many GPUs. Needs only simpy; pictures need matplotlib or plotly."""

from simlab.analysis import Bubble, Gap, bubble, busy_s, critical_path, gaps, idle_s, memory_curve, peak_memory
from simlab.calibration import Calibration
from simlab.comparison import Comparison, compare
from simlab.cost import OpTimes
from simlab.engine import simulate
from simlab.errors import DeadlockError, InputError, ProgramError, SimlabError
from simlab.hardware import Link
from simlab.program import Op, Program
from simlab.schedules import generate
from simlab.trace import MemoryPoint, Span, Trace
from simlab.validation import validate
from simlab.views import timeline

__version__ = "0.1.0"
__all__ = [
    "Bubble", "Calibration", "Comparison", "DeadlockError", "Gap", "InputError", "Link", "MemoryPoint", "Op", "OpTimes", "Program",
    "ProgramError", "SimlabError", "Span", "Trace", "bubble", "busy_s", "compare", "critical_path", "gaps", "generate", "idle_s",
    "memory_curve", "peak_memory", "simulate", "timeline", "validate",
]  # fmt: skip

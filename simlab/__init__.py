"""simlab: simulate how large models are trained on many GPUs. Needs only simpy; pictures need matplotlib, plotly or anywidget."""

from simlab.analysis import (
    Breach,
    Bubble,
    Gap,
    Staleness,
    breaches,
    bubble,
    busy_s,
    critical_path,
    gaps,
    idle_s,
    memory_curve,
    peak_memory,
    staleness,
    steady_idle,
)  # fmt: skip
from simlab.calibration import Calibration
from simlab.comparison import Comparison, compare
from simlab.cost import OpMemory, OpTimes
from simlab.engine import simulate
from simlab.errors import DeadlockError, InputError, ProgramError, SimlabError
from simlab.hardware import Link
from simlab.model import Model, catalogue, load_model
from simlab.model_states import model_states, most_parameters
from simlab.partition import best_partition, even_partition, stage_work
from simlab.program import Op, Program
from simlab.puzzle import Puzzle, Verdict
from simlab.schedules import generate
from simlab.schedules.closed_forms import closed_bubble_s
from simlab.survey import survey, survey_table
from simlab.trace import MemoryPoint, Span, Trace
from simlab.validation import validate
from simlab.views import timeline

__version__ = "0.1.0"
__all__ = [
    "Breach", "Bubble", "Calibration", "Comparison", "DeadlockError", "Gap", "InputError", "Link", "MemoryPoint", "Model", "Op",
    "OpMemory", "OpTimes", "Program", "ProgramError", "Puzzle", "SimlabError", "Span", "Staleness", "Trace", "Verdict",
    "best_partition", "breaches", "bubble", "busy_s", "catalogue", "closed_bubble_s", "compare", "critical_path", "even_partition",
    "gaps", "generate", "idle_s", "load_model", "memory_curve", "model_states", "most_parameters", "peak_memory", "simulate",
    "stage_work", "staleness", "steady_idle", "survey", "survey_table", "timeline", "validate",
]  # fmt: skip

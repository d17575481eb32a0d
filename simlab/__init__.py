"""simlab: simulate how large models are trained on many GPUs. Needs only simpy; pictures need matplotlib or plotly."""

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
from simlab.cluster import Cluster, cluster_of_gpu, clusters, load_cluster
from simlab.collectives import all_reduce_rounds, most_sent_bytes, replay
from simlab.comparison import Comparison, compare
from simlab.cost import Group, OpMemory, OpTimes, all_reduce_curve, collective, collective_s, p2p_s
from simlab.engine import simulate
from simlab.errors import DeadlockError, InputError, ProgramError, SimlabError
from simlab.hardware import Fabric, Gpu, Link
from simlab.memory import StepMemory, data_parallel_memory
from simlab.model import Model, catalogue, load_model
from simlab.model_states import model_states, most_parameters
from simlab.partition import best_partition, even_partition, stage_work
from simlab.plan import Plan
from simlab.program import Op, Program
from simlab.puzzle import Puzzle, Verdict
from simlab.runs import validate_runs
from simlab.schedules import generate
from simlab.schedules.closed_forms import closed_bubble_s
from simlab.survey import survey, survey_table
from simlab.trace import MemoryPoint, Span, Trace
from simlab.training import Prediction, Waterfall, layer_trace, predict
from simlab.validation import validate
from simlab.views import rounds_picture, streams_picture, timeline

__version__ = "0.1.0"
__all__ = [
    "Breach", "Bubble", "Calibration", "Cluster", "Comparison", "DeadlockError", "Fabric", "Gap", "Gpu", "Group", "InputError",
    "Link", "MemoryPoint", "Model", "Op", "OpMemory", "OpTimes", "Plan", "Prediction", "Program", "ProgramError", "Puzzle",
    "SimlabError", "Span", "Staleness", "StepMemory", "Trace", "Verdict", "Waterfall", "all_reduce_curve", "all_reduce_rounds",
    "best_partition", "breaches", "bubble", "busy_s", "catalogue", "closed_bubble_s", "cluster_of_gpu", "clusters", "collective",
    "collective_s", "compare", "critical_path", "data_parallel_memory", "even_partition", "gaps", "generate", "idle_s",
    "layer_trace", "load_cluster", "load_model", "memory_curve", "model_states", "most_parameters", "most_sent_bytes", "p2p_s",
    "peak_memory", "predict", "replay", "rounds_picture", "simulate", "stage_work", "staleness", "steady_idle", "streams_picture", "survey",
    "survey_table", "timeline", "validate", "validate_runs",
]  # fmt: skip

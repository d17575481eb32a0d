"""simlab simulates how large models are trained on many GPUs.

It needs only simpy. Pictures need matplotlib, anywidget or plotly, and data frames pandas.
"""

from simlab import interrupts as _interrupts  # noqa: F401  first, see there
from simlab.analysis import (
    Breach,
    Bubble,
    Gap,
    Stack,
    Staleness,
    breaches,
    bubble,
    busy_s,
    critical_path,
    gaps,
    idle_s,
    memory_curve,
    memory_stack,
    peak_memory,
    staleness,
    steady_idle,
)
from simlab.analysis.comparison import Comparison, compare
from simlab.analysis.layer_table import LayerTable, layer_table
from simlab.collectives import all_reduce_rounds, most_sent_bytes, replay
from simlab.cost import (
    GroupShape,
    OpMemory,
    OpTimes,
    all_reduce_curve,
    collective,
    collective_s,
    context_chunks,
    p2p_s,
    ring_work,
)
from simlab.engine import simulate
from simlab.errors import DeadlockError, InputError, ProgramError, SimlabError
from simlab.lowering.traffic import Traffic, crossing, traffic
from simlab.memory import StepMemory, data_parallel_memory
from simlab.memory.model_states import fewest_ranks, model_states, most_parameters, zero_curves
from simlab.own import exercise, prediction
from simlab.program import Op, Program
from simlab.program.validation import validate
from simlab.schedules import closed_bubble_s, generate
from simlab.spec.cluster import Cluster, cluster_of_gpu, clusters, load_cluster
from simlab.spec.fabric import Fabric
from simlab.spec.hardware import Gpu, Link
from simlab.spec.layout import Coordinates, Layout
from simlab.spec.model import Model, catalogue, load_model
from simlab.spec.plan import Plan, plan_fields, plan_schema
from simlab.studies.offload import OffloadStep, offload_step
from simlab.studies.partition import best_partition, even_partition, stage_work
from simlab.studies.published.runs import validate_runs
from simlab.studies.puzzle import Puzzle, Verdict
from simlab.studies.ring_attention import ring_trace
from simlab.studies.survey import survey, survey_table
from simlab.studies.what_if import WhatIf, faster_kernel, faster_link, other_gpu
from simlab.trace import MemoryPoint, Span, Trace
from simlab.training import Prediction, Waterfall, layer_trace, predict
from simlab.training.calibration import Calibration
from simlab.views import (
    layer_picture,
    layer_timeline,
    memory_bars,
    memory_picture,
    overlay,
    rank_cube,
    rounds_picture,
    shares,
    timeline,
    zero_picture,
)

__version__ = "0.1.0"
__all__ = [
    "Breach",
    "Bubble",
    "Calibration",
    "Cluster",
    "Comparison",
    "Coordinates",
    "DeadlockError",
    "Fabric",
    "Gap",
    "Gpu",
    "GroupShape",
    "InputError",
    "LayerTable",
    "Layout",
    "Link",
    "MemoryPoint",
    "Model",
    "OffloadStep",
    "Op",
    "OpMemory",
    "OpTimes",
    "Plan",
    "Prediction",
    "Program",
    "ProgramError",
    "Puzzle",
    "SimlabError",
    "Span",
    "Stack",
    "Staleness",
    "StepMemory",
    "Trace",
    "Traffic",
    "Verdict",
    "Waterfall",
    "WhatIf",
    "all_reduce_curve",
    "all_reduce_rounds",
    "best_partition",
    "breaches",
    "bubble",
    "busy_s",
    "catalogue",
    "closed_bubble_s",
    "cluster_of_gpu",
    "clusters",
    "collective",
    "collective_s",
    "compare",
    "context_chunks",
    "critical_path",
    "crossing",
    "data_parallel_memory",
    "even_partition",
    "exercise",
    "faster_kernel",
    "faster_link",
    "fewest_ranks",
    "gaps",
    "generate",
    "idle_s",
    "layer_picture",
    "layer_table",
    "layer_timeline",
    "layer_trace",
    "load_cluster",
    "load_model",
    "memory_bars",
    "memory_curve",
    "memory_picture",
    "memory_stack",
    "model_states",
    "most_parameters",
    "most_sent_bytes",
    "offload_step",
    "other_gpu",
    "overlay",
    "p2p_s",
    "peak_memory",
    "plan_fields",
    "plan_schema",
    "predict",
    "prediction",
    "rank_cube",
    "replay",
    "ring_trace",
    "ring_work",
    "rounds_picture",
    "shares",
    "simulate",
    "stage_work",
    "staleness",
    "steady_idle",
    "survey",
    "survey_table",
    "timeline",
    "traffic",
    "validate",
    "validate_runs",
    "zero_curves",
    "zero_picture",
]

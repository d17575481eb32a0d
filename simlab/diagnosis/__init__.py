"""It says where the time of a step goes, and why: `diagnose` a trace, `read_dumps` of a hang."""

from simlab.diagnosis.diagnosis import Diagnosis, diagnose
from simlab.diagnosis.files import read
from simlab.diagnosis.graph import Graph, Need, Work
from simlab.diagnosis.hangs import Cause, Hang, hang_in_logs, hang_of
from simlab.diagnosis.of_profiles import profile_graph
from simlab.diagnosis.of_trace import trace_graph
from simlab.diagnosis.straggler import Straggler, straggler
from simlab.diagnosis.time_spent import Spent, time_spent

__all__ = [
    "Cause",
    "Diagnosis",
    "Graph",
    "Hang",
    "Need",
    "Spent",
    "Straggler",
    "Work",
    "diagnose",
    "hang_in_logs",
    "hang_of",
    "profile_graph",
    "read",
    "straggler",
    "time_spent",
    "trace_graph",
]

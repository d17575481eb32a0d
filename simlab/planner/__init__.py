"""It searches the plans by which a model can be trained on a cluster, and says why the best one wins.

The steps of a search are pure functions of a model, a cluster and plans: `space` enumerates plans,
`prune` rejects those that cannot fit or cannot win, `rank` predicts the others and judges whether
they fit (`simlab.training.fit`), `search` puts these together, and `explain` says what decides.
"""

from simlab.planner.explain import Advice, Change, Explanation, Rival, advice, explanation
from simlab.planner.prune import memory_bound_bytes, time_bound_s
from simlab.planner.rank import Ranked, layered_s, predicted
from simlab.planner.search import Search, search
from simlab.planner.space import Rejection, Space
from simlab.training.fit import Fit, judged, reserve_bytes

__all__ = [
    "Advice",
    "Change",
    "Explanation",
    "Fit",
    "Ranked",
    "Rejection",
    "Rival",
    "Search",
    "Space",
    "advice",
    "explanation",
    "judged",
    "layered_s",
    "memory_bound_bytes",
    "predicted",
    "reserve_bytes",
    "search",
    "time_bound_s",
]

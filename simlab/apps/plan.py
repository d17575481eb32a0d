"""It has the widgets of the explorer of plans, and of challenges to find one, or a slow link."""

import time
from dataclasses import replace
from typing import Any

from simlab.apps.explorer_widget import ExplorerWidget
from simlab.explorers import challenge
from simlab.explorers.challenge.links import LinkTask
from simlab.explorers.explorer import Answer, State
from simlab.explorers.plan import EXPLORER, step_streams
from simlab.lessons import progress
from simlab.spec.cluster import Cluster
from simlab.spec.model import Model
from simlab.views import timeline
from simlab.views.chart import Chart


class PlanExplorer(ExplorerWidget):
    """One plan of one model on one cluster; everything that decides its step is a control.

    values: where the other controls start: nodes, dp, tp, pp, cp, zero, recompute, schedule,
            microbatches, and zoom, 'whole step' or an op of the first place of the pipeline, such
            as '0F0', which is shown layer by layer; `tongue` is 'en' or 'zh'.
    """

    def __init__(
        self, model: str | Model = "llama-2-13b", cluster: str | Cluster = "dgx-a100", **values: Any
    ) -> None:
        super().__init__(EXPLORER, model=model, cluster=cluster, **values)

    def charts(self) -> list[Chart]:
        """The charts, and the streams of the step where the browser shows its timeline."""
        charts = super().charts()
        whole = len(charts) < len(self.shown.pictures)
        return [*charts, step_streams(self.meant)] if whole else charts


def _kept(state: State) -> Answer:
    """The challenge's answer; one that is solved for the first time is kept in the learner's progress."""
    found = challenge.answer(state)
    if found.solved and found.solved not in progress.load()["challenges"]:
        progress.keep("challenges", found.solved, {"at_s": time.time()})
    return found


class ChallengeExplorer(ExplorerWidget):
    """Challenges: find a plan that fits and reaches a goal, or the slow link of a pipeline. What is solved is
    kept with the learner's progress.

    values: task, its number from 1 on, hint, 0 to 3, and where the controls of this task start; `tongue` is
            'en' or 'zh'.
    """

    def __init__(self, task: int = 1, **values: Any) -> None:
        super().__init__(replace(challenge.EXPLORER, answer=_kept), task=task, **values)

    def still(self, tongue: str | None = None) -> Any:
        """The charts of a plan, or the timelines of a step with a slow link, as a matplotlib Figure."""
        task = challenge.CHALLENGES[self.state["task"] - 1]
        if isinstance(task, LinkTask):
            return self.in_tongue(timeline(task.traces(self.state)), tongue)
        return super().still(tongue)
